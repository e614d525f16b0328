/** Plays the gateway for one call: enter, wait for the grant, send, judge the response, settle, and go back to the lane if the upstream has not run it. */
import { getEventListeners } from 'node:events';
import { bucketKey, callerKey, ceilingKey, laneKey, ticketId, type TicketId } from '../../src/ids.ts';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
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
import { ceilingUnder } from '../../src/limiter/policy/ceiling.policy.ts';
import type { CancelTimer, Clock } from '../../src/clock.ts';
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import { returnGraceMs, type Lesson } from '../../src/limiter/limiter.ts';
import type { Chance } from './chance.ts';
import type { BucketPlan, CallPlan, ReturnPlan, WorkspacePlan } from './plan.ts';
import type { Upstream } from './upstream.ts';

/** More calls than ever wait in one lane of a history. */
const maxEverQueued = 1_000_000;
/** The gateway gives up on a response after this. */
const responseLimitMs = 5_000;

/** The time of the process that drives the call, and of the world around it. */
export interface SceneClock extends Clock {
  /** Something reaches the process. */
  arrives(at: number, run: () => void): void;
  /** Something happens outside. */
  outside(at: number, run: () => void): CancelTimer;
}

/** What the driver writes of a call. */
export interface DrivenCall {
  readonly plan: CallPlan;
  readonly workspace: WorkspacePlan;
  state: 'new' | 'entering' | 'waiting' | 'sent' | 'ended';
  enteredAt: number;
  /** How long it took until it stood in its lane or was granted. Milliseconds. */
  enteredMs: number;
  executed: number;
  /** What its client comes back for. */
  reservation?: TicketId;
}

/** A position is kept for so long after the told time. Milliseconds. */
export const reserveMs = 10_000;

/** The last moment at which the call may be sent: its wait is over then, or the time in which stores let it pass. */
export const sendableUntil = ({ plan, enteredAt, enteredMs, reservation }: DrivenCall): number =>
  enteredAt +
  Math.max(
    plan.maxWaitMs,
    reservation === undefined ? 0 : returnGraceMs,
    passageMs + (1 + repliesAhead) * enteredMs,
  );

/** The events that the driver reports to the ledger. */
export interface DriverLedger {
  note(now: number, text: string | (() => string)): void;
  reach(state: string): void;
  broken(now: number, invariant: string, text: string): void;
  sent(id: string, token: string, now: number): void;
  ended(id: string, how: string, now: number): void;
  /** The call's process says now that a response closes the bucket for so long. */
  closes?(id: string, closeMs: number, now: number): void;
  /** The upstream has counted the call that the lease let go. */
  counted(token: string, call: DrivenCall, busyMs: number): void;
  /** The process noticed that its lease had run out before it was used. */
  suspected(reason: string): void;
  /** A call was refused with a time after which to retry. */
  refused(id: string, code: string, retryInMs: number, now: number): void;
  /** A call was given up before it had arrived. */
  blur(bucket: string): void;
  /** The upstream does what it states, and a grant is sent within the jitter that the meters allow for. */
  isExact(bucket: BucketPlan): boolean;
}

export interface Scene {
  readonly clock: SceneClock;
  readonly chance: Chance;
  readonly ledger: DriverLedger;
  readonly queue: AdmissionQueue;
  /** What the clock of the process shows, which counts from elsewhere. Milliseconds. */
  readonly ownTime: () => number;
  readonly upstream: Upstream;
  readonly bucket: BucketPlan;
  /** What configuration says of the call in its process now. */
  readonly settings: () => CallSettings;
  /** Keeps the sends of a lane in the order of their arrival upstream. */
  readonly lastArrival: Map<string, number>;
  /** How long the process may stop between its last check of the lease and the write. Milliseconds. */
  readonly freeze?: () => number;
  /** The client of a refused call has a ticket, and was told to come back after so long. */
  readonly comesBack?: (call: DrivenCall, ticket: TicketId, retryInMs: number) => void;
}

/** What came of one sending. `answeredAt` and `sentAt` are the process' own times. */
interface Attempt {
  readonly outcome: AttemptOutcome;
  readonly feedback: Feedback | null;
  readonly lesson: (() => Lesson) | null;
  readonly bodyMs: number;
}

export async function drive(scene: Scene, call: DrivenCall): Promise<void> {
  const { clock, ledger, queue } = scene;
  const { plan } = call;
  const gone = new AbortController();
  if (plan.leavesAt < Infinity) clock.arrives(plan.leavesAt, () => gone.abort(new Error('client gone')));
  call.enteredAt = clock.monotonic();
  call.state = 'entering';
  const settings = scene.settings();
  const { setting, weight, maxInFlight, maxQueued, ceilingTag, perMinute } = settings;
  let ticket: Ticket | null = null;
  let how: string;
  const request: AdmissionRequest = {
    admission: {
      ticket: ticketId(plan.id),
      bucket: bucketKey(plan.lane.bucket),
      setting,
      lane: laneKey(plan.lane.key),
      weight,
      maxInFlight,
      perMinute,
      maxQueued: plan.isLetIn ? maxEverQueued : maxQueued,
      urgency: plan.urgency,
      callClass: plan.callClass,
      costs: plan.costs,
      document: plan.document?.name ?? null,
      ceilingTag,
      ...(plan.caller === undefined ? {} : { caller: callerKey(plan.caller) }),
      ...(call.reservation === undefined ? {} : { reservation: call.reservation }),
    },
    ceiling: ceilingUnder(ceilingKey(call.workspace.name), settings),
    mode: 'enforce',
    yielded: null,
    arrivedAt: scene.ownTime(),
    workspaceId: call.workspace.name,
    subject: {
      upstream: 'upstream',
      credential: '',
      bucket: bucketKey(plan.lane.bucket),
      host: '',
      model: null,
      operation: '',
    },
    maxWaitMs: plan.maxWaitMs,
    maxWaitIfAskedMs: Infinity,
    stillValid: () => clock.monotonic() < call.workspace.revokedAt,
    ...(plan.reserves === undefined ? {} : { reserving: reservingOf(plan.reserves) }),
  };
  try {
    ticket = await queue.enter(request, gone.signal);
    call.enteredMs = clock.monotonic() - call.enteredAt;
    how = await journey(scene, call, ticket, gone.signal);
  } catch (failure) {
    const isReserving = request.reserving !== undefined && !gone.signal.aborted;
    const reserved = isReserving ? await queue.reserve(request, failure) : failure;
    how = refusalOf(scene, call, reserved, gone.signal);
  } finally {
    ticket?.leave();
  }
  ledger.ended(plan.id, how, clock.monotonic());
  if (getEventListeners(gone.signal, 'abort').length > 0) {
    ledger.broken(clock.monotonic(), '10', `${plan.id} left a listener behind`);
  }
}

const reservingOf = ({ maxReserved }: ReturnPlan): NonNullable<AdmissionRequest['reserving']> => ({
  begins: true,
  lastsMs: reserveMs,
  maxReserved,
  ticketOf: (id) => id,
});

/** What the resend policy asks of a call. */
export const sentCallOf = ({ safe, callClass }: CallPlan): ResendCall => ({
  idempotent: safe,
  replayable: true,
  callClass,
  hasOwnIdempotency: false,
  makesImages: false,
  onlyCosts: false,
});

async function journey(scene: Scene, call: DrivenCall, ticket: Ticket, gone: AbortSignal): Promise<string> {
  const { clock, ledger } = scene;
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
    ledger.sent(call.plan.id, lease.grant.lease, clock.monotonic());
    const attempt = await send(scene, call, lease.grant.lease, attempts, gone);
    const decision = resend({
      kind: 'generic',
      call: sentCallOf(call.plan),
      outcome: attempt.outcome,
      history,
      remainingMs: gone.aborted ? 0 : ticket.remainingMs(),
    });
    const lesson = attempt.lesson?.() ?? null;
    if (decision.kind === 'pass') {
      finish(scene, call, lease, attempt, decision.closeMs, lesson);
      return attempt.outcome.kind === 'answered' && attempt.outcome.throttle === null ? 'answered' : 'failed';
    }
    history = decision.history;
    ledger.reach(attempt.outcome.kind === 'answered' ? 'absorbed' : 'sent again after a failure');
    if (attempt.outcome.kind === 'never_sent') {
      lease.settle({ kind: 'returned', sleepMs: decision.notBeforeMs, because: 'backoff' }, null);
      continue;
    }
    const closes = decision.closes === 'bucket';
    if (closes) ledger.closes?.(call.plan.id, decision.notBeforeMs, clock.monotonic());
    lease.settle(
      {
        kind: 'throttled',
        closeMs: closes ? decision.notBeforeMs : 0,
        requeue: true,
        sleepMs: closes ? 0 : decision.notBeforeMs,
      },
      lesson,
    );
  }
}

function finish(
  scene: Scene,
  call: DrivenCall,
  lease: Lease,
  attempt: Attempt,
  closeMs: number,
  lesson: Lesson | null,
): void {
  const { outcome } = attempt;
  if (outcome.kind === 'never_sent') lease.settle({ kind: 'dropped' }, null);
  else if (outcome.kind === 'fate_unknown') {
    if (call.plan.safe) lease.settle({ kind: 'succeeded', spent: null }, null);
    else lease.settle({ kind: 'unknown' }, null);
  } else if (closeMs > 0) {
    scene.ledger.closes?.(call.plan.id, closeMs, scene.clock.monotonic());
    lease.settle({ kind: 'throttled', closeMs, requeue: false, sleepMs: 0 }, lesson);
  } else {
    const actual = attempt.feedback?.actualCost;
    const spent = actual === undefined ? null : { cost: actual };
    if (lesson !== null && attempt.bodyMs > 0 && scene.settings().maxInFlight !== null) {
      lease.learn(lesson);
      scene.clock.arrives(scene.clock.monotonic() + attempt.bodyMs, () => {
        lease.settle({ kind: 'succeeded', spent: null }, null);
      });
      return;
    }
    lease.settle({ kind: 'succeeded', spent }, lesson);
  }
  // A second settlement must change nothing.
  if (scene.chance.happens(0.3)) lease.settle({ kind: 'dropped' }, null);
}

/** One sending: the way there, the upstream, the way back. Calls of one lane arrive in the order of sending. */
function send(
  scene: Scene,
  call: DrivenCall,
  token: string,
  attempt: number,
  gone: AbortSignal,
): Promise<Attempt> {
  const { clock, chance, upstream, bucket } = scene;
  const { plan } = call;
  const fate = attempt === 1 ? plan.fate : 'answered';
  const sentAt = clock.monotonic();
  const leavesAt = sentAt + (scene.freeze?.() ?? 0);
  const arrivesAt = Math.max(leavesAt + chance.between(0.3, 20), scene.lastArrival.get(plan.lane.key) ?? 0);
  const { promise, resolve } = Promise.withResolvers<Attempt>();
  const failed = (kind: 'never_sent' | 'fate_unknown') => (): void =>
    resolve({ outcome: { kind }, feedback: null, lesson: null, bodyMs: 0 });
  let arrived = false;
  if (fate === 'unsent') {
    clock.arrives(arrivesAt, failed('never_sent'));
    return promise;
  }
  scene.lastArrival.set(plan.lane.key, arrivesAt);
  const giveUp = clock.after(responseLimitMs, failed('fate_unknown'));
  const abandon = (): void => {
    // The limiter hears that it is over before the upstream has even counted it: its figures are blurred for a moment.
    if (!arrived) scene.ledger.blur(plan.lane.bucket);
    failed('fate_unknown')();
  };
  gone.addEventListener('abort', abandon, { once: true });
  const respond = (feedback: Feedback, status: number, bodyMs: number): void => {
    clock.arrives(clock.monotonic() + chance.between(0.3, 20), () => {
      const headAt = clock.monotonic();
      resolve({
        outcome: { kind: 'answered', status, throttle: feedback.throttle, isCredentialRenewed: false },
        feedback,
        lesson: () => ({
          feedback,
          sentAgoMs: clock.monotonic() - sentAt,
          headAgoMs: clock.monotonic() - headAt,
        }),
        bodyMs,
      });
    });
  };
  clock.outside(arrivesAt, () => {
    arrived = true;
    const now = clock.monotonic();
    if (fate === 'secondary' || fate === 'overload') {
      const throttle = { kind: fate, waitMs: chance.pick([null, 2_000]) } as const;
      const status = fate === 'overload' ? 503 : 429;
      upstream.refuseOtherwise(now);
      clock.outside(now + plan.serviceMs, () => respond({ meters: [], throttle }, status, 0));
      return;
    }
    if (fate === 'permanent') {
      upstream.refuseOtherwise(now);
      const throttle = { kind: 'permanent', reason: 'too_large', waitMs: null } as const;
      return respond({ meters: [], throttle }, 429, 0);
    }
    const verdict = upstream.arrive(plan, now);
    scene.ledger.note(now, () => {
      const costs = JSON.stringify({ ...plan.costs, ...plan.document });
      return `upstream ${verdict.kind} ${plan.id} ${costs}: ${upstream.describe(now)}`;
    });
    if (verdict.kind === 'refused') {
      if (scene.ledger.isExact(bucket) && (!upstream.isChanging(now) || upstream.refusesThroughout(now)))
        scene.ledger.broken(now, '2', `${plan.id} refused by a calm upstream`);
      return respond(verdict.feedback, 429, 0);
    }
    scene.ledger.counted(
      token,
      call,
      plan.serviceMs + (scene.settings().maxInFlight === null ? 0 : plan.bodyMs),
    );
    call.executed += 1;
    if (call.executed > 1 && !plan.safe) scene.ledger.broken(now, '8', `${plan.id} ran twice`);
    if (fate === 'lost') return;
    clock.outside(now + plan.serviceMs, () => {
      const points = (plan.costs.cost ?? 0) > 0;
      const reported = points ? upstream.finish(plan, clock.monotonic()) : verdict.feedback();
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

function refusalOf(
  { ledger, clock, comesBack }: Scene,
  call: DrivenCall,
  failure: unknown,
  gone: AbortSignal,
): string {
  if (gone.aborted && (failure === gone.reason || failure instanceof Refusal)) {
    ledger.reach('client left while waiting');
    return 'client gone';
  }
  if (!(failure instanceof Refusal)) {
    ledger.broken(clock.monotonic(), '10', `${call.plan.id} ended in ${String(failure)}`);
    return 'bug';
  }
  ledger.reach(failure.code);
  const retryInMs = failure.details.retryInMs ?? 0;
  ledger.refused(call.plan.id, failure.code, retryInMs, clock.monotonic());
  const { ticket: kept } = failure.details;
  if (kept !== undefined) {
    ledger.reach('position kept');
    comesBack?.(call, ticketId(kept), retryInMs);
  }
  const late = clock.monotonic() - call.enteredAt;
  if (
    (failure.code === 'wait_too_long' || failure.code === 'wait_expired') &&
    late + retryInMs <= call.plan.maxWaitMs
  ) {
    ledger.broken(clock.monotonic(), '10', `${call.plan.id} refused though ${retryInMs} ms fit its wait`);
  }
  return `${failure.code} ${retryInMs.toFixed(0)}`;
}
