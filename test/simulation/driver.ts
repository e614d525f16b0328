/** Plays the gateway for one call: enter, wait for the grant, send, judge the response, settle, and go back to the lane if the upstream has not run it. */
import { getEventListeners } from 'node:events';
import { callerKey, ceilingKey, ticketId, type TicketId } from '../../src/ids.ts';
import { passageMs, repliesAhead } from '../../src/admission/queued-call.ts';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Feedback } from '../../src/call.ts';
import {
  type AttemptOutcome,
  resend,
  type ResendCall,
  type ResendHistory,
} from '../../src/dispatch/resend.policy.ts';
import { Refusal } from '../../src/errors.ts';
import { ceilingUnder } from '../../src/admission/buckets.policy.ts';
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import { returnGraceMs, type Lesson } from '../../src/limiter/limiter.ts';
import { callOf } from '../support/admission-queue.ts';
import type { Chance } from './chance.ts';
import type { BucketPlan, CallPlan, ReturnPlan } from './plan.ts';
import type { Call, ReplicaLedger } from './replicas/ledger.ts';
import type { Replica } from './replicas/replica.ts';
import { entrySettingsOf } from './rules.ts';
import type { Upstream } from './upstream.ts';

const maxEverQueued = 1_000_000;
/** The gateway gives up on a response after this. */
const responseLimitMs = 5_000;

/** A position is kept for so long after the told time. Milliseconds. */
export const reserveMs = 10_000;

/** The last moment at which the call may be sent: its wait is over then, or the time in which stores let it pass. */
export const sendableUntil = ({ plan, enteredAt, enteredMs, reservation }: Call): number =>
  enteredAt +
  Math.max(
    plan.maxWaitMs,
    reservation === undefined ? 0 : returnGraceMs,
    passageMs + (1 + repliesAhead) * enteredMs,
  );

export interface Scene {
  readonly call: Call;
  readonly replica: Replica;
  readonly chance: Chance;
  readonly ledger: ReplicaLedger;
  readonly upstream: Upstream;
  readonly bucket: BucketPlan;
  outside(at: number, run: () => void): void;
  /** How long the process may stop between its last check of the lease and the write. Milliseconds. */
  freeze(): number;
  /** The client of the refused call has a ticket, and was told to come back after so long. */
  comesBack(ticket: TicketId, retryInMs: number): void;
}

const settingsOf = ({ ledger, replica, call }: Scene): CallSettings =>
  entrySettingsOf(ledger.rules.of(replica.name), call.plan.lane.key);

/** What came of one sending. `answeredAt` and `sentAt` are the process' own times. */
interface Attempt {
  readonly outcome: AttemptOutcome;
  readonly feedback?: Feedback;
  readonly lesson?: () => Lesson;
  readonly bodyMs?: number;
}

export async function drive(scene: Scene): Promise<void> {
  const { call, ledger } = scene;
  const { process, queue } = scene.replica;
  const { plan } = call;
  const gone = new AbortController();
  if (plan.leavesAt < Infinity) process.arrives(plan.leavesAt, () => gone.abort(new Error('client gone')));
  call.enteredAt = scene.ledger.now;
  call.state = 'entering';
  const { caller, reserves } = plan;
  const { maxQueued, ...settings } = settingsOf(scene);
  const [asked] = callOf(process, plan.id, {
    ...settings,
    mode: ledger.plan.mode ?? 'enforce',
    bucket: plan.lane.bucket,
    lane: plan.lane.key,
    workspace: call.workspace.name,
    maxQueued: plan.isLetIn ? maxEverQueued : maxQueued,
    urgency: plan.urgency,
    callClass: plan.callClass,
    costs: plan.costs,
    document: plan.document?.name ?? null,
    maxWaitMs: plan.maxWaitMs,
    maxWaitIfAskedMs: Infinity,
    stillValid: () => scene.ledger.now < call.workspace.revokedAt,
    ...(caller === undefined ? {} : { caller: callerKey(caller) }),
    ...(call.reservation === undefined ? {} : { reservation: call.reservation }),
  });
  const ceiling = ceilingUnder(ceilingKey(call.workspace.name), settings);
  const request: AdmissionRequest = {
    ...asked,
    ceiling,
    ...(reserves === undefined ? {} : { reserving: reservingOf(reserves) }),
  };
  let ticket: Ticket | null = null;
  let how: string;
  try {
    ticket = await queue.enter(request, gone.signal);
    call.enteredMs = scene.ledger.now - call.enteredAt;
    how = await journey(scene, ticket, gone.signal);
  } catch (failure) {
    const isReserving = request.reserving !== undefined && !gone.signal.aborted;
    const reserved = isReserving ? await queue.reserve(request, failure) : failure;
    how = refusalOf(scene, reserved, gone.signal);
  } finally {
    ticket?.leave();
  }
  ledger.ended(plan.id, how);
  if (getEventListeners(gone.signal, 'abort').length > 0)
    ledger.broken('10', `${plan.id} left a listener behind`);
}

const reservingOf = ({ maxReserved }: ReturnPlan): NonNullable<AdmissionRequest['reserving']> => ({
  begins: true,
  lastsMs: reserveMs,
  maxReserved,
  ticketOf: (id) => id,
});

export const sentCallOf = ({ safe, callClass }: CallPlan): ResendCall => ({
  idempotent: safe,
  replayable: true,
  callClass,
  hasOwnIdempotency: false,
  makesImages: false,
  onlyCosts: false,
});

async function journey(scene: Scene, ticket: Ticket, gone: AbortSignal): Promise<string> {
  const { call, ledger } = scene;
  let history: ResendHistory = {};
  let attempts = 0;
  for (;;) {
    call.state = 'waiting';
    const lease = await ticket.whenGranted();
    if (!lease.holds()) {
      ledger.reach('lease lost before sending');
      ledger.suspected('stalled');
      lease.settle({ kind: 'returned', sleepMs: 0, because: 'backoff' }, null);
      continue;
    }
    attempts += 1;
    ledger.sent(call.plan.id, lease.grant.lease);
    const attempt = await send(scene, attempts, gone);
    const decision = resend({
      kind: 'generic',
      call: sentCallOf(call.plan),
      outcome: attempt.outcome,
      history,
      passesThrottles: ledger.plan.mode === 'observe',
      remainingMs: gone.aborted ? 0 : ticket.remainingMs(),
    });
    const lesson = attempt.lesson?.() ?? null;
    if (decision.kind === 'pass') {
      if (ledger.plan.mode === 'observe') call.would = await ticket.would();
      finish(scene, lease, attempt, decision.closeMs, lesson);
      return attempt.outcome.kind === 'answered' && attempt.outcome.throttle === null ? 'answered' : 'failed';
    }
    history = decision.history;
    ledger.reach(attempt.outcome.kind === 'answered' ? 'absorbed' : 'sent again after a failure');
    if (attempt.outcome.kind === 'never_sent') {
      lease.settle({ kind: 'returned', sleepMs: decision.notBeforeMs, because: 'backoff' }, null);
      continue;
    }
    const { closes, notBeforeMs } = decision;
    const [closeMs, sleepMs] = closes === 'bucket' ? [notBeforeMs, 0] : [0, notBeforeMs];
    if (closes === 'bucket') ledger.closes(call.plan.id, closeMs);
    lease.settle({ kind: 'throttled', closeMs, requeue: true, sleepMs }, lesson);
  }
}

function finish(
  scene: Scene,
  lease: Lease,
  { outcome, feedback, bodyMs = 0 }: Attempt,
  closeMs: number,
  lesson: Lesson | null,
): void {
  const { plan } = scene.call;
  if (outcome.kind === 'never_sent') lease.settle({ kind: 'dropped' }, null);
  else if (outcome.kind === 'fate_unknown') {
    lease.settle(plan.safe ? { kind: 'succeeded', spent: null } : { kind: 'unknown' }, null);
  } else if (closeMs > 0) {
    scene.ledger.closes(plan.id, closeMs);
    lease.settle({ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, lesson);
  } else {
    const actual = feedback?.actualCost;
    const spent = actual === undefined ? null : { cost: actual };
    if (lesson !== null && bodyMs > 0 && settingsOf(scene).maxInFlight !== null) {
      lease.learn(lesson);
      const end = (): void => lease.settle({ kind: 'succeeded', spent: null }, null);
      return scene.replica.process.arrives(scene.ledger.now + bodyMs, end);
    }
    lease.settle({ kind: 'succeeded', spent }, lesson);
  }
  // A second settlement must change nothing.
  if (scene.chance.happens(0.3)) lease.settle({ kind: 'dropped' }, null);
}

/** One sending: the way there, the upstream, the way back. Calls of one lane arrive in the order of sending. */
function send(scene: Scene, attempt: number, gone: AbortSignal): Promise<Attempt> {
  const { call, chance, upstream, bucket, ledger } = scene;
  const { process, lastArrival } = scene.replica;
  const { plan } = call;
  const fate = attempt === 1 ? plan.fate : 'answered';
  const sentAt = scene.ledger.now;
  const leavesAt = sentAt + scene.freeze();
  const arrivesAt = Math.max(leavesAt + chance.between(0.3, 20), lastArrival.get(plan.lane.key) ?? 0);
  const { promise, resolve } = Promise.withResolvers<Attempt>();
  const failed = (kind: 'never_sent' | 'fate_unknown') => (): void => resolve({ outcome: { kind } });
  let arrived = false;
  if (fate === 'unsent') {
    process.arrives(arrivesAt, failed('never_sent'));
    return promise;
  }
  lastArrival.set(plan.lane.key, arrivesAt);
  const giveUp = process.after(responseLimitMs, failed('fate_unknown'));
  const abandon = (): void => {
    // The limiter hears that it is over before the upstream has even counted it: its figures are blurred for a moment.
    if (!arrived) ledger.blur(plan.lane.bucket);
    failed('fate_unknown')();
  };
  gone.addEventListener('abort', abandon, { once: true });
  const respond = (feedback: Feedback, status: number, bodyMs: number): void => {
    process.arrives(scene.ledger.now + chance.between(0.3, 20), () => {
      const headAt = scene.ledger.now;
      resolve({
        outcome: { kind: 'answered', status, throttle: feedback.throttle, isCredentialRenewed: false },
        feedback,
        lesson: () => ({
          feedback,
          sentAgoMs: scene.ledger.now - sentAt,
          headAgoMs: scene.ledger.now - headAt,
        }),
        bodyMs,
      });
    });
  };
  scene.outside(arrivesAt, () => {
    arrived = true;
    const now = scene.ledger.now;
    if (fate === 'secondary' || fate === 'overload' || fate === 'permanent') {
      upstream.described?.hold(now);
      const throttle =
        fate === 'permanent'
          ? ({ kind: fate, reason: 'too_large', waitMs: null } as const)
          : ({ kind: fate, waitMs: chance.pick([null, 2_000]) } as const);
      const refuse = (): void => respond({ meters: [], throttle }, fate === 'overload' ? 503 : 429, 0);
      return fate === 'permanent' ? refuse() : scene.outside(now + plan.serviceMs, refuse);
    }
    const verdict = upstream.arrive(plan, now);
    ledger.note(`upstream ${verdict.kind} ${plan.id}`);
    if (verdict.kind === 'refused') {
      const { described } = upstream;
      const isExcused = described?.isChanging(now) === true && !described.refusesThroughout(now);
      if (ledger.isExact(bucket) && !isExcused) ledger.broken('2', `${plan.id} refused by a calm upstream`);
      return respond(verdict.feedback, 429, 0);
    }
    const bodyMs = settingsOf(scene).maxInFlight === null ? 0 : plan.bodyMs;
    ledger.counted(call, plan.serviceMs + bodyMs);
    call.executed += 1;
    if (call.executed > 1 && !plan.safe) ledger.broken('8', `${plan.id} ran twice`);
    if (fate === 'lost') return;
    scene.outside(now + plan.serviceMs, () => {
      const points = (plan.costs.cost ?? 0) > 0;
      const reported = points ? upstream.finish(plan, scene.ledger.now) : verdict.feedback;
      respond(
        bucket.reports === 'nothing' && points ? { ...reported, meters: [] } : reported,
        200,
        plan.bodyMs,
      );
    });
  });
  return promise.finally(() => {
    giveUp();
    gone.removeEventListener('abort', abandon);
  });
}

function refusalOf(scene: Scene, failure: unknown, gone: AbortSignal): string {
  const { ledger, call } = scene;
  if (gone.aborted && (failure === gone.reason || failure instanceof Refusal)) {
    ledger.reach('client left while waiting');
    return 'client gone';
  }
  if (!(failure instanceof Refusal)) {
    ledger.broken('10', `${call.plan.id} ended in ${String(failure)}`);
    return 'bug';
  }
  ledger.reach(failure.code);
  const retryInMs = failure.details.retryInMs ?? 0;
  ledger.refused(call.plan.id, failure.code, retryInMs);
  const { ticket: kept } = failure.details;
  if (kept !== undefined) {
    ledger.reach('position kept');
    scene.comesBack(ticketId(kept), retryInMs);
  }
  const late = scene.ledger.now - call.enteredAt;
  if (/^wait_(?:too_long|expired)$/.test(failure.code) && late + retryInMs <= call.plan.maxWaitMs)
    ledger.broken('10', `${call.plan.id} refused though ${retryInMs} ms fit its wait`);
  return `${failure.code} ${retryInMs.toFixed(0)}`;
}
