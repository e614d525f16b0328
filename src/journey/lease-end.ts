/**
 * How a lease ends: each way in which an attempt can end has one function here, and each settles its lease once.
 *
 * Owns: how an attempt's end is reported to the limiter. Does not own: whether to resend (`dispatch/resend.policy.ts`), what
 * the client gets (`response.ts`).
 */
import { Buffer } from 'node:buffer';
import type { Readable } from 'node:stream';
import type { Lease } from '../admission/ticket.ts';
import type { Costs, Feedback } from '../call.ts';
import { statusOf, type AttemptResult } from '../dispatch/dispatcher.ts';
import { readAhead } from '../dispatch/inspect.ts';
import type { ResendDecision, ThrottleScope } from '../dispatch/resend.policy.ts';
import { spentOf } from '../dispatch/feedback/usage.policy.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import type { Lesson, Settlement } from '../limiter/limiter.ts';
import type { Answered } from './response.ts';

/** How long a throttle inside a stream that names no time closes its bucket, milliseconds. */
const lateThrottleMs = 1_000;

export type PassDecision = Extract<ResendDecision, { kind: 'pass' }>;
export type SendAgainDecision = Extract<ResendDecision, { kind: 'resend' }>;
type Throttled = Extract<Settlement, { kind: 'throttled' }>;

/**
 * How long an upstream may need to notice that a connection was closed, milliseconds. A capped lane sends nothing for this time:
 * its next call uses another connection, and could overlap with the call that was given up.
 */
const closingMs = 20;
const closing: Settlement = { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: closingMs };

/**
 * Nothing was sent: this process noticed its grant too late (self-fence: another replica may hold the lane by now), or the call
 * has no credential yet. The lane sleeps for `sleepMs`.
 */
export function returnGrant(lease: Lease, sleepMs = 0): void {
  lease.settle({ kind: 'returned', sleepMs, because: 'backoff' }, null);
}

/** Puts the ticket back into its lane, at the same position. A call that was never sent gets its units and its slot back. */
export function requeue(
  lease: Lease,
  result: AttemptResult,
  { closes, closeMs, notBeforeMs }: SendAgainDecision,
): void {
  if (result.kind === 'failed' && result.error.neverSent)
    return lease.settle({ kind: 'returned', sleepMs: notBeforeMs, because: 'backoff' }, null);
  const sleepMs = closeMs >= notBeforeMs ? 0 : notBeforeMs;
  const lesson = result.kind === 'answered' ? result.lesson() : null;
  lease.settle({ kind: 'throttled', closeMs, ...closedBy(closes), requeue: true, sleepMs }, lesson);
}

const closedBy = (closes: ThrottleScope | undefined): Pick<Throttled, 'closesCredential'> =>
  closes === 'credential' ? { closesCredential: true } : {};

/** The final attempt broke: settles the lease by what is known of the call's fate. `safe`: the call changes nothing upstream. */
export function endBroken(
  lease: Lease,
  { neverSent }: TransportError,
  { safe, capped }: { readonly safe: boolean; readonly capped: boolean },
): void {
  if (neverSent) lease.settle({ kind: 'dropped' }, null);
  else if (safe) lease.settle(capped ? closing : { kind: 'succeeded', spent: null }, null);
  else lease.settle({ kind: 'unknown' }, null);
}

/**
 * The response is final. The lease of an uncapped lane ends with the response's head, the lease of a capped lane with the last byte that
 * the upstream sends, however slowly the client reads. Where the body states what the call has spent, or may still turn into a
 * throttle, the lease ends with the response. Returns the body to be passed on; `done` is to be called at the response's end.
 */
export function endAnswered(
  lease: Lease,
  answered: Answered,
  { closes, closeMs, capped }: PassDecision & { readonly capped: boolean },
): { readonly body: Buffer | Readable; readonly done: () => void } {
  const { body } = answered;
  const done = (): void => lease.settle({ kind: 'succeeded', spent: spent(answered) }, null);
  if (closeMs > 0 && (closes === 'bucket' || closes === 'credential')) {
    const settlement = {
      kind: 'throttled',
      closeMs,
      ...closedBy(closes),
      requeue: false,
      sleepMs: 0,
    } as const;
    lease.settle(settlement, answered.lesson());
  } else if (capped && !Buffer.isBuffer(body)) {
    lease.learn(answered.lesson());
    let refusal: Feedback | null = null;
    answered.bodyFeedback?.onThrottle((feedback) => (refusal = feedback));
    const over = (): void => {
      if (refusal !== null) lease.settle(...lateThrottle(refusal, answered.lesson()));
      else if (body.readableEnded) done();
      else lease.settle(closing, null);
    };
    return { body: readAhead(body, over), done: over };
  } else if (answered.bodyFeedback !== null) {
    lease.learn(answered.lesson());
    answered.bodyFeedback.onThrottle((feedback) =>
      lease.settle(...lateThrottle(feedback, answered.lesson())),
    );
  } else {
    lease.settle({ kind: 'succeeded', spent: spent(answered) }, answered.lesson());
  }
  return { body, done };
}

const spent = (answered: Answered): Costs | null =>
  spentOf(statusOf(answered), answered.feedback, answered.bodyFeedback?.feedback() ?? null);

/** What the upstream says that it took for the call, also of meters whose level it states; `null` = it does not say. */
export const chargeOf = (answered: Answered): Costs | null =>
  spentOf(
    statusOf(answered),
    { ...answered.feedback, meters: [] },
    answered.bodyFeedback?.feedback() ?? null,
  );

/**
 * A stream that turned into a throttle closes the bucket for all workspaces; its own client has seen the event. What the event
 * states holds now, however long ago the head came. `lesson`: of the response, with its ages as of the event.
 */
export function lateThrottle(feedback: Feedback, lesson: Lesson): [Settlement, Lesson] {
  const closeMs = feedback.throttle?.waitMs ?? lateThrottleMs;
  const settlement: Settlement = { kind: 'throttled', closeMs, requeue: false, sleepMs: 0 };
  return [settlement, { ...lesson, feedback, headAgoMs: 0 }];
}
