/**
 * What makes one call a repeat of another, why a repeat is refused, and which responses show that their call ran, so that a later repeat may
 * have them instead of asking the upstream again. Pure.
 */
import { isRecord, parseJson } from '../dispatch/feedback/json.policy.ts';
import { decodedBody } from '../dispatch/request-body.policy.ts';
import { Refusal } from '../errors.ts';
import { valuesOf } from '../field-lines.policy.ts';

/** Identifies a call that may be a repeat of another, or may be repeated later. */
export interface RepeatKey {
  /**
   * How a call shows that it may be a repeat. `key`: the client names the call (`Idempotency-Key`, a webhook id) · `first`,
   * `again`: an SDK numbers its attempts, and this is the first or a later one.
   */
  readonly marker: 'key' | 'first' | 'again';
  /** With a key: digest of the workspace, its credential and the key. Without one: the name of one making of the call. */
  readonly name: string;
  /** Digest of all of the request that goes upstream: the same key with another fingerprint is refused (422). */
  readonly fingerprint: string;
  /** Digest of the workspace: each workspace has a bound on its kept responses. */
  readonly owner: string;
  readonly upstream: string;
  /** Encrypts kept responses, together with the label key. Never leaves the process. */
  readonly secret: { readonly workspaceId: string; readonly key: string };
}

/** A whole response of an upstream. */
export interface KeptResponse {
  readonly status: number;
  /** As the upstream sent them, name and value alternating: each client gets them in the form of its own call. */
  readonly rawFields: readonly string[];
  readonly body: Buffer;
  /** What `x-should-retry` said; `null` = nothing. */
  readonly shouldRetry: boolean | null;
}

/** How a call ended: with a response, which may be kept for its repeats (`too_large`: it is none of those), or without one. */
export type CallResult =
  | { readonly kind: 'answered'; readonly response: KeptResponse | 'too_large'; readonly isKept: boolean }
  | { readonly kind: 'failed'; readonly failure: unknown };

/** The call has run, and its response cannot be had: repeating it cannot succeed. */
export const noResponse = (why: 'too large to be kept' | 'no longer available'): Refusal =>
  new Refusal('idempotency_conflict', {
    detail: `The call with this key has been answered, and its response is ${why}.`,
  });

/** @throws Refusal `idempotency_mismatch` where the key was used for a different call */
export function assertSameCall(key: RepeatKey, known: Pick<RepeatKey, 'fingerprint'>): void {
  if (known.fingerprint === key.fingerprint) return;
  throw new Refusal('idempotency_mismatch', {
    detail:
      'This key was used with another method, target, body or header: repeat that request unchanged, or use another key.',
  });
}

/** Errors are short: larger bodies are not looked at as a whole. Bytes. */
const maxErrorBytes = 64 * 1_024;
/** Of an event stream the end is looked at, where an error stands that broke it off. Bytes. */
const streamEndBytes = 8 * 1_024;

/**
 * A refusal may be cured by the time of the repeat, and a client repeats a failed call to have it run: neither is kept. The status
 * decides, and a 2xx counts only if it neither asks for another try nor holds an error in the place of a result.
 */
export function showsThatItRan(
  status: number,
  rawFields: readonly string[],
  body: Buffer | 'too_large',
): boolean {
  if (status < 200 || status > 299) return false;
  const field = (name: string): string => (valuesOf(rawFields, name)[0] ?? '').trim().toLowerCase();
  if (field('stripe-should-retry') === 'true' || field('x-should-retry') === 'true') return false;
  if (body === 'too_large') return true;
  const type = field('content-type');
  if (/^text\/event-stream\b/.test(type)) return !hasErrorEvent(decodedBody(rawFields, body));
  if (!/^application\/(?:[\w.-]+\+)?json\b/.test(type) || body.length > maxErrorBytes) return true;
  return !isError(parseJson(decodedBody(rawFields, body).toString('utf8')));
}

/** An error in the place of a result: `error` says something, or there are `errors` and no data (GraphQL). */
function isError(body: unknown): boolean {
  const [first] = Array.isArray(body) ? (body as unknown[]) : [body];
  if (!isRecord(first)) return false;
  const { error, errors, data, result } = first;
  if (isRecord(error) || (typeof error === 'string' && error !== '') || error === true) return true;
  if (first['ok'] === false || first['type'] === 'error') return true;
  return Array.isArray(errors) && errors.length > 0 && (data ?? result ?? null) === null;
}

const hasErrorEvent = (body: Buffer): boolean =>
  body
    .subarray(-streamEndBytes)
    .toString('utf8')
    .split(/\r\n|[\r\n]/)
    .some(
      (line) =>
        /^event: ?(?:error|response\.failed)$/.test(line) ||
        (line.startsWith('data:') &&
          line.includes('"error"') &&
          isError(parseJson(line.slice('data:'.length)))),
    );
