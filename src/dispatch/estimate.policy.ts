/**
 * What a call is, judged by its bytes before it is sent: what it will cost, which model it names, whether it may run
 * twice.
 *
 * Owns: choosing the right reader for a request. Does not own: the arithmetic of tokens (`charge.policy.ts`), GraphQL
 * (`graphql-document.policy.ts`), forms (`multipart.policy.ts`), and what is learned later. Invariant: the body is
 * parsed at most once, never changed, never required to be valid; a call we do not understand costs one request.
 */
import type { Costs, UpstreamKind } from '../call.ts';
import { chargeOf, chargeOfSize, type Operation } from './charge.policy.ts';
import { isRecord, stringAt, type JsonRecord } from './feedback/json.policy.ts';
import { describeGraphql } from './graphql-document.policy.ts';
import { methodOverrides } from './method-override.policy.ts';
import { tierOf } from './model-class.policy.ts';
import { countsTokens, createsWhatStays, operationOf } from './model-operation.policy.ts';
import { boundaryOf, formFields } from './multipart.policy.ts';
import { beginningOf } from './prompt-beginning.policy.ts';
import type { TokenGuess } from './token-estimate.policy.ts';

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

export interface CallDescription {
  /** Which of the upstream's limits it counts against. */
  readonly callClass: 'default' | 'rest' | 'graphql';
  /** Model, or deployment where the path names one; `null` = none named. At most 256 characters. */
  readonly model: string | null;
  /** Tier that has a quota of its own; `''` = the ordinary one. */
  readonly tier: string;
  /** Pessimistic reservation per meter. */
  readonly costs: Costs;
  /** What the tokens of the call are guessed from, by a guess that learns; `null` = they are not guessed. */
  readonly guess: TokenGuess | null;
  /** How its prompt begins, to be hashed; `null` = not known. */
  readonly beginning: string | null;
  /** RFC 9110 safe method, or a GraphQL query; and every method that the request asks for in its place is safe too. */
  readonly safe: boolean;
  /** Safe, or PUT or DELETE; likewise. */
  readonly idempotent: boolean;
  /** What a GraphQL cost depends on, to be hashed; `null` = not to be learned. */
  readonly costKey: string | null;
  /** The request carries the upstream's own protection against running twice. */
  readonly hasOwnIdempotency: boolean;
  /** Generates or edits pictures. */
  readonly makesImages: boolean;
  /** A POST to a language model that creates nothing that stays: running it twice costs money and not correctness. */
  readonly onlyCosts: boolean;
}

/**
 * Longer bodies (bytes) are not parsed but judged by their size: a megabyte of brackets takes the parser up to 0.1 s, in
 * which every other call stands still, and it may be sent again and again before any limit is asked.
 */
const maxParsedBody = 1_048_576;
/** Where the model and the output limits of a longer body are looked for, bytes from either end. */
const endsRead = 16_384;
/** No word and no number is that long: a run of so many characters of base64 is no text. */
const minBase64 = 1_024;
const maxModel = 256;
/** Points reserved for a document whose cost nobody has seen yet: a mutation's published price, a modest query's. */
const unseenMutationPoints = 10;
const unseenQueryPoints = 50;

const oneRequest: Costs = { requests: 1 };
const safeMethods = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);
const isIdempotent = (method: string): boolean =>
  safeMethods.has(method) || method === 'PUT' || method === 'DELETE';

/** Describes a call for an upstream of this kind. Total and linear. */
export function describeCall(kind: UpstreamKind, request: CallRequest): CallDescription {
  const described = describeAsSent(kind, request);
  if (!described.idempotent) return described;
  const overrides = methodOverrides(request);
  if (overrides.length === 0) return described;
  return {
    ...described,
    safe: described.safe && overrides.every((method) => safeMethods.has(method)),
    idempotent: overrides.every(isIdempotent),
  };
}

/** By the method of the request line. */
function describeAsSent(kind: UpstreamKind, request: CallRequest): CallDescription {
  const safe = safeMethods.has(request.method);
  const plain: CallDescription = {
    callClass: kind === 'commerce' ? 'rest' : 'default',
    model: null,
    tier: '',
    costs: oneRequest,
    guess: null,
    beginning: null,
    safe,
    idempotent: isIdempotent(request.method),
    costKey: null,
    hasOwnIdempotency: false,
    makesImages: false,
    onlyCosts: false,
  };
  switch (kind) {
    case 'language-model':
      return request.method === 'POST' ? describeModelPost(plain, request) : plain;
    case 'commerce':
      return describeCommerce(plain, request);
    case 'generic':
      return plain;
  }
}

function describeModelPost(plain: CallDescription, request: CallRequest): CallDescription {
  const path = pathOf(request.path);
  const described = describeGeneration(plain, request, path);
  if (!countsTokens(path)) return described;
  return { ...described, tier: 'counting', costs: oneRequest, guess: null, safe: true, idempotent: true };
}

function describeGeneration(plain: CallDescription, request: CallRequest, path: string): CallDescription {
  const operation = operationOf(path);
  const asked = {
    ...plain,
    model: modelInPath(path),
    makesImages: operation === 'image',
    onlyCosts: !createsWhatStays(path),
  };
  const boundary = boundaryOf(request.contentType ?? '');
  if (boundary !== null) return describeForm(asked, formFields(request.body, boundary), operation);
  if (!isJson(request.contentType)) return asked;
  if (request.body.length > maxParsedBody) return describeLarge(asked, request.body, operation);
  const body = parsedBody(request.body);
  if (body === null) return asked;
  return {
    ...asked,
    model: asked.model ?? modelName(stringAt(body, 'model')),
    tier: tierOf(body),
    ...chargeOf(body, operation),
    beginning: beginningOf(body),
  };
}

function describeForm(
  plain: CallDescription,
  fields: ReadonlyMap<string, string>,
  operation: Operation,
): CallDescription {
  const n = Number(fields.get('n') ?? '1');
  return {
    ...plain,
    model: plain.model ?? modelName(fields.get('model') ?? null),
    costs:
      operation === 'image'
        ? chargeOf({ prompt: fields.get('prompt') ?? '', n }, operation).costs
        : oneRequest,
  };
}

/** Too large to parse: text is what is not base64, the model and the limits of the output are looked for at both ends. */
function describeLarge(plain: CallDescription, body: Buffer, operation: Operation): CallDescription {
  const { runs, bytes } = base64In(body);
  const ends = `${body.toString('latin1', 0, endsRead)}\n${body.toString('latin1', body.length - endsRead)}`;
  const model = /"model"\s*:\s*"([^"\\]{1,256})"/.exec(ends)?.[1] ?? null;
  const limits = Object.fromEntries(
    [...ends.matchAll(/"(max_(?:completion_|output_)?tokens)"\s*:\s*(\d{1,9})\b/g)].map(
      ([, name = '', count]) => [name, Number(count)],
    ),
  );
  return {
    ...plain,
    model: plain.model ?? model,
    ...chargeOfSize({ textBytes: body.length - bytes, pictures: runs, limits }, operation),
  };
}

/** Base64 of both alphabets, and the backslashes that some encoders of JSON put into it. */
const isBase64 = Uint8Array.from({ length: 256 }, (_, byte) =>
  /[\w+/=\\-]/.test(String.fromCharCode(byte)) ? 1 : 0,
);

/**
 * Long runs of base64 in a body, and the bytes of them: pictures, sounds and documents, in whatever form they are sent. One byte of each
 * half of the shortest run is looked at, so text costs next to nothing.
 */
function base64In(body: Buffer): { readonly runs: number; readonly bytes: number } {
  let runs = 0;
  let bytes = 0;
  let from = 0;
  for (let at = 0; at < body.length; at += minBase64 / 2) {
    let start = at;
    while (start >= from && isBase64[body[start] ?? 0] === 1) start -= 1;
    let end = at;
    while (end < body.length && isBase64[body[end] ?? 0] === 1) end += 1;
    from = end;
    if (end - start <= minBase64) continue;
    runs += 1;
    bytes += end - start - 1;
    at = end;
  }
  return { runs, bytes };
}

function describeCommerce(plain: CallDescription, request: CallRequest): CallDescription {
  const path = pathOf(request.path);
  if (request.method !== 'POST' || !/\/graphql(?:\.json)?$/.test(path)) {
    // Payments carry `unique_token`, by which the platform recognises a repeat.
    return { ...plain, hasOwnIdempotency: !plain.safe && request.body.includes('"unique_token"') };
  }
  const body = graphqlBody(request);
  const asked = body === null ? null : describeGraphql(body);
  const isQuery = asked?.isQuery ?? false;
  return {
    ...plain,
    callClass: 'graphql',
    costs: isStorefront(path) ? {} : { cost: isQuery ? unseenQueryPoints : unseenMutationPoints },
    safe: isQuery,
    idempotent: isQuery,
    costKey: asked?.costKey ?? null,
    hasOwnIdempotency: asked?.hasOwnIdempotency ?? false,
  };
}

function graphqlBody({ contentType, body }: CallRequest): JsonRecord | null {
  if (body.length > maxParsedBody) return null;
  if (/^application\/graphql\s*(?:;|$)/i.test(contentType ?? '')) return { query: body.toString('utf8') };
  return parsedBody(body);
}

/** `/api/{version}/graphql.json`: buyers are not metered in points. */
const isStorefront = (path: string): boolean => path.startsWith('/api/');

function pathOf(path: string): string {
  const query = path.indexOf('?');
  return query < 0 ? path : path.slice(0, query);
}

/** Azure names the deployment and Gemini the model in the path; it then is what the quota belongs to. */
function modelInPath(path: string): string | null {
  const found = /\/deployments\/([^/]{1,256})\//.exec(path) ?? /\/models\/([^/:]{1,256}):/.exec(path);
  return found === null ? null : decodedSegment(found[1] ?? '');
}

function decodedSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // a stray percent sign: the raw spelling still distinguishes models
  }
}

const modelName = (name: string | null): string | null =>
  name === null || name === '' || name.length > maxModel ? null : name;

/** SDKs always name JSON; a missing type is given the benefit of the doubt. */
const isJson = (contentType: string | null): boolean =>
  contentType === null || /^application\/(?:[\w.-]+\+)?json\b/i.test(contentType);

function parsedBody(body: Buffer): JsonRecord | null {
  if (body.length === 0) return null;
  try {
    const value: unknown = JSON.parse(body.toString('utf8'));
    return isRecord(value) ? value : null;
  } catch {
    return null; // the upstream will say what is wrong with it
  }
}
