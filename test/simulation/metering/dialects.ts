/** What an upstream writes into its responses of a counter, in the spellings that are met most. */
import type { UpstreamKind } from '../../../src/call.ts';
import { goDuration } from '../../../simulators/go-duration.ts';
import type { Counter } from './counters.ts';

export interface Dialect {
  readonly kind: UpstreamKind;
  /** Fields of a response made at `now`; `waitMs` > 0: of a refusal. */
  fields(counter: Counter, waitMs: number, now: number): [name: string, value: string][];
  /** Body of a refusal. */
  readonly refusal?: string;
}

const remaining = (counter: Counter, now: number): string =>
  String(Math.max(0, Math.floor(counter.limit - counter.used(now) + 1e-6)));

const retryAfter = (waitMs: number): [string, string][] =>
  waitMs > 0 ? [['retry-after', String(Math.max(1, Math.ceil(waitMs / 1000)))]] : [];

const triple =
  (reset: (ms: number) => string): Dialect['fields'] =>
  (counter, waitMs, now) => [
    ['x-ratelimit-limit', String(counter.limit)],
    ['x-ratelimit-remaining', remaining(counter, now)],
    ['x-ratelimit-reset', reset(counter.resetMs(now))],
    ...retryAfter(waitMs),
  ];

/** `x-ratelimit-*`, the reset in whole seconds, rounded up. */
export const wholeSeconds: Dialect = {
  kind: 'generic',
  fields: triple((ms) => String(Math.ceil(ms / 1000))),
};

/** The same with a reset to the millisecond. */
export const milliseconds: Dialect = {
  kind: 'generic',
  fields: triple((ms) => `${Math.ceil(ms)}ms`),
};

/** As OpenAI writes it: the reset says when the bucket is full. */
export const model: Dialect = {
  kind: 'language-model',
  refusal: '{"error":{"type":"requests","code":"rate_limit_exceeded","message":""}}',
  fields: (counter, waitMs, now) => [
    ['x-ratelimit-limit-requests', String(counter.limit)],
    ['x-ratelimit-remaining-requests', remaining(counter, now)],
    ['x-ratelimit-reset-requests', goDuration(counter.resetMs(now))],
    ...(waitMs > 0 ? [['retry-after-ms', String(Math.ceil(waitMs))] as [string, string]] : []),
  ],
};

/** `used/limit`, and whole seconds where it refuses. */
export const commerce: Dialect = {
  kind: 'commerce',
  fields: (counter, waitMs, now) => [
    ['x-shopify-shop-api-call-limit', `${Math.ceil(counter.used(now) - 1e-6)}/${counter.limit}`],
    ...retryAfter(waitMs),
  ],
};

/** Says nothing but when to come back. */
export const silent: Dialect = { kind: 'generic', fields: (_counter, waitMs) => retryAfter(waitMs) };
