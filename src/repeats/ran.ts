/**
 * Which responses show that their call ran, so that they may be given to a later repeat instead of asking the upstream again. Pure.
 *
 * A refusal may be cured by the time of the repeat, and a client repeats a failed call to have it run: neither is kept. The status
 * decides, and a 2xx counts only if it neither asks for another try nor holds an error in the place of a result.
 */
import { isRecord, parseJson } from '../dispatch/feedback/json.policy.ts';
import { decodedBody } from '../dispatch/request-body.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

export interface EndedResponse {
  readonly status: number;
  /** The upstream refused the call for want of quota, whatever the status. */
  readonly throttled: boolean;
  /** The upstream's fields, name and value alternating. */
  readonly rawFields: readonly string[];
  /** `too_large`: more than what is kept. */
  readonly body: Buffer | 'too_large';
}

/** Errors are short: larger bodies are not looked at as a whole. Bytes. */
const maxErrorBytes = 64 * 1_024;
/** Of an event stream the end is looked at, where an error stands that broke it off. Bytes. */
const streamEndBytes = 8 * 1_024;

export function showsThatItRan({ status, throttled, rawFields, body }: EndedResponse): boolean {
  if (status < 200 || status > 299 || throttled) return false;
  const fields = (name: string): string => (valuesOf(rawFields, name)[0] ?? '').trim().toLowerCase();
  if (fields('stripe-should-retry') === 'true' || fields('x-should-retry') === 'true') return false;
  if (body === 'too_large') return true;
  const type = fields('content-type');
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
  const hasErrors = Array.isArray(errors) && errors.length > 0;
  return hasErrors && (data ?? result ?? null) === null;
}

function hasErrorEvent(body: Buffer): boolean {
  const text = body.subarray(-streamEndBytes).toString('utf8');
  return text.split(/\r\n|[\r\n]/).some((line) => {
    if (/^event: ?(?:error|response\.failed)$/.test(line)) return true;
    if (!line.startsWith('data:') || !line.includes('"error"')) return false;
    return isError(parseJson(line.slice('data:'.length)));
  });
}
