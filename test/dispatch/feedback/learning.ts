/** What is learned from one response, written as a test likes to write it. */
import type { Feedback, Throttle, UpstreamKind } from '../../../src/call.ts';
import { buildDialect, speaks, type SpeaksInput } from '../../../src/config/speaks.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

export const nowMs = Date.UTC(2026, 8, 1, 12);
export const dayMs = 86_400_000;

export type Fields = Readonly<Record<string, string>>;
export interface Response {
  /** Default: a refusal, 429. */
  readonly status?: number;
  readonly fields?: Fields;
  readonly body?: unknown;
  readonly callClass?: string;
  readonly at?: number;
}
/** Who answers: a kind, or an upstream that is described (a preset, or in words of `speaks`). */
export type Who = UpstreamKind | { readonly speaks: SpeaksInput | string; readonly kind?: UpstreamKind };

export function learn(who: Who, response: Response = {}): Feedback {
  const { status = 429, fields = {}, body = null, callClass = 'default', at = nowMs } = response;
  const text = body === null || typeof body === 'string' ? body : JSON.stringify(body);
  const facts = { status, fields: new Map(Object.entries(fields)), body: text, callClass, nowMs: at };
  if (typeof who === 'string') return learnFrom(who, facts);
  return learnFrom(who.kind ?? 'generic', facts, buildDialect(speaks.parse(who.speaks)).dialect);
}
export const throttleOf = (who: Who, response: Response = {}): Throttle | null =>
  learn(who, response).throttle;
export const waitOf = (who: Who, response: Response = {}): number | null =>
  throttleOf(who, response)?.waitMs ?? null;
/** What is learned from a success with these fields. */
export const metersOf = (who: Who, fields: Fields): Feedback['meters'] =>
  learn(who, { status: 200, fields }).meters;

/** The envelope in which most providers refuse. */
export const error = (message: string, more: object = {}): object => ({ error: { message, ...more } });

/** `x-ratelimit-limit`, `-remaining` and `-reset`, with this prefix; before a name of what is counted, or without. */
export const limits = (
  prefix: string,
  limit: number | string,
  left: number | string,
  reset: string,
): Fields => ({
  [`${prefix}-limit`]: String(limit),
  [`${prefix}-remaining`]: String(left),
  [`${prefix}-reset`]: reset,
});
export const quota = (of: string, limit: number, left: number, reset: string): Fields => ({
  [`x-ratelimit-limit-${of}`]: String(limit),
  [`x-ratelimit-remaining-${of}`]: String(left),
  [`x-ratelimit-reset-${of}`]: reset,
});

/** Meters in words, `requests 10/60s 3..4`: limit, window (`?`: unknown, and when it resets) and, where it is known, how much is used. */
export const meterWords = (who: Who, fields: Fields): string =>
  metersOf(who, fields)
    .map(({ meter, limit, windowMs, resetMs, level }) => {
      const seconds = (ms: number): string => `${ms / 1_000}s`;
      const window = windowMs === null ? '?' : seconds(windowMs);
      const reset = typeof resetMs !== 'number' ? '' : ` resets in ${seconds(resetMs)}`;
      const rounded = (used: number): number => Math.round(used * 1_000) / 1_000;
      const used = level === null ? '' : ` ${rounded(level.lowest)}..${rounded(level.highest)}`;
      return `${meter} ${limit}/${window}${reset}${used}`;
    })
    .join(', ');
