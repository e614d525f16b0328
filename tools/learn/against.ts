/**
 * Compares a description with recorded responses, and names each response that the description does not explain.
 *
 * Owns: the judgement of one recording. Does not own: reading responses, which is the gateway's own (`dispatch/feedback/`).
 */
import { bucketParts, settingsOfOperation } from '../../src/admission/buckets.policy.ts';
import type { DialectWindow, UpstreamSettings } from '../../src/config/settings.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';
import { separatorsOf } from '../../src/journey/call-bucket.ts';
import type { RecordedResponse } from './har.ts';
import { looksRefused } from './propose.ts';

export interface Unexplained {
  readonly response: RecordedResponse;
  readonly reason: string;
}

/** The time that a call may take to the upstream, milliseconds: by so much a recorded window may seem fuller or emptier. */
const grainMs = 50;

/** Responses that the upstream's description does not explain, in the order of their time. */
export function unexplained(
  upstream: UpstreamSettings,
  responses: readonly RecordedResponse[],
): Unexplained[] {
  const taken = new Map<string, number[]>();
  return responses.flatMap((response): Unexplained[] => {
    const path = response.path.split(/[?#]/, 1)[0] ?? '';
    const own = settingsOfOperation(upstream, `${response.method} ${path}`);
    const sent = sentOf(own, response, taken);
    const reason = reasonOf(own, response, sent);
    if (response.status < 400) sent.push(response.at);
    return reason === null ? [] : [{ response, reason }];
  });
}

/** Times at which earlier calls of one quota were taken. */
function sentOf(
  upstream: UpstreamSettings,
  response: RecordedResponse,
  taken: Map<string, number[]>,
): number[] {
  const { dialect } = upstream;
  const values = separatorsOf(dialect?.separators ?? [], {
    method: response.method,
    path: response.path,
    contentType: null,
    rawFields: [],
    body: Buffer.alloc(0),
  });
  const named = (dialect?.namedIn ?? null) === null ? undefined : response.fields.get(dialect?.namedIn ?? '');
  const separate = [...(dialect?.operation ?? []), ...values, named ?? ''];
  const parts = bucketParts(upstream, { credential: '', host: response.origin, model: null, separate });
  const name = JSON.stringify(parts);
  const sent = taken.get(name) ?? [];
  taken.set(name, sent);
  return sent;
}

function reasonOf(
  { kind, dialect }: UpstreamSettings,
  response: RecordedResponse,
  sent: readonly number[],
): string | null {
  const { status, fields, body, method, path, at } = response;
  const facts = { status, fields, body, callClass: 'default', method, path, nowMs: at };
  const { throttle, refusesCredential } = learnFrom(kind, facts, dialect);
  const windows = dialect?.windows ?? [];
  if (throttle === null) {
    if (refusesCredential !== true && looksRefused(response))
      return 'looks like a refusal for want of quota, and no throttledBy or permanentBy is met';
    const over =
      status < 400
        ? windows.find((window) => countIn(window, sent, at, grainMs) >= window.requests)
        : undefined;
    return over === undefined
      ? null
      : `was taken, though ${over.requests} calls were taken in its ${over.windowMs / 1000} s already: the limit is higher`;
  }
  if (throttle.kind !== 'rate') return null;
  if (throttle.waitMs === null)
    return 'is refused without a time to wait: give waitSeconds or penaltySeconds';
  const hasRoom =
    windows.length > 0 && windows.every((window) => countIn(window, sent, at, -grainMs) < window.requests);
  return hasRoom ? 'is refused, though no window is full: a window or a part of bucketBy is missing' : null;
}

/** The number of calls in the window that ends at this time, made shorter by `lessMs`. */
function countIn(
  { windowMs, kind, requests }: DialectWindow,
  sent: readonly number[],
  at: number,
  lessMs: number,
): number {
  if (kind === 'leaky') return Math.ceil(levelAt({ windowMs, requests }, sent, at) - (lessMs > 0 ? 1 : 0));
  const start = kind === 'fixed' ? Math.floor(at / windowMs) * windowMs : at - windowMs;
  return sent.filter((one) => one > start + lessMs).length;
}

function levelAt(
  { windowMs, requests }: Pick<DialectWindow, 'windowMs' | 'requests'>,
  sent: readonly number[],
  at: number,
): number {
  let level = 0;
  let before = sent[0] ?? at;
  for (const one of sent) {
    level = Math.max(0, level - ((one - before) * requests) / windowMs) + 1;
    before = one;
  }
  return Math.max(0, level - ((at - before) * requests) / windowMs);
}
