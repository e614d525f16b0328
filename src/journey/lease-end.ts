/**
 * How a lease ends: each way in which an attempt can end has one function here, and each settles its lease once.
 *
 * Owns: what the limiter hears of an attempt's end. Refuses to own: whether to resend (`dispatch/resend.policy.ts`), what
 * the client gets (`answer.ts`).
 */
import { Buffer } from 'node:buffer';
import type { Readable } from 'node:stream';
import type { Lease } from '../admission/ticket.ts';
import type { Costs, Feedback } from '../call.ts';
import type { AttemptResult } from '../dispatch/attempt.ts';
import { readAhead } from '../dispatch/inspect.ts';
import type { ResendDecision } from '../dispatch/resend.policy.ts';
import type { TransportError } from '../dispatch/transport-error.ts';
import type { Lesson, Settlement } from '../limiter/limiter.ts';
import type { Answered } from './answer.ts';

/** How long a throttle inside a stream that names no time closes its bucket, milliseconds. */
const lateThrottleMs = 1_000;

export type Passed = Extract<ResendDecision, { kind: 'pass' }>;
export type Resent = Extract<ResendDecision, { kind: 'resend' }>;

/**
 * How long an upstream may need to notice that a connection was closed, milliseconds. A capped lane rests so long: its
 * next call comes over another connection, and would meet the one that was given up.
 */
const closingMs = 20;
const closing: Settlement = { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: closingMs };

/** Self-fence: this process noticed its grant too late, another replica may hold the lane by now. Nothing was sent. */
export function returnGrant(lease: Lease): void {
  lease.settle({ kind: 'returned', sleepMs: 0, because: 'backoff' }, null);
}

/** Back into the lane, at the same position. What was never sent has used up nothing. */
export function requeue(lease: Lease, result: AttemptResult, { closes, notBeforeMs }: Resent): void {
  if (result.kind === 'failed' && result.error.neverSent)
    return lease.settle({ kind: 'returned', sleepMs: notBeforeMs, because: 'backoff' }, null);
  const closeMs = closes === 'bucket' ? notBeforeMs : 0;
  const sleepMs = closes === 'bucket' ? 0 : notBeforeMs;
  const lesson = result.kind === 'answered' ? result.lesson() : null;
  lease.settle({ kind: 'throttled', closeMs, requeue: true, sleepMs }, lesson);
}

/** The final attempt broke: the lease ends as far as its fate is known. `safe`: what is left of it changes nothing. */
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
 * The answer is final. An uncapped lane's lease ends with the answer's head; a capped lane's with the last byte the
 * upstream sends, however slowly the client reads; that of an event stream, which may yet turn into a throttle, with
 * the answer. Returns the body to be passed on; `done` is to be called at the answer's end.
 */
export function endAnswered(
  lease: Lease,
  answered: Answered,
  { closes, closeMs, capped }: Passed & { readonly capped: boolean },
): { readonly body: Buffer | Readable; readonly done: () => void } {
  const { body } = answered;
  const done = (): void => lease.settle({ kind: 'succeeded', spent: spentOf(answered) }, null);
  if (closeMs > 0 && closes === 'bucket') {
    lease.settle({ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, answered.lesson());
  } else if (capped && !Buffer.isBuffer(body)) {
    lease.learn(answered.lesson());
    const over = (): void => (body.readableEnded ? done() : lease.settle(closing, null));
    return { body: readAhead(body, over), done: over };
  } else if (answered.onLateThrottle !== null) {
    lease.learn(answered.lesson());
    answered.onLateThrottle((feedback) => lease.settle(...lateThrottle(feedback, answered)));
  } else {
    lease.settle({ kind: 'succeeded', spent: spentOf(answered) }, answered.lesson());
  }
  return { body, done };
}

/** A call that was refused: it counts as a call, and produced nothing. */
const nothingMade: Costs = { tokens: 0, tokens_day: 0, images: 0 };

/**
 * Final charge of a call where it is known: GraphQL refunds what was not used. A call that the upstream refused (4xx)
 * made no tokens; often such an answer states no level, and what the call reserved would stay taken.
 */
function spentOf(answered: Answered): Costs | null {
  const { actualCost } = answered.late() ?? answered.feedback;
  if (actualCost !== undefined && actualCost !== null) return { cost: actualCost };
  const { status } = answered.head;
  return status >= 400 && status < 500 ? nothingMade : null;
}

/** A stream that turned into a throttle closes the bucket for all workspaces; its own client has seen the event. */
function lateThrottle(feedback: Feedback, answered: Answered): [Settlement, Lesson] {
  const closeMs = feedback.throttle?.waitMs ?? lateThrottleMs;
  const lesson = { ...answered.lesson(), feedback };
  return [{ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, lesson];
}
