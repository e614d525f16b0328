/**
 * What a GraphQL request does: read or write, and whether it protects itself against running twice.
 *
 * Owns: finding the operation that will run and its kind. Does not own: cost, which is learned per document.
 * Invariant: what is too long, unparsable or ambiguous is a write, because a write that is taken for a read would be
 * sent twice.
 */
import { Kind, parse, type DocumentNode, type OperationDefinitionNode, type SelectionNode } from 'graphql';
import { isRecord, stringAt, type JsonRecord } from './feedback/json.policy.ts';

/** Longer documents (characters) and more tokens than this are not parsed. */
const maxDocument = 65_536;
const maxDocumentTokens = 20_000;
const maxVariableList = 2048;
/**
 * No cost is learned of a document with more variables: sorting a quarter of a million would block every other call for a second.
 */
const maxVariables = 256;

export interface GraphqlRequest {
  readonly isQuery: boolean;
  /** Every field of the mutation carries `@idempotent`. */
  readonly hasOwnIdempotency: boolean;
  /** Document, operation and top-level numeric variables: what the requested cost depends on. `null` = not to be learned. */
  readonly costKey: string | null;
}

const unknownRequest: GraphqlRequest = { isQuery: false, hasOwnIdempotency: false, costKey: null };

/** Describes a parsed JSON request body. */
export function describeGraphql(body: JsonRecord): GraphqlRequest {
  const document = stringAt(body, 'query');
  if (document === null || document.length > maxDocument) return unknownRequest;
  const operationName = stringAt(body, 'operationName');
  const operation = operationIn(document, operationName);
  if (operation === null) return unknownRequest;
  return {
    isQuery: operation.operation === 'query',
    hasOwnIdempotency:
      operation.operation === 'mutation' && operation.selectionSet.selections.every(isIdempotentField),
    costKey: costKeyOf(document, operationName, body['variables']),
  };
}

function operationIn(document: string, name: string | null): OperationDefinitionNode | null {
  const operations = parsed(document)?.definitions.filter((node) => node.kind === Kind.OPERATION_DEFINITION);
  // The server refuses a name that is not there; whatever it does, it is not a query we know.
  const found =
    name === null || name === ''
      ? operations?.[0]
      : operations?.find((operation) => operation.name?.value === name);
  return found ?? null;
}

function parsed(document: string): DocumentNode | null {
  try {
    return parse(document, { noLocation: true, maxTokens: maxDocumentTokens });
  } catch {
    return null; // the upstream will say what is wrong with it
  }
}

function isIdempotentField(selection: SelectionNode): boolean {
  if (selection.kind !== Kind.FIELD) return false;
  return selection.directives?.some((directive) => directive.name.value === 'idempotent') ?? false;
}

function costKeyOf(document: string, operationName: string | null, variables: unknown): string | null {
  const entries = Object.entries(isRecord(variables) ? variables : {});
  if (entries.length > maxVariables) return null;
  const numbers = entries
    .filter(([, value]) => typeof value === 'number')
    .sort(([a], [b]) => (a < b ? -1 : 1));
  return `${document}\n${operationName ?? ''}\n${JSON.stringify(numbers).slice(0, maxVariableList)}`;
}
