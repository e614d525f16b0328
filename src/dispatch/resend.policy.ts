/**
 * What may be sent again, and not before when.
 *
 * Owns: the verdict on one finished attempt. Refuses to own: the waiting (the ticket), the budget of resends, closing a
 * bucket (the limiter) and the words of the answer to the client.
 * Invariants: no call is sent twice unless the upstream said that it did not run it, or running it twice is the same as
 * once (RFC 9110 §9.2.2; a GraphQL query is safe); a stated wait is never undercut; every chain of resends ends, by
 * count or by the call's own wait.
 *
 * | outcome                              | executed?    | idempotent | model POST | image POST | other POST, mutation |
 * |--------------------------------------|--------------|------------|------------|------------|----------------------|
 * | limiter 429, `THROTTLED`             | no           | after the wait, while the call's own wait allows: all the same |
 * | 429 without any hint                 | probably not | back-off, 4 attempts; commerce REST at least 60 s: all the same |
 * | quota, too large, day, store state,  | no           | never      | never      | never      | never                |
 * | a limit that is not the bucket's own |              | (a breaker asks again, `src/breaker/`)                         |
 * | 503, 529, overloaded, `slow_down`    | normally no  | twice      | twice      | once       | no, unless keyed     |
 * | nothing was sent                     | no           | twice      | twice      | twice      | twice                |
 * | stale: a kept connection was closed  | hardly       | once, now  | no         | no         | no, unless keyed     |
 * | fate unknown; 500, 502, 504          | unknown      | once       | no         | no         | no, unless keyed     |
 *
 * "Keyed": the request itself carries the upstream's idempotency (`@idempotent`, `unique_token`).
 */
import type { Throttle, UpstreamKind } from '../call.ts';

/** What of a call decides whether it may be repeated. */
export interface ResendCall {
  /** RFC 9110 safe method, or a GraphQL query. */
  readonly safe: boolean;
  /** Safe, or PUT or DELETE. */
  readonly idempotent: boolean;
  /** The whole body is still in memory. */
  readonly replayable: boolean;
  /** `rest`, `graphql` or `default`. */
  readonly callClass: string;
  /** The request carries a key by which the upstream itself recognises a repeat. */
  readonly hasOwnIdempotency: boolean;
  /** Makes images: dear, slow, and not worth a second overload. */
  readonly imagePost: boolean;
}

/**
 * How an attempt ended. `fate_unknown`: bytes went out, and no answer came. `stale`: the same on a kept connection that the
 * upstream closed without a byte of answer.
 */
export type AttemptOutcome =
  | {
      readonly kind: 'answered';
      readonly status: number;
      readonly throttle: Throttle | null;
      /** The upstream refused the credential that the call carried, and another one is there or on its way. */
      readonly isCredentialRenewed: boolean;
    }
  | { readonly kind: 'never_sent' }
  | { readonly kind: 'stale' }
  | { readonly kind: 'fate_unknown' };

/** Why a call is sent again. Each cause has its own bound. */
export type ResendCause =
  'credential' | 'rate' | 'hintless' | 'overload' | 'never_sent' | 'stale' | 'unknown';

/** Resends made so far, by cause. */
export type ResendHistory = Readonly<Partial<Record<ResendCause, number>>>;

export interface ResendInput {
  readonly kind: UpstreamKind;
  readonly call: ResendCall;
  readonly outcome: AttemptOutcome;
  /** Attempts made, this one included; at least 1. */
  readonly attempts: number;
  /** What the last decision returned. Absent: every earlier attempt counts against every bound. */
  readonly history?: ResendHistory;
  /** What is left of the call's own wait, milliseconds. */
  readonly remainingMs: number;
  /** The longest time to try again that the call's client waits for, milliseconds; absent: less than a minute. */
  readonly honouredMs?: number;
}

/**
 * Who must not be sent before the time: everybody in the bucket, this call alone (its lane may go on), or nobody is
 * asked by the upstream to wait and only our own back-off holds this call.
 */
export type Closes = 'bucket' | 'call' | 'none';

export type ResendDecision =
  | {
      readonly kind: 'resend';
      /** The next attempt may leave this many milliseconds after this answer's head, not earlier. */
      readonly notBeforeMs: number;
      readonly closes: Closes;
      readonly cause: ResendCause;
      /** To be handed in with the next attempt of the same call. */
      readonly history: ResendHistory;
    }
  | {
      /** The outcome is final. An answer goes to the client as it is; where none came, a refusal of ours does. */
      readonly kind: 'pass';
      /** `false`: add `x-should-retry: false`; repeating it cannot succeed or could run it twice. `null`: add nothing. */
      readonly shouldRetry: false | null;
      /** A throttle that is passed on closes all the same, for `closeMs` milliseconds. */
      readonly closes: Closes;
      readonly closeMs: number;
    };

/** Most SDKs stop believing waits of a minute and more (or retry at once): such a refusal says "do not retry". */
const commonHonouredMs = 59_999;
/** Least wait of commerce REST refusals without a hint. Milliseconds. */
const minuteMs = 60_000;
const maxBackoffMs = 8000;

/** `firstMs` × 2ⁿ, 8 s at most. */
const backoffMs = (firstMs: number, n: number): number => Math.min(firstMs * 2 ** n, maxBackoffMs);

/** Decides after each attempt. Total: every outcome has a decision. */
export function resend(input: ResendInput): ResendDecision {
  const { outcome } = input;
  switch (outcome.kind) {
    case 'never_sent':
      return again(input, {
        cause: 'never_sent',
        most: 2,
        waitMs: backoffMs(100, done(input, 'never_sent')),
      });
    case 'stale':
      return afterStale(input);
    case 'fate_unknown':
      return afterUnknownFate(input);
    case 'answered':
      // A refused credential precedes the call: it did not run, so that any method may be sent again.
      if (outcome.isCredentialRenewed) return again(input, { cause: 'credential', most: 2, waitMs: 0 });
      return afterAnswer(input, outcome.status, outcome.throttle);
  }
}

function afterAnswer(input: ResendInput, status: number, throttle: Throttle | null): ResendDecision {
  switch (throttle?.kind) {
    case 'permanent':
    case 'secondary':
      return final(false);
    case 'overload':
      return afterOverload(input, throttle.waitMs);
    case 'rate':
      return afterRate(input, throttle.waitMs);
    case undefined:
  }
  if (status === 429) return afterRate(input, null);
  if (status === 503 || status === 529) return afterOverload(input, null);
  if (status === 500 || status === 502 || status === 504) return afterUnknownFate(input);
  return final(null);
}

/**
 * A named wait is waited for as often as the call's own wait allows: the upstream has proved each time that it ran
 * nothing. From the third refusal in a row a growing floor comes on top, because then somebody else is faster.
 */
function afterRate(input: ResendInput, statedMs: number | null): ResendDecision {
  if (statedMs !== null && statedMs > 0) {
    const n = done(input, 'rate');
    const floorMs = n < 2 ? 0 : backoffMs(250, n - 2);
    return again(input, {
      cause: 'rate',
      most: Infinity,
      waitMs: Math.max(statedMs, floorMs),
      closes: 'bucket',
    });
  }
  const n = done(input, 'hintless');
  // GraphQL points come back within seconds even where the refusal lacks the figures; a REST refusal without a hint is
  // an order limit or the like, which lasts a minute.
  const slow = input.kind === 'commerce' && input.call.callClass !== 'graphql';
  if (slow) return again(input, { cause: 'hintless', most: 2, waitMs: minuteMs, closes: 'bucket' });
  return again(input, { cause: 'hintless', most: 3, waitMs: backoffMs(500, n), closes: 'bucket' });
}

/** Normally not executed, but not proved: only who may run twice, and language-model calls, which change nothing. */
function afterOverload(input: ResendInput, statedMs: number | null): ResendDecision {
  const { call, kind } = input;
  const mayRunTwice = call.idempotent || call.hasOwnIdempotency || kind === 'language-model';
  const closing = { closes: statedMs === null ? 'none' : 'bucket', closeMs: statedMs ?? 0 } as const;
  if (!mayRunTwice) return final(false, closing);
  const most = call.imagePost ? 1 : 2;
  const waitMs = Math.max(statedMs ?? 0, backoffMs(1000, done(input, 'overload')));
  return again(input, { cause: 'overload', most, waitMs, closes: statedMs === null ? 'call' : 'bucket' });
}

/**
 * Connections end when they have been idle, and the end may cross the next request: clients repeat idempotent ones at once
 * (RFC 9112 §9.3.1). It is no fault of the upstream's, so the wait that is left does not matter.
 */
function afterStale(input: ResendInput): ResendDecision {
  const { idempotent, hasOwnIdempotency } = input.call;
  const mayRepeat = (idempotent || hasOwnIdempotency) && input.call.replayable;
  if (!mayRepeat || done(input, 'stale') > 0) return afterUnknownFate(input);
  return again({ ...input, remainingMs: 0 }, { cause: 'stale', most: 1, waitMs: 0 });
}

/** A reset, a timeout or a 500, 502, 504: it may have run. */
function afterUnknownFate(input: ResendInput): ResendDecision {
  const { idempotent, hasOwnIdempotency } = input.call;
  if (!idempotent && !hasOwnIdempotency) return final(false);
  return again(input, { cause: 'unknown', most: 1, waitMs: 500 });
}

interface Wish {
  readonly cause: ResendCause;
  /** Resends for this cause at most. */
  readonly most: number;
  readonly waitMs: number;
  readonly closes?: Closes;
}

/** Grants the wish while its bound, the body and the call's own wait allow; else the outcome is passed on. */
function again(input: ResendInput, { cause, most, waitMs, closes = 'none' }: Wish): ResendDecision {
  const made = done(input, cause);
  if (!input.call.replayable) {
    const shouldRetry = input.outcome.kind === 'never_sent' ? null : false; // the client still has its body
    return final(shouldRetry, { closes, closeMs: closes === 'none' ? 0 : waitMs });
  }
  if (made >= most || waitMs > input.remainingMs) {
    const throttled = closes !== 'none';
    return final(throttled && waitMs > (input.honouredMs ?? commonHonouredMs) ? false : null, {
      closes,
      closeMs: throttled ? waitMs : 0,
    });
  }
  return {
    kind: 'resend',
    notBeforeMs: waitMs,
    closes,
    cause,
    history: { ...before(input), [cause]: made + 1 },
  };
}

function done(input: ResendInput, cause: ResendCause): number {
  return before(input)[cause] ?? 0;
}

function before({ history, attempts }: ResendInput): ResendHistory {
  if (history !== undefined) return history;
  const n = Math.max(0, attempts - 1);
  return {
    credential: n,
    rate: n,
    hintless: n,
    overload: n,
    never_sent: n,
    stale: n,
    unknown: n,
  };
}

function final(
  shouldRetry: false | null,
  closing: Partial<Pick<Extract<ResendDecision, { kind: 'pass' }>, 'closes' | 'closeMs'>> = {},
): ResendDecision {
  return { kind: 'pass', shouldRetry, closes: 'none', closeMs: 0, ...closing };
}
