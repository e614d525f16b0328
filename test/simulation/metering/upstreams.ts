/** Upstreams of an experiment: how they count, what they write of it into their responses, and who else uses the quota. Time is an argument. */
import type { UpstreamKind } from '../../../src/call.ts';
import type { Random } from '../../../src/clock.ts';
import { goDuration } from '../../../simulators/go-duration.ts';

export interface Counter {
  readonly limit: number;
  /** Used units, fractional where the counter drains. */
  used(now: number): number;
  /** Milliseconds until one more fits; 0 = now. */
  waitMs(now: number): number;
  /** What such an upstream calls the reset: until the bucket is full again, the window ends, the oldest call is forgotten. */
  resetMs(now: number): number;
  take(now: number): unknown;
}

const dust = 1e-6;

/** Drains without pause: `limit` units in a window; `usedBefore`: at first. */
export function leaky(limit: number, windowMs: number, usedBefore = 0): Counter {
  const perMs = limit / windowMs;
  let [level, at] = [usedBefore, 0];
  const used = (now: number): number => {
    level = Math.max(0, level - Math.max(0, now - at) * perMs);
    at = Math.max(at, now);
    return level;
  };
  return {
    limit,
    used,
    waitMs: (now) => {
      const over = used(now) + 1 - limit;
      return over <= dust ? 0 : over / perMs;
    },
    resetMs: (now) => used(now) / perMs,
    take: (now) => (level = used(now) + 1),
  };
}

/** Falls to nothing at the end of a window, which is aligned to the clock (with a phase) or begins with its first call. */
export function fixed(limit: number, windowMs: number, phaseMs: number | null): Counter {
  let [taken, endsAt] = [0, 0];
  const used = (now: number): number => {
    if (now >= endsAt) {
      taken = 0;
      const since = phaseMs === null ? 0 : (now + windowMs - phaseMs) % windowMs;
      endsAt = now + windowMs - since;
    }
    return taken;
  };
  return {
    limit,
    used,
    waitMs: (now) => (used(now) + 1 <= limit ? 0 : endsAt - now),
    resetMs: (now) => {
      used(now);
      return endsAt - now;
    },
    take: (now) => (taken = used(now) + 1),
  };
}

function rolling(limit: number, windowMs: number): Counter {
  const taken: number[] = [];
  const used = (now: number): number => {
    while ((taken[0] ?? Infinity) + windowMs <= now) taken.shift();
    return taken.length;
  };
  const resetMs = (now: number): number => {
    used(now);
    return (taken[0] ?? now - windowMs) + windowMs - now;
  };
  const waitMs = (now: number): number => (used(now) + 1 <= limit ? 0 : resetMs(now));
  return { limit, used, waitMs, resetMs, take: (now) => taken.push(now) };
}

/** A counter of this kind; `phaseMs`: when its window of the clock begins. */
export function counterOf(
  kind: 'fixed' | 'rolling' | 'leaky',
  limit: number,
  windowMs: number,
  phaseMs = 0,
): Counter {
  if (kind === 'fixed') return fixed(limit, windowMs, phaseMs);
  return kind === 'leaky' ? leaky(limit, windowMs) : rolling(limit, windowMs);
}

export interface Dialect {
  readonly kind: UpstreamKind;
  /** Fields of a response made at `now`; `waitMs` > 0: of a refusal. */
  fields(counter: Counter, waitMs: number, now: number): (readonly [name: string, value: string])[];
  readonly refusal?: string;
}

export const remaining = (counter: Counter, now: number): string =>
  String(Math.max(0, Math.floor(counter.limit - counter.used(now) + dust)));

/** Says nothing but when to come back, in whole seconds. */
export const silent: Dialect = {
  kind: 'generic',
  fields: (_counter, waitMs) =>
    waitMs > 0 ? [['retry-after', String(Math.max(1, Math.ceil(waitMs / 1000)))]] : [],
};

/** `x-ratelimit-*`, the reset in whole seconds, rounded up. */
export const wholeSeconds: Dialect = {
  kind: 'generic',
  fields: (counter, waitMs, now) => [
    ['x-ratelimit-limit', String(counter.limit)],
    ['x-ratelimit-remaining', remaining(counter, now)],
    ['x-ratelimit-reset', String(Math.ceil(counter.resetMs(now) / 1000))],
    ...silent.fields(counter, waitMs, now),
  ],
};

/** As OpenAI writes it: the reset says when the bucket is full. */
export const model: Dialect = {
  kind: 'language-model',
  refusal: '{"error":{"type":"requests","code":"rate_limit_exceeded","message":""}}',
  fields: (counter, waitMs, now) => [
    ['x-ratelimit-limit-requests', String(counter.limit)],
    ['x-ratelimit-remaining-requests', remaining(counter, now)],
    ['x-ratelimit-reset-requests', goDuration(counter.resetMs(now))],
    ...(waitMs > 0 ? [['retry-after-ms', String(Math.ceil(waitMs))] as const] : []),
  ],
};

/** `used/limit`, rounded up. */
export const commerce: Dialect = {
  kind: 'commerce',
  fields: (counter, waitMs, now) => [
    ['x-shopify-shop-api-call-limit', `${Math.ceil(counter.used(now) - dust)}/${counter.limit}`],
    ...silent.fields(counter, waitMs, now),
  ],
};

/** Somebody else who uses the same quota: when, and how many units at once; `perMs` units a millisecond on average. */
export type Outsider = (perMs: number, windowMs: number, random: Random) => Takes;
type Takes = Generator<{ readonly at: number; readonly units: number }, never>;

/** One unit after the other at equal distances. */
export function* steady(perMs: number, _windowMs: number, random: Random): Takes {
  for (let at = random.next() / perMs; ; at += 1 / perMs) yield { at, units: 1 };
}

/** One unit after the other at any distance. */
export function* irregular(perMs: number, _windowMs: number, random: Random): Takes {
  for (let at = 0; ; yield { at, units: 1 }) at -= Math.log(1 - random.next()) / perMs;
}

/** Twice the rate for a twelfth of the window, then nothing for as long. */
export function* inBursts(perMs: number, windowMs: number, random: Random): Takes {
  const onMs = windowMs / 12;
  const begins = random.next() * onMs;
  for (let on = 0; ; on += 1 / (2 * perMs))
    yield { at: begins + on + Math.floor(on / onMs) * onMs, units: 1 };
}

/** Some units at once, now and then. */
export function* inLargeBursts(perMs: number, windowMs: number, random: Random): Takes {
  const everyMs = Math.max(windowMs / 24, 3 / perMs);
  let owed = random.next();
  for (let at = random.next() * everyMs; ; at += everyMs) {
    owed += perMs * everyMs;
    const units = Math.floor(owed);
    owed -= units;
    yield { at, units };
  }
}
