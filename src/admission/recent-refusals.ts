/**
 * Remembers the last refusal of each lane for `rememberedMs`, a quarter of a second. A call that comes to the lane meanwhile,
 * be it the refused one again or another one, is refused with what is left of the refusal's time, and neither limiter nor
 * ceiling is asked.
 *
 * Owns: for which calls a refusal of another one holds, and for how long. Does not own: refusals (`admission.ts`).
 * Keeps: a call that the limiter could answer otherwise is not refused here: one with fewer units, a better position or
 * other limits; or, unless the queue is full, one whose own wait is long enough. Every event in this process that may shorten
 * a wait in a bucket forgets the refusals of that bucket.
 * Bound: an event elsewhere (other replicas, other buckets under the same ceiling) has its effect `rememberedMs` later.
 */
import type { Clock } from '../clock.ts';
import { Refusal, type HeldBy } from '../errors.ts';
import type { CeilingState } from '../limiter/ceilings.ts';
import type { BucketKey, LaneKey, Limiter } from '../limiter/limiter.ts';
import { refusedBy, waitTooLong } from './refusals.ts';
import type { AdmissionRequest } from './ticket.ts';

/** How long after a refusal calls like the refused one are refused without asking the limiter. Milliseconds. */
export const rememberedMs = 250;
/** Buckets with remembered refusals. Beyond it all are forgotten, and the limiter is asked again. */
const maxBuckets = 10_000;

interface Remembered {
  readonly request: AdmissionRequest;
  readonly code: Refusal['code'];
  readonly heldBy: HeldBy;
  /** Monotonic milliseconds. */
  readonly refusedAt: number;
  readonly retryInMs: number;
  /** State of the ceiling at the time of the refusal. */
  readonly ceiling: Promise<CeilingState | null>;
}

export class RecentRefusals {
  readonly #clock: Clock;
  readonly #buckets = new Map<BucketKey, Map<LaneKey, Remembered>>();
  readonly #ceilings = new WeakMap<Refusal, Promise<CeilingState | null>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A call was refused when it asked to enter its lane; `ceiling` is what its response says of its ceiling. */
  note(request: AdmissionRequest, refusal: Refusal, ceiling: Promise<CeilingState | null>): void {
    const { retryInMs, heldBy } = refusal.details;
    this.#keep(refusal, ceiling);
    if (retryInMs === undefined || heldBy === undefined) return;
    const { bucket, lane } = request.admission;
    const refusedAt = this.#clock.monotonic();
    let lanes = this.#buckets.get(bucket);
    if (lanes === undefined) {
      if (this.#buckets.size >= maxBuckets) this.#buckets.clear();
      this.#buckets.set(bucket, (lanes = new Map()));
    }
    lanes.set(lane, { request, code: refusal.code, heldBy, refusedAt, retryInMs, ceiling });
  }

  /** The refusal of a call that would be refused like another one a moment ago; `null` = the limiter has to be asked. */
  rememberedRefusal(request: AdmissionRequest): Refusal | null {
    if (this.#buckets.size === 0) return null;
    const { bucket, lane } = request.admission;
    const known = this.#buckets.get(bucket)?.get(lane);
    if (known === undefined || !isNoBetter(request, known.request)) return null;
    const agoMs = this.#clock.monotonic() - known.refusedAt;
    const refusal = agoMs < rememberedMs ? refusalAfter(known, agoMs, request) : null;
    if (refusal !== null) {
      this.#keep(
        refusal,
        known.ceiling.then((state) => aged(state, agoMs)),
      );
    }
    return refusal;
  }

  /** What a refusal that was noted or given here says of the ceiling; `null` = it has to be read. */
  ceilingOf(refusal: unknown): Promise<CeilingState | null> | null {
    return refusal instanceof Refusal ? (this.#ceilings.get(refusal) ?? null) : null;
  }

  /** Waits in this bucket may be shorter now. */
  forget(bucket: BucketKey): void {
    if (this.#buckets.size > 0) this.#buckets.delete(bucket);
  }

  /** Settings have changed. */
  forgetAll(): void {
    this.#buckets.clear();
  }

  /** Keeps the ceiling's state for the refusal's response. When the client has left, nobody reads it: a failure is then ignored. */
  #keep(refusal: Refusal, ceiling: Promise<CeilingState | null>): void {
    ceiling.catch(() => {});
    this.#ceilings.set(refusal, ceiling);
  }

  /** Returns the limiter with this added: an operation that may shorten waits in a bucket first forgets the bucket's refusals. */
  watchLimiter(limiter: Limiter): Limiter {
    return {
      // Bound: what changes nothing here does not pass through here.
      admit: limiter.admit.bind(limiter),
      settle: (grant, settlement, lesson) => {
        this.forget(grant.bucket);
        return limiter.settle(grant, settlement, lesson);
      },
      learn: (grant, lesson) => {
        this.forget(grant.bucket);
        return limiter.learn(grant, lesson);
      },
      charged: limiter.charged.bind(limiter),
      reconfigure: limiter.reconfigure.bind(limiter),
      wake: (bucket, lane) => {
        this.forget(bucket);
        return limiter.wake(bucket, lane);
      },
      open: (bucket, before) => {
        this.forget(bucket);
        return limiter.open(bucket, before);
      },
      move: (from, admission) => {
        this.forget(from);
        return limiter.move(from, admission);
      },
      cancel: (bucket, ticket) => {
        this.forget(bucket);
        return limiter.cancel(bucket, ticket);
      },
      forecast: limiter.forecast.bind(limiter),
      snapshot: limiter.snapshot.bind(limiter),
      close: limiter.close.bind(limiter),
    };
  }
}

/** The remembered refusal with the time that is left; `null` = the call may be in time now. */
function refusalAfter(
  { code, heldBy, retryInMs }: Remembered,
  agoMs: number,
  request: AdmissionRequest,
): Refusal | null {
  const waitMs = retryInMs - agoMs;
  if (code === 'queue_full') {
    return refusedBy({ kind: 'refused', reason: code, heldBy, retryInMs: waitMs, ahead: 0 }, request);
  }
  const isLate = (code === 'wait_too_long' || code === 'day_quota_exhausted') && waitMs > request.maxWaitMs;
  return isLate ? waitTooLong({ waitMs, heldBy }, request) : null;
}

/** True when the call would stand behind the other one (urgency 0 goes first), asks for the same units or more, and is under the same limits. */
function isNoBetter(call: AdmissionRequest, other: AdmissionRequest): boolean {
  const [one, former] = [call.admission, other.admission];
  return (
    call.arrivedAt >= other.arrivedAt &&
    one.urgency >= former.urgency &&
    one.callClass === former.callClass &&
    one.document === former.document &&
    one.ceilingTag === former.ceilingTag &&
    one.maxQueued <= former.maxQueued &&
    Object.entries(former.costs).every(
      ([meter, cost]) => (one.costs[meter as keyof typeof one.costs] ?? 0) >= cost,
    )
  );
}

const aged = (state: CeilingState | null, agoMs: number): CeilingState | null =>
  state === null ? null : { ...state, nextSlotMs: Math.max(0, state.nextSlotMs - agoMs) };
