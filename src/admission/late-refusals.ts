/**
 * Refuses calls as soon as it is known that they cannot leave within their wait: an arriving call by what the bucket and its ceiling
 * forecast; a waiting one at a full ceiling, a closed bucket, a lane that stands still, when it turned out more expensive, by a reload, at
 * the end of the process.
 *
 * What happens is noted, and one sweep over the waiting calls applies all that was noted since the last one. After a sweep of many calls
 * the next one waits, so that sweeps take a small part of the process' time. Other replicas take slots, too, which no event here shows:
 * while calls wait under a ceiling it is swept once a second.
 * Keeps: a call that is refused does not count as being ahead of the calls behind it.
 */
import type { Refusal } from '../errors.ts';
import { type CeilingKey, isBackground } from '../ids.ts';
import type { CeilingHold, CeilingLimits } from '../limiter/policy/ceiling.policy.ts';
import { type AdmissionReply, type BucketKey, type LaneKey, returnGraceMs } from '../limiter/limiter.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import type { QueuedCall, WaitRegistry } from './queued-call.ts';
import { present } from './reconfigure.ts';
import { draining, type Hold, refusedBy, tooLate, waitTooLong } from './refusals.ts';
import type { AdmissionParts } from './ticket.ts';

/** At most this many calls of one bucket have their waits forecast again after a change that may have made waits longer. */
const maxRejudged = 64;
/** A ceiling is swept so often for the sake of other replicas. Milliseconds. */
const sweepEveryMs = 1_000;
/** A sweep that visits no more calls is so cheap that no rest follows it: late calls are refused in the same tick. */
const maxFreeVisits = 100;
/** Milliseconds of rest for each call that was visited: about a hundred times as long as a visit takes. */
const restPerVisitMs = 0.01;

/** A reply of the limiter by which an arriving call is judged. */
type Ungranted = Exclude<AdmissionReply, { kind: 'granted' }>;
type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: CeilingHold = { waitMs: 0, heldBy: 'ceiling_minute' };

export class LateRefusals {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rotation: LaneRotation;
  /** Ceilings that are due for a sweep, with calls that have entered but whose callers do not wait yet: they count as ahead of others. */
  #ceilings = new Map<CeilingKey, Set<QueuedCall>>();
  /** Until when buckets, and lanes of them (`bucket lane`), send nothing. Monotonic milliseconds. */
  #standstills = new Map<string, number>();
  /** When ceilings were last swept for the sake of other replicas, monotonic milliseconds. */
  #sweptAt = -Infinity;
  #isPlanned = false;
  /** No sweep before then, monotonic milliseconds. */
  #restsUntil = 0;

  constructor(parts: AdmissionParts, registry: WaitRegistry, rotation: LaneRotation) {
    this.#parts = parts;
    this.#registry = registry;
    this.#rotation = rotation;
  }

  /**
   * The refusal of an arriving call that cannot be sent within its wait, with the true time (13); `null` = it may wait.
   * @param askedAt when the limiter was asked, monotonic milliseconds.
   */
  async refusalOf(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Refusal | null> {
    const { request, deadline } = call;
    const byCeiling = await this.#ceilingHold(call, reply, askedAt);
    if (reply.kind === 'refused') return laterOf(call, reply, byCeiling);
    const graceMs = request.admission.reservation === undefined ? 0 : returnGraceMs;
    // What is left of its own wait, without the time that its deadline adds for stores' replies.
    const withinMs = Math.min(Math.max(request.maxWaitMs, graceMs), deadline - this.#now());
    if (byCeiling.waitMs > withinMs) return waitTooLong(byCeiling, request);
    // It is more urgent than others that wait for a slot of its ceiling.
    if (call.lane.waiting > reply.ahead) this.#due(request.ceiling.key).add(call);
    return null;
  }

  /** How long the ceiling holds an arriving call that waits, or would have waited. */
  async #ceilingHold(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<CeilingHold> {
    const { ceiling } = call.request;
    if (!('ahead' in reply) || !hasLimits(ceiling)) return notHeld;
    const position = this.#rotation.turns(call.lane)(call.lane, reply.ahead);
    const [hold = notHeld] = await this.#parts.ceilings.forecast(ceiling, [position], this.#now() - askedAt);
    call.slotExpectedAt = this.#now() + hold.waitMs;
    return hold;
  }

  /** Calls wait in these lanes. */
  onHeld(lanes: Iterable<LaneView>): void {
    if (this.#now() < this.#sweptAt + sweepEveryMs) return;
    this.#sweptAt = this.#now();
    for (const { latest } of lanes) if (hasLimits(latest.ceiling)) this.#due(latest.ceiling.key);
  }

  /** A ceiling had no slot: slots of its calls may come later than was forecast before. */
  onCeilingFull(key: CeilingKey): void {
    this.#due(key);
  }

  /** A bucket (`lane` is `null`), or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const name = lane === null ? bucket : `${bucket} ${lane}`;
    this.#standstills.set(name, Math.max(this.#standstills.get(name) ?? 0, this.#now() + stillMs));
    this.#plan();
  }

  /** The ceiling has no slots but these `count`, which are kept for reservations of others for `waitMs` at least. */
  onKept(call: QueuedCall, { waitMs, count }: { readonly waitMs: number; readonly count: number }): void {
    if (this.#now() + waitMs <= call.deadline) return;
    this.#parts.detached(this.#refuseHeld(call, { waitMs, heldBy: 'ceiling_minute' }, count));
  }

  /** A response stated the cost of this call's document: waiting calls with the same document may cost more than estimated. */
  onCostKnown({ request: { admission } }: QueuedCall, points: number): void {
    const { bucket, document } = admission;
    if (document === null || points <= (admission.costs.cost ?? 0)) return;
    const moreExpensive = [...this.#registry.calls.values()].filter(
      ({ isWaiting, request: { admission: other } }) => {
        const isSame = other.bucket === bucket && other.document === document;
        return isWaiting && isSame && points > (other.costs.cost ?? 0);
      },
    );
    this.#refuseSomeLate(moreExpensive);
  }

  /** Configuration changed: calls that were expected to leave in time may be late. */
  onReconfigured(calls: readonly QueuedCall[]): void {
    const waiting = calls.filter((call) => call.isWaiting);
    for (const inBucket of Map.groupBy(waiting, ({ request }) => request.admission.bucket).values())
      this.#refuseSomeLate(inBucket);
    for (const { request } of waiting) this.#due(request.ceiling.key);
  }

  /** The process will send nothing after `budgetMs`. With 0 every waiting call is refused without a forecast. */
  onDrain(budgetMs: number): void {
    const { limiter, detached } = this.#parts;
    const end = (call: QueuedCall, waitMs: number): void => {
      if (waitMs > budgetMs && call.isWaiting) this.#registry.end(call, draining());
    };
    for (const call of this.#registry.calls.values()) {
      const { bucket, ticket } = call.request.admission;
      if (budgetMs === 0) end(call, Infinity);
      else if (call.isWaiting)
        detached(limiter.forecast(bucket, ticket).then((forecast) => end(call, forecast?.waitMs ?? 0)));
    }
  }

  #due(key: CeilingKey): Set<QueuedCall> {
    const entered = this.#ceilings.get(key) ?? new Set();
    this.#ceilings.set(key, entered);
    this.#plan();
    return entered;
  }

  /** Sweeps when the current tick has ended, or after the rest. */
  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    const restMs = this.#restsUntil - this.#now();
    if (restMs > 0) this.#parts.clock.after(restMs, () => this.#sweep());
    else this.#parts.detached(Promise.resolve().then(() => this.#sweep()));
  }

  #sweep(): void {
    this.#isPlanned = false;
    const [ceilings, standstills] = [this.#ceilings, this.#standstills];
    this.#ceilings = new Map();
    this.#standstills = new Map();
    const due = [...ceilings].filter(([key]) => this.#registry.waitingUnder(key) > 0);
    const visits = (due.length + (standstills.size > 0 ? 1 : 0)) * this.#registry.calls.size;
    if (standstills.size > 0) this.#refuseHeldBy(standstills);
    for (const [key, entered] of due) this.#parts.detached(this.#sweepCeiling(key, entered));
    if (visits > maxFreeVisits) this.#restsUntil = this.#now() + visits * restPerVisitMs;
  }

  #refuseHeldBy(standstills: ReadonlyMap<string, number>): void {
    const now = this.#now();
    for (const call of this.#registry.calls.values()) {
      const { bucket, lane } = call.request.admission;
      const until = Math.max(standstills.get(bucket) ?? 0, standstills.get(`${bucket} ${lane}`) ?? 0);
      if (!call.isWaiting || until <= call.deadline) continue;
      this.#parts.detached(this.#refuseHeld(call, { waitMs: until - now, heldBy: 'closed' }));
    }
  }

  /** Forecasts slots for the calls under the ceiling in their order, and refuses the late ones. */
  async #sweepCeiling(key: CeilingKey, entered: ReadonlySet<QueuedCall>): Promise<void> {
    const { ceilings, limiter } = this.#parts;
    const most = this.#registry.waitingUnder(key) + entered.size;
    const positions = Array.from({ length: most }, (_, index) => index + 1);
    // Others may go before a background call as long as it waits, and it is not refused for that.
    const isJudged = (call: QueuedCall): boolean =>
      call.request.ceiling.key === key &&
      !call.asksForSlot &&
      !isBackground(call.lane.key) &&
      (call.isWaiting || (entered.has(call) && !call.isGone));
    // Limits differ between buckets where a default ceiling has yielded to what a bucket states.
    const ceilingOf = (request: QueuedCall['request']) => present(request, limiter).ceiling;
    const waitingIn = [...this.#registry.lanesUnder(key), ...Array.from(entered, ({ lane }) => lane)];
    const lanes = [...new Set(waitingIn)].filter((lane) => !isBackground(lane.key));
    for (const [limits, under] of Map.groupBy(lanes, ({ latest }) => limitsOf(ceilingOf(latest)))) {
      const [first] = under;
      if (first === undefined) continue;
      await Promise.all(under.map(asked));
      const holds = await ceilings.forecast(ceilingOf(first.latest), positions);
      // Mostly it holds nobody, and there are very many calls to look at.
      if (holds.every(({ waitMs }) => waitMs <= 0)) continue;
      const judged = [...this.#registry.calls.values()].filter(
        (call) => isJudged(call) && limitsOf(ceilingOf(call.request)) === limits,
      );
      this.#refuseLate(inTurn(judged), holds);
    }
  }

  /** @param holds by position: how long the ceiling holds the call there. The last one stands for all positions behind it. */
  #refuseLate(calls: readonly QueuedCall[], holds: readonly CeilingHold[]): void {
    const [first] = calls;
    if (first === undefined) return;
    const now = this.#now();
    const positionOf = this.#rotation.turns(first.lane);
    const probablyLate: QueuedCall[] = [];
    // Callers of a workspace take turns, also with calls that name none: the limiter alone knows exactly in which order.
    const takingTurns = new Set(calls.filter(namesCaller).map(({ lane }) => lane));
    const ahead = new Map<LaneView, number>();
    for (const call of calls) {
      const before = ahead.get(call.lane) ?? 0;
      const hold = holds[Math.min(positionOf(call.lane, before), holds.length) - 1];
      // A call that its ceiling does not hold waits for something else; its deadline ends its wait, also when that timer is late.
      const isLate = hold !== undefined && hold.waitMs > 0 && now + hold.waitMs > call.deadline;
      if (isLate && call.isWaiting && !takingTurns.has(call.lane)) {
        this.#refuse(call, hold);
        continue;
      }
      if (isLate && call.isWaiting) probablyLate.push(call);
      ahead.set(call.lane, before + 1);
    }
    this.#refuseSomeLate(probablyLate);
  }

  /** Forecasts the waits of some of these calls again, all of one bucket. */
  #refuseSomeLate(calls: readonly QueuedCall[]): void {
    if (calls.length > 0) this.#parts.detached(this.#refuseLateOf(calls.slice(0, maxRejudged)));
  }

  /** Refuses the late calls, one after the other, so that a refused call is not part of the next one's forecast. */
  async #refuseLateOf(calls: readonly QueuedCall[]): Promise<void> {
    for (const call of inTurn(calls)) {
      await asked(call.lane);
      if (!call.isWaiting) continue;
      const { bucket, ticket } = call.request.admission;
      const forecast = await this.#parts.limiter.forecast(bucket, ticket);
      if (forecast === null || !call.isWaiting) continue;
      const hold = await this.#longerHold(call, forecast, forecast.ahead);
      const isLate = hold.waitMs > 0 && this.#now() + hold.waitMs > call.deadline;
      if (isLate && call.isWaiting) this.#refuse(call, hold);
    }
  }

  #refuse(call: QueuedCall, hold: Hold): void {
    const hasWaited = this.#now() >= call.passageEndsAt;
    this.#registry.end(call, hasWaited ? tooLate(hold) : waitTooLong(hold, call.request));
  }

  /** @param ahead slots that others take before the call */
  async #refuseHeld(call: QueuedCall, hold: Hold, ahead = 0): Promise<void> {
    const longest = await this.#longerHold(call, hold, ahead);
    if (call.isWaiting) this.#refuse(call, longest);
  }

  /** The longer of two holds: `hold`, or that of its ceiling with `ahead` calls of its lane before it. */
  async #longerHold({ lane, request }: QueuedCall, hold: Hold, ahead: number): Promise<Hold> {
    const position = this.#rotation.turns(lane)(lane, ahead);
    const [byCeiling] = await this.#parts.ceilings.forecast(request.ceiling, [position]);
    return byCeiling !== undefined && byCeiling.waitMs > hold.waitMs ? byCeiling : hold;
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}

const hasLimits = ({ perMinute, perDay }: CeilingLimits): boolean => perMinute !== null || perDay !== null;

/** Calls of the lane that ask for a slot when this is called are sent then, or stand in their line again. */
const asked = ({ gate }: LaneView): Promise<void> => gate.tail;

const limitsOf = ({ perMinute, perDay }: CeilingLimits): string => `${perMinute} ${perDay}`;

const namesCaller = ({ request }: QueuedCall): boolean => request.admission.caller !== undefined;

/** Who came back for a reservation goes before whoever waited meanwhile. */
const rankOf = ({ request: { admission } }: QueuedCall): number =>
  admission.reservation === undefined ? admission.urgency : -1;

/**
 * The calls about as they leave: those that came back, then the most urgent first, then as they entered; where callers are named, one of
 * each at a time.
 */
function inTurn(calls: readonly QueuedCall[]): readonly QueuedCall[] {
  const byUrgency = calls.toSorted((one, other) => rankOf(one) - rankOf(other));
  if (!byUrgency.some(namesCaller)) return byUrgency;
  const turns = new Map<string, number>();
  const turnOf = new Map<QueuedCall, number>();
  for (const call of byUrgency) {
    const { bucket, lane, caller = '' } = call.request.admission;
    const name = `${bucket} ${lane} ${caller}`;
    const turn = turns.get(name) ?? 0;
    turns.set(name, turn + 1);
    turnOf.set(call, turn);
  }
  return byUrgency.toSorted((one, other) => (turnOf.get(one) ?? 0) - (turnOf.get(other) ?? 0));
}

/** The refusal with the later time: the limiter's, or that of the ceiling's slot. */
function laterOf({ request }: QueuedCall, reply: Refused, byCeiling: CeilingHold): Refusal {
  if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, request);
  return reply.reason === 'wait_too_long'
    ? waitTooLong(byCeiling, request)
    : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, request);
}
