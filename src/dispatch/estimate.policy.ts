/**
 * What a call is, judged by its bytes before it is sent: what it will cost, which model it names, whether it may run twice. The body is
 * parsed at most once, never changed, never required to be valid; a call we do not understand costs one request.
 */
import { Kind, parse, type OperationDefinitionNode, type SelectionNode } from 'graphql/language';
import type { UpstreamKind } from '../call.ts';
import { isRecord, parseJson, stringAt, type JsonRecord } from './feedback/json.policy.ts';
import { describeModelCall, type ModelCall } from './model-call.policy.ts';
import { decodedBody, maxParsedBody } from './request-body.policy.ts';

/** A call's request as far as it can be judged. */
export interface CallRequest {
  readonly method: string;
  /** Raw path and query. */
  readonly path: string;
  readonly contentType: string | null;
  /** Field lines, name and value alternating. */
  readonly rawFields: readonly string[];
  readonly body: Buffer;
}

/** Members of {@link ModelCall} have their neutral values for other upstreams. */
export interface CallDescription extends Omit<ModelCall, 'countsTokens'> {
  /** Which of the upstream's limits it counts against. */
  readonly callClass: 'default' | 'rest' | 'graphql';
  /** RFC 9110 safe method, or a GraphQL query; false where the request asks for another method in its place. */
  readonly safe: boolean;
  /** Safe, or PUT or DELETE; likewise. */
  readonly idempotent: boolean;
  /** What a GraphQL cost depends on, to be hashed; `null` = not to be learned. */
  readonly costKey: string | null;
  /** The request carries the upstream's own protection against running twice. */
  readonly hasOwnIdempotency: boolean;
}

const safeMethods = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);

/** Describes a call for an upstream of this kind. Total and linear. */
export function describeCall(kind: UpstreamKind, request: CallRequest): CallDescription {
  const described = describe(kind, request);
  return asksForAnotherMethod(request) ? { ...described, safe: false, idempotent: false } : described;
}

function describe(kind: UpstreamKind, request: CallRequest): CallDescription {
  const { method, contentType, rawFields, body } = request;
  const safe = safeMethods.has(method);
  const plain: CallDescription = {
    callClass: kind === 'commerce' ? 'rest' : 'default',
    model: null,
    tier: '',
    costs: { requests: 1 },
    guess: null,
    safe,
    idempotent: safe || method === 'PUT' || method === 'DELETE',
    costKey: null,
    hasOwnIdempotency: false,
    makesImages: false,
    onlyCosts: false,
  };
  if (kind === 'commerce') return describeCommerce(plain, request);
  if (kind === 'generic' || method !== 'POST') return plain;
  const decoded = decodedBody(rawFields, body);
  const { countsTokens, ...asked } = describeModelCall(request.path, contentType, decoded);
  return { ...plain, ...asked, safe: countsTokens, idempotent: countsTokens };
}

// Commerce

/** Points reserved for a document whose cost nobody has seen yet: a mutation's published price, a modest query's. */
const unseenMutationPoints = 10;
const unseenQueryPoints = 50;

function describeCommerce(plain: CallDescription, request: CallRequest): CallDescription {
  const [path = ''] = request.path.split('?', 1);
  if (request.method !== 'POST' || !/\/graphql(?:\.json)?$/.test(path)) {
    // Payments carry `unique_token`, by which the platform recognises a repeat.
    return { ...plain, hasOwnIdempotency: request.body.includes('"unique_token"') };
  }
  const body = graphqlBody(request);
  const document = stringAt(body, 'query') ?? '';
  const operationName = stringAt(body, 'operationName');
  const operation = operationIn(document, operationName);
  const isQuery = operation?.operation === 'query';
  // `/api/{version}/graphql.json`: buyers are not metered in points.
  const isStorefront = path.startsWith('/api/');
  return {
    ...plain,
    callClass: 'graphql',
    costs: isStorefront ? {} : { cost: isQuery ? unseenQueryPoints : unseenMutationPoints },
    safe: isQuery,
    idempotent: isQuery,
    costKey: operation === null ? null : costKeyOf(document, operationName, body?.['variables']),
    hasOwnIdempotency:
      operation?.operation === 'mutation' && operation.selectionSet.selections.every(isIdempotentField),
  };
}

function graphqlBody({ contentType, body }: CallRequest): JsonRecord | null {
  if (body.length > maxParsedBody) return null;
  const text = body.toString('utf8');
  if (/^application\/graphql\s*(?:;|$)/i.test(contentType ?? '')) return { query: text };
  const parsed = parseJson(text, maxParsedBody);
  return isRecord(parsed) ? parsed : null;
}

/** Longer documents (characters) and more tokens than this are not parsed. */
const maxDocument = 65_536;
const maxDocumentTokens = 20_000;

/**
 * The operation of a GraphQL document that will run; `null`: the document is too long, unparsable or ambiguous, and so counts as a
 * write, because a write that is taken for a read would be sent twice.
 */
function operationIn(document: string, name: string | null): OperationDefinitionNode | null {
  if (document.length > maxDocument) return null;
  try {
    const { definitions } = parse(document, { noLocation: true, maxTokens: maxDocumentTokens });
    const operations = definitions.filter((node) => node.kind === Kind.OPERATION_DEFINITION);
    // The server refuses a name that is not there; whatever it does, it is not a query we know.
    const isNamed = name !== null && name !== '';
    return (isNamed ? operations.find((node) => node.name?.value === name) : operations[0]) ?? null;
  } catch {
    return null; // the upstream will say what is wrong with it
  }
}

const isIdempotentField = (selection: SelectionNode): boolean =>
  selection.kind === Kind.FIELD &&
  selection.directives?.some((directive) => directive.name.value === 'idempotent') === true;

const maxVariableList = 2_048;
/** No cost is learned of a document with more variables: sorting a quarter of a million would block every other call for a second. */
const maxVariables = 256;

/** Document, operation and top-level numeric variables: what the requested cost depends on. */
function costKeyOf(document: string, operationName: string | null, variables: unknown): string | null {
  const entries = Object.entries(isRecord(variables) ? variables : {});
  if (entries.length > maxVariables) return null;
  const numbers = entries
    .filter(([, value]) => typeof value === 'number')
    .sort(([a], [b]) => (a < b ? -1 : 1));
  return `${document}\n${operationName ?? ''}\n${JSON.stringify(numbers).slice(0, maxVariableList)}`;
}

// Other methods that a request asks for beside that of its request line

const override = /^_method$|^(?:x-)?http-method(?:-override)?$|^x-(?:method-override|override-method)$/i;
const isOverride = (name: string): boolean =>
  /method/i.test(name) && override.test(name.replaceAll(/(?!^)_/g, '-'));

/**
 * True where fields or query name another method: frameworks run a GET with `X-HTTP-Method-Override: POST` as a POST. Whether the
 * upstream's does is not known, so that such a request counts as one that must not run twice.
 */
function asksForAnotherMethod({ path, rawFields }: CallRequest): boolean {
  if (rawFields.some((name, at) => at % 2 === 0 && isOverride(name))) return true;
  const [, query = ''] = path.split('?', 2);
  // A name may be percent-encoded, and some servers split at semicolons, too; most queries need no parsing.
  const members = /method|%/i.test(query) ? new URLSearchParams(query.replaceAll(';', '&')) : [];
  return [...members].some(
    ([name, value]) =>
      isOverride(name) ||
      // Facebook's Graph API runs a GET with `?method=post` as a POST. Elsewhere `method` means much else, so that its value decides.
      (name.toLowerCase() === 'method' && /^(?:post|patch|put|delete)$/i.test(value)),
  );
}
