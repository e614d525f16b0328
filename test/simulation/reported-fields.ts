/**
 * What a response says that has only `x-ratelimit-limit`, `-remaining` and `-reset`, read by the product's own dialect: how
 * it is understood is part of what the histories prove.
 */
import type { Feedback } from '../../src/call.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';

interface Reported {
  readonly limit: number;
  readonly remaining: number;
  /** Until the bucket is full again, or its window over. Milliseconds. */
  readonly resetMs: number;
  /** The call was refused; `waitMs` `null` = without a word of when to come again. */
  readonly refused: { readonly waitMs: number | null } | null;
}

export function feedbackOf({ limit, remaining, resetMs, refused }: Reported): Feedback {
  const fields = new Map([
    ['x-ratelimit-limit', String(limit)],
    ['x-ratelimit-remaining', String(remaining)],
    ['x-ratelimit-reset', seconds(resetMs)],
  ]);
  const waitMs = refused?.waitMs ?? null;
  if (waitMs !== null) fields.set('retry-after', seconds(waitMs));
  return learnFrom('generic', {
    status: refused === null ? 200 : 429,
    fields,
    body: null,
    callClass: 'default',
    nowMs: 0,
  });
}

const seconds = (ms: number): string => String(Math.ceil(ms / 1_000));
