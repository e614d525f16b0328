/**
 * What may be sent again, and not before when.
 *
 * Owns: the verdict on one finished attempt. Does not own: the waiting (the ticket), the budget of resends, closing a
 * bucket (the limiter) and the words of the response to the client.
 * Invariants: no call is sent twice unless nothing of it was sent, the upstream refused it (a throttle, a 429, a credential that
 * was renewed since), running it twice is the same as once (RFC 9110 §9.2.2; a GraphQL query is safe; so is a request that states
 * the upstream's own key), or it is a language model's and the upstream reports overload, which seldom follows a run (8); a stated
 * wait is never undercut; every chain of resends ends, by count or by the call's own wait. A call whose body is not in memory any
 * more (`replayable`) is never sent again, whatever the table says.
 *
 * How often an outcome is followed by another attempt:
 *
 * | outcome                             | executed?    | idempotent | model POST | image POST | other POST, PATCH, mutation |
 * |-------------------------------------|--------------|------------|------------|------------|-----------------------------|
 * | 429 of any kind, `THROTTLED`        | no           | all alike: after the stated wait, while the call's own wait allows   |
 * | 429 without any hint (1)            | probably not | all alike: after 1, 2, 4 … 30 s, while the call's own wait allows    |
 * | 429 of commerce REST without a hint | probably not | all alike: twice, after 60 s or more                                 |
 * | credential refused and renewed      | no           | all alike: twice, at once                                            |
 * | permanent refusal (2)               | no           | never      | never      | never      | never                       |
 * | 503, 529, overload without a 429    | normally no  | twice      | twice      | once       | no, unless own key          |
 * | the same with a stated time         | normally no  | while the call's own wait allows     | no, unless own key          |
 * | nothing was sent                    | no           | twice      | twice      | twice      | twice                       |
 * | stale: a kept connection was closed | hardly       | once, now  | no         | no         | no, unless own key          |
 * | fate unknown; 500, 502, 504, 52x (3)| unknown      | once       | no         | no         | no, unless own key          |
 *
 * Where `passesThrottles` holds, a throttle of any kind and a 429 are never absorbed.
 *
 * (1) For others the bucket is closed for the first second only: no evidence says more. A call that is refused again while nearly all
 * others pass is sent three times more at most, because those behind it in its lane wait for it.
 * (2) Quota, too large, day, store state, and a limit that is not the bucket's own: a breaker asks again (`src/breaker/`).
 * (3) 520 to 524 are a CDN's words for what 502 and 504 say.
 * "Own key": the request states a key that the upstream honours (`@idempotent`, `unique_token` of commerce). `Idempotency-Key` is none:
 * few upstreams honour it. "Model POST": any POST to an upstream of kind `language-model`, and a PATCH; "image POST": one of those
 * that makes images. PATCHes of other upstreams are in the last column.
 * Of unknown fate, a model POST that creates nothing that stays (`onlyCosts`) leaves it to its client whether it is sent again; all
 * others tell it not to.
 */
import type { RefusalScope, Throttle, UpstreamKind } from '../call.ts';
import type { CallDescription } from './estimate.policy.ts';

/** The properties of a call that decide whether it may be sent again. */
export type ResendCall = Pick<
  CallDescription,
  'idempotent' | 'hasOwnIdempotency' | 'makesImages' | 'onlyCosts'
> & {
  /** `rest`, `graphql` or `default`. */
  readonly callClass: string;
  /** The whole body is still in memory. */
  readonly replayable: boolean;
};

/**
 * How an attempt ended. `fate_unknown`: bytes went out, and no response came. `stale`: the same on a kept connection that the
 * upstream closed without a byte of response.
 */
export type AttemptOutcome =
  | {
      readonly kind: 'answered';
      readonly status: number;
      readonly throttle: Throttle | null;
      /** The upstream refused the credential that the call carried, and another one is there or on its way. */
      readonly isCredentialRenewed: boolean;
    }
  | { readonly kind: 'never_sent' | 'stale' | 'fate_unknown' };

/** Why a call is sent again. Each cause has its own bound. */
export type ResendCause =
  'credential' | 'rate' | 'hintless' | 'overload' | 'never_sent' | 'stale' | 'unknown';

/** Resends made so far, by cause. */
export type ResendHistory = Readonly<Partial<Record<ResendCause, number>>>;

export interface ResendInput {
  readonly kind: UpstreamKind;
  readonly call: ResendCall;
  readonly outcome: AttemptOutcome;
  /** What the last decision returned; empty for the first attempt. */
  readonly history: ResendHistory;
  /**
   * Other calls of the bucket that were sent after this one's first refusal without a hint have been served, and few were refused.
   * Absent: it is not known.
   */
  readonly othersPass?: boolean;
  /** The upstream is only observed: what it says of its limits goes to the client untouched. */
  readonly passesThrottles?: boolean;
  /** What is left of the call's own wait, milliseconds. */
  readonly remainingMs: number;
  /** The wait after a refusal that names none, as the upstream's dialect has it, milliseconds. Absent, `null`: a growing back-off. */
  readonly hintlessMs?: number | null;
  /** The longest time to try again that the call's client waits for, milliseconds; absent: less than a minute. */
  readonly honouredMs?: number;
}

/** Which other calls may not be sent before a time, and for how many milliseconds. */
interface Closing {
  /**
   * All with the `credential`; all of the `bucket`; this `call` alone, and those behind it in its lane; or `none`, where the upstream has
   * asked nobody to wait, and only our own back-off holds the call.
   */
  readonly closes: RefusalScope | 'none';
  /** For other calls than this one and its lane; 0 = not at all. */
  readonly closeMs: number;
}

export type ResendDecision = Closing &
  (
    | {
        readonly kind: 'resend';
        /** The next attempt may leave this many milliseconds after this response's head, not earlier. */
        readonly notBeforeMs: number;
        readonly cause: ResendCause;
        /** To be handed in with the next attempt of the same call. */
        readonly history: ResendHistory;
      }
    | {
        /** The outcome is final. A response goes to the client as it is; where none came, a refusal of ours does. A throttle closes all the same. */
        readonly kind: 'pass';
        /**
         * `false`: add `x-should-retry: false` unless the upstream says something of its own; repeating the call cannot succeed or could
         * run it twice. `null`: add nothing.
         */
        readonly shouldRetry: false | null;
      }
  );

/** The wait before a commerce REST call is sent again after a refusal without a hint, at least. Milliseconds. */
const minCommerceWaitMs = 60_000;
/** The first wait after a refusal without a hint, and the longest. Milliseconds. */
const firstHintlessMs = 1_000;
const maxHintlessMs = 30_000;
/** Most SDKs stop believing waits of a minute and more (or retry at once): such a refusal says "do not retry". */
const commonHonouredMs = 59_999;

/** `firstMs` × 2ⁿ, `maxMs` at most. */
const backoffMs = (firstMs: number, n = 0, maxMs = 8_000): number => Math.min(firstMs * 2 ** n, maxMs);

/** True when the call may be sent again though it may have run: running it twice is the same as once. */
const mayRunTwice = ({ idempotent, hasOwnIdempotency }: ResendCall): boolean =>
  idempotent || hasOwnIdempotency;

/** Of a response that refuses nothing. */
export const passedOn: ResendDecision = { kind: 'pass', shouldRetry: null, closes: 'none', closeMs: 0 };

/** Decides after each attempt. Total: every outcome has a decision. */
export function resend(input: ResendInput): ResendDecision {
  const { call, outcome, history } = input;
  if (outcome.kind === 'never_sent')
    return within(input, { cause: 'never_sent', maxResends: 2, waitMs: backoffMs(100, history.never_sent) });
  // Connections end when they have been idle, and the end may cross the next request: HTTP clients send idempotent ones again at once
  // (RFC 9112 §9.3.1). It is no fault of the upstream's.
  if (outcome.kind === 'stale' && mayRunTwice(call) && call.replayable && history.stale === undefined)
    return within(input, { cause: 'stale', maxResends: 1, waitMs: 0 });
  if (outcome.kind !== 'answered') return afterUnknownFate(input);
  const { status, throttle } = outcome;
  // A refused credential precedes the call: it did not run, so that any method may be sent again.
  if (outcome.isCredentialRenewed) return within(input, { cause: 'credential', maxResends: 2, waitMs: 0 });
  if (input.passesThrottles === true && (throttle !== null || status === 429)) return passOn(null);
  if (throttle?.kind === 'permanent' || throttle?.kind === 'secondary') return passOn(false);
  if (throttle?.kind === 'rate') return afterRate(input, throttle.waitMs, throttle.scope);
  // A 429 has not run the call, also where it names a shortage (`slow_down`).
  if (status === 429) return afterRate(input, throttle?.waitMs ?? null);
  if (throttle?.kind === 'overload') return afterOverload(input, throttle.waitMs);
  if (status === 503 || status === 529) return afterOverload(input, null);
  const isUnknown = [500, 502, 504].includes(status) || (status >= 520 && status <= 524);
  return isUnknown ? afterUnknownFate(input) : passOn(null);
}

/**
 * A stated wait is observed as often as the call's own wait allows: each refusal proves that the upstream did not run the call.
 * From the third refusal in a row the wait has a growing minimum, because other clients then seem to use the room first.
 */
function afterRate(
  input: ResendInput,
  statedMs: number | null,
  scope: RefusalScope = 'bucket',
): ResendDecision {
  const { rate = 0, hintless = 0 } = input.history;
  if (statedMs !== null && statedMs > 0) {
    const waitMs = Math.max(statedMs, rate < 2 ? 0 : backoffMs(250, rate - 2));
    return within(input, { cause: 'rate', maxResends: Infinity, waitMs, closes: scope });
  }
  // What is refused again while others pass lies in the call: nobody else waits for it.
  const isAlone = hintless > 0 && input.othersPass === true;
  // GraphQL points come back within seconds even where the refusal lacks the figures; a REST refusal without a hint is
  // an order limit or the like, which lasts a minute.
  const isSlow = input.kind === 'commerce' && input.call.callClass !== 'graphql';
  const fixedMs = input.hintlessMs ?? (isSlow ? minCommerceWaitMs : null);
  return within(input, {
    cause: 'hintless',
    maxResends: isSlow ? 2 : isAlone ? 3 : Infinity,
    waitMs: fixedMs ?? backoffMs(firstHintlessMs, hintless, maxHintlessMs),
    closes: isAlone ? 'call' : scope,
    closeMs: fixedMs ?? firstHintlessMs,
  });
}

/**
 * An overloaded upstream has normally not run the call, but nothing proves it: sent again are only calls that may run twice, and all
 * calls of a language model. At worst such a call is billed twice, or creates a batch or a file twice.
 */
function afterOverload(input: ResendInput, statedMs: number | null): ResendDecision {
  const { call, kind, history } = input;
  if (!mayRunTwice(call) && kind !== 'language-model')
    return passOn(false, { closes: statedMs === null ? 'none' : 'bucket', closeMs: statedMs ?? 0 });
  const most = call.makesImages ? 1 : 2;
  return within(input, {
    cause: 'overload',
    maxResends: (statedMs ?? 0) > 0 ? Infinity : most,
    waitMs: Math.max(statedMs ?? 0, backoffMs(1_000, history.overload)),
    closes: statedMs === null ? 'call' : 'bucket',
  });
}

/**
 * A reset, a timeout or a 500, 502, 504: the call may have run. Where repeating it costs money and not correctness, its client is not
 * told to leave it: SDKs repeat such a call by themselves. A job, a file or a thread would be created twice.
 */
const afterUnknownFate = (input: ResendInput): ResendDecision =>
  mayRunTwice(input.call)
    ? within(input, { cause: 'unknown', maxResends: 1, waitMs: 500 })
    : passOn(input.call.onlyCosts ? null : false);

/**
 * A resend as the table proposes it, while the bound of its cause, the body and the wait of the call allow; else the outcome is passed on.
 * What needs no wait is sent again whatever is left. `closeMs`: by default as long as this call waits.
 */
function within(
  { history, call, outcome, remainingMs, honouredMs = commonHonouredMs }: ResendInput,
  {
    cause,
    maxResends,
    waitMs,
    closes = 'none',
    closeMs = waitMs,
  }: Partial<Closing> & {
    readonly cause: ResendCause;
    readonly maxResends: number;
    readonly waitMs: number;
  },
): ResendDecision {
  const closing = { closes, closeMs: closes === 'none' ? 0 : closeMs };
  // The client still has its body.
  if (!call.replayable) return passOn(outcome.kind === 'never_sent' ? null : false, closing);
  const { [cause]: made = 0 } = history;
  if (made >= maxResends || waitMs > Math.max(0, remainingMs))
    return passOn(closes !== 'none' && waitMs > honouredMs ? false : null, closing);
  const isForOthers = closes === 'bucket' || closes === 'credential';
  return {
    kind: 'resend',
    notBeforeMs: waitMs,
    closes,
    closeMs: isForOthers ? closeMs : 0,
    cause,
    history: { ...history, [cause]: made + 1 },
  };
}

/** The decision to pass the outcome on to the client. */
const passOn = (
  shouldRetry: false | null,
  closing: Closing = { closes: 'none', closeMs: 0 },
): ResendDecision => ({ kind: 'pass', shouldRetry, ...closing });
