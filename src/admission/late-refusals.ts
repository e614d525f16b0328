/**
 * Refuses waiting calls as soon as it is known that they cannot leave within their wait: a full ceiling, a closed bucket, a lane that
 * stands still, a call that turned out more expensive, a reload, the end of the process.
 *
 * What happens is noted, and one sweep over the waiting calls applies all that was noted since the last one. After a sweep of many calls
 * the next one waits, so that sweeps take a small part of the process' time. Other replicas take slots, too, which no event here shows:
 * while calls wait under a ceiling it is swept again, one, two, four, … seconds after the last call that arrived.
 *
 * Arriving calls are judged at the end of this file.
 * Keeps: a call that is refused does not count as being ahead of the calls behind it.
 */
import type { CancelTimer } from '../clock.ts';
import type { Refusal } from '../errors.ts';
import { type CeilingKey, isBackground } from '../ids.ts';
import type { CeilingHold, CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import { type AdmissionReply, type BucketKey, type LaneKey, returnGraceMs } from '../limiter/limiter.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { LaneView } from './lanes.ts';
import { type QueuedCall, refused } from './queued-call.ts';
import { present } from './reconfigure.ts';
import { draining, type Hold, refusedBy, tooLate, waitTooLong } from './refusals.ts';
import type { AdmissionParts } from './ticket.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** At most this many calls of one bucket have their waits forecast again after a change that may have made waits longer. */
const maxRejudged = 64;
/** A sweep for an arriving call, or for the sake of other replicas, forecasts this many next slots. */
const knownSlots = 64;
/** Sweeps of a ceiling for the sake of other replicas are at least this far apart. Milliseconds. */
const sweepEveryMs = 1_000;
/** A sweep that visits no more calls is so cheap that no rest follows it: late calls are refused in the same tick. */
const maxFreeVisits = 100;
/** Milliseconds of rest for each call that was visited: about a hundred times as long as a visit takes. */
const restPerVisitMs = 0.01;

/** A ceiling that is due for a sweep. */
interface DueCeiling {
  /** How many slots to forecast (`null` = one for every waiting call). A call further back is judged by the last of them. */
  upTo: number | null;
  /** Calls that have entered their lane, but whose callers do not wait yet: they count as ahead of others. */
  readonly entered: Set<QueuedCall>;
}

/** Until when a bucket sends nothing (`null` = it sends), and until when single lanes of it do not. Monotonic milliseconds. */
interface Standstill {
  until: number | null;
  readonly lanes: Map<LaneKey, number>;
}

export class LateRefusals {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #rotation: LaneRotation;
  #ceilings = new Map<CeilingKey, DueCeiling>();
  #standstills = new Map<BucketKey, Standstill>();
  /** Ceilings under which calls wait: when slots were last read for an arriving call, and the last sweep. Monotonic milliseconds. */
  readonly #watched = new Map<CeilingKey, { forecastAt: number; sweptAt: number }>();
  #cancelWatch: CancelTimer = () => {};
  #isPlanned = false;
  /** No sweep before then, monotonic milliseconds. */
  #restsUntil = 0;

  constructor(parts: AdmissionParts, registry: WaitRegistry, rotation: LaneRotation) {
    this.#parts = parts;
    this.#registry = registry;
    this.#rotation = rotation;
    registry.onNoneWaiting = (key) => this.#endWatch(key);
  }

  /** A ceiling had no slot: slots of its calls may come later than was forecast before. */
  onCeilingFull(key: CeilingKey): void {
    this.#due(key, null);
  }

  /** A more urgent call went before others that wait for a slot of its ceiling. */
  onOvertaken(by: QueuedCall): void {
    this.#due(by.request.ceiling.key, null).entered.add(by);
  }

  /** The slots of a ceiling were read for an arriving call. */
  onForecastRead(key: CeilingKey): void {
    const now = this.#now();
    const watched = this.#watched.get(key);
    if (this.#watched.size === 0) this.#watchLater();
    // The sweep uses what was just read.
    const isDue = watched === undefined || now - watched.sweptAt >= sweepEveryMs;
    this.#watched.set(key, { forecastAt: now, sweptAt: isDue ? now : watched.sweptAt });
    if (isDue) this.#due(key, knownSlots);
  }

  /** A bucket (`lane` is `null`), or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const until = this.#now() + stillMs;
    let standstill = this.#standstills.get(bucket);
    if (standstill === undefined) {
      standstill = { until: null, lanes: new Map() };
      this.#standstills.set(bucket, standstill);
    }
    if (lane === null) standstill.until = Math.max(standstill.until ?? until, until);
    else standstill.lanes.set(lane, Math.max(standstill.lanes.get(lane) ?? until, until));
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
    const moreExpensive: QueuedCall[] = [];
    for (const call of this.#registry.all()) {
      if (!call.isWaiting) continue;
      const other = call.request.admission;
      const isSame = other.bucket === bucket && other.document === document;
      if (!isSame || points <= (other.costs.cost ?? 0)) continue;
      moreExpensive.push(call);
      if (moreExpensive.length >= maxRejudged) break;
    }
    this.#parts.detached(this.#refuseLateOf(moreExpensive));
  }

  /** Configuration changed: calls that were expected to leave in time may be late. */
  onReconfigured(calls: readonly QueuedCall[]): void {
    const waiting = calls.filter((call) => call.isWaiting);
    for (const inBucket of Map.groupBy(waiting, ({ request }) => request.admission.bucket).values()) {
      this.#parts.detached(this.#refuseLateOf(inBucket.slice(0, maxRejudged)));
    }
    for (const { request } of waiting) this.#due(request.ceiling.key, null);
  }

  /** The process will send nothing after `budgetMs`. With 0 every waiting call is refused without a forecast. */
  onDrain(budgetMs: number): void {
    const { limiter, detached } = this.#parts;
    for (const call of this.#registry.all()) {
      if (!call.isWaiting) continue;
      if (budgetMs === 0) {
        this.#registry.end(call, refused(draining()));
        continue;
      }
      const { bucket, ticket } = call.request.admission;
      detached(
        limiter.forecast(bucket, ticket).then((forecast) => {
          const isLate = forecast !== null && forecast.waitMs > budgetMs;
          if (isLate && call.isWaiting) this.#registry.end(call, refused(draining()));
        }),
      );
    }
  }

  #due(key: CeilingKey, upTo: number | null): DueCeiling {
    let due = this.#ceilings.get(key);
    if (due === undefined) this.#ceilings.set(key, (due = { upTo, entered: new Set() }));
    due.upTo = due.upTo === null || upTo === null ? null : Math.max(due.upTo, upTo);
    this.#plan();
    return due;
  }

  #watchLater(): void {
    this.#cancelWatch = this.#parts.clock.after(sweepEveryMs, () => {
      const now = this.#now();
      for (const [key, watched] of this.#watched) {
        const { forecastAt, sweptAt } = watched;
        if (now < forecastAt + Math.max(sweepEveryMs, 2 * (sweptAt - forecastAt))) continue;
        watched.sweptAt = now;
        this.#due(key, knownSlots);
      }
      this.#watchLater();
    });
  }

  #endWatch(key: CeilingKey): void {
    if (this.#watched.delete(key) && this.#watched.size === 0) this.#cancelWatch();
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
    let visits = 0;
    if (standstills.size > 0) {
      visits += this.#registry.size;
      this.#refuseHeldBy(standstills);
    }
    for (const [key, due] of ceilings) {
      if (this.#registry.waitingUnder(key) === 0) continue;
      visits += this.#registry.size;
      this.#parts.detached(this.#sweepCeiling(key, due));
    }
    if (visits > maxFreeVisits) this.#restsUntil = this.#now() + visits * restPerVisitMs;
  }

  #refuseHeldBy(standstills: ReadonlyMap<BucketKey, Standstill>): void {
    const now = this.#now();
    for (const call of this.#registry.all()) {
      const { bucket, lane } = call.request.admission;
      const standstill = call.isWaiting ? standstills.get(bucket) : undefined;
      if (standstill === undefined) continue;
      const until = Math.max(standstill.until ?? now, standstill.lanes.get(lane) ?? now);
      if (until <= call.deadline) continue;
      this.#parts.detached(this.#refuseHeld(call, { waitMs: until - now, heldBy: 'closed' }));
    }
  }

  /** Forecasts slots for the calls under the ceiling in their order, and refuses the late ones. */
  async #sweepCeiling(key: CeilingKey, { upTo, entered }: DueCeiling): Promise<void> {
    const most = this.#registry.waitingUnder(key) + entered.size;
    const positions = Array.from({ length: Math.min(upTo ?? most, most) }, (_, index) => index + 1);
    for (const ceiling of this.#ceilingsOf(key, entered)) {
      const holds = await this.#parts.ceilings.forecast(ceiling, positions);
      // Mostly it holds nobody, and there are very many calls to look at.
      if (holds.every(({ waitMs }) => waitMs === 0)) continue;
      this.#refuseLate(inTurn([...this.#judged(ceiling, entered)]), holds);
    }
  }

  /**
   * The ceiling with the limits under which it holds waiting calls: a reload may have changed them since the sweep was planned. They differ
   * between buckets where a default one has yielded to what a bucket states.
   */
  #ceilingsOf(key: CeilingKey, entered: ReadonlySet<QueuedCall>): Iterable<CeilingRef> {
    const ceilings = new Map<string, CeilingRef>();
    const note = ({ key: lane, latest }: LaneView): void => {
      if (isBackground(lane) || latest.ceiling.key !== key) return;
      const { ceiling } = present(latest, this.#parts.limiter);
      if (ceiling.perMinute !== null || ceiling.perDay !== null)
        ceilings.set(`${ceiling.perMinute}.${ceiling.perDay}`, ceiling);
    };
    for (const lane of this.#registry.lanesUnder(key)) note(lane);
    for (const { lane } of entered) note(lane);
    return ceilings.values();
  }

  /** Others may go before a background call as long as it waits, and it is not refused for that. */
  *#judged(
    { key, perMinute, perDay }: CeilingRef,
    entered: ReadonlySet<QueuedCall>,
  ): Generator<QueuedCall, void> {
    for (const call of this.#registry.all()) {
      if (call.request.ceiling.key !== key || call.asksForSlot || isBackground(call.lane.key)) continue;
      if (!call.isWaiting && (!entered.has(call) || call.isGone)) continue;
      const { ceiling } = present(call.request, this.#parts.limiter);
      if (ceiling.perMinute === perMinute && ceiling.perDay === perDay) yield call;
    }
  }

  /** @param holds by position: how long the ceiling holds the call there. The last one stands for all positions behind it. */
  #refuseLate(calls: readonly QueuedCall[], holds: readonly CeilingHold[]): void {
    const now = this.#now();
    const probablyLate: QueuedCall[] = [];
    // Callers of a workspace take turns, also with calls that name none: the limiter alone knows exactly in which order.
    const takingTurns = new Set(calls.filter(namesCaller).map(({ lane }) => lane));
    this.#rotation.forEachPosition(calls, (call, position) => {
      const hold = holds[Math.min(position, holds.length) - 1];
      // A call that its ceiling does not hold waits for something else; its deadline ends its wait, also when that timer is late.
      const isLate = hold !== undefined && hold.waitMs > 0 && now + hold.waitMs > call.deadline;
      if (!isLate || !call.isWaiting) return true;
      const isOrderKnown = !takingTurns.has(call.lane);
      if (isOrderKnown) this.#refuse(call, hold);
      else probablyLate.push(call);
      return !isOrderKnown;
    });
    if (probablyLate.length > 0) this.#parts.detached(this.#refuseLateOf(probablyLate.slice(0, maxRejudged)));
  }

  /** Refuses the late calls of one bucket, one after the other, so that a refused call is not part of the next one's forecast. */
  async #refuseLateOf(calls: readonly QueuedCall[]): Promise<void> {
    const { clock, limiter } = this.#parts;
    for (const call of inTurn(calls)) {
      if (!call.isWaiting) continue;
      const { bucket, ticket } = call.request.admission;
      const forecast = await limiter.forecast(bucket, ticket);
      if (forecast === null || !call.isWaiting) continue;
      const hold = await this.#longerHold(call, forecast, forecast.ahead);
      const isLate = hold.waitMs > 0 && clock.monotonic() + hold.waitMs > call.deadline;
      if (isLate && call.isWaiting) this.#refuse(call, hold);
    }
  }

  #refuse(call: QueuedCall, hold: Hold): void {
    const hasWaited = this.#now() >= call.passageEndsAt;
    this.#registry.end(call, refused(hasWaited ? tooLate(hold) : waitTooLong(hold, call.request)));
  }

  /** @param ahead slots that others take before the call */
  async #refuseHeld(call: QueuedCall, hold: Hold, ahead = 0): Promise<void> {
    const longest = await this.#longerHold(call, hold, ahead);
    if (call.isWaiting) this.#refuse(call, longest);
  }

  /** The longer of two holds: `hold`, or that of its ceiling with `ahead` calls of its lane before it. */
  async #longerHold(call: QueuedCall, hold: Hold, ahead: number): Promise<Hold> {
    const position = this.#rotation.positionOf(call, ahead);
    const [byCeiling] = await this.#parts.ceilings.forecast(call.request.ceiling, [position]);
    return byCeiling !== undefined && byCeiling.waitMs > hold.waitMs ? byCeiling : hold;
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}

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

// Arriving calls

// A call that the limiter has just queued or refused: the bucket forecasts how long it waits for a grant, the ceiling how long for a slot, and
// the longer of the two counts. One that cannot be sent within its wait is refused at once with the true time (13).

type Ungranted = Exclude<AdmissionReply, { kind: 'granted' }>;
type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: CeilingHold = { waitMs: 0, heldBy: 'ceiling_minute' };

export class ArrivingCallCheck {
  readonly #parts: AdmissionParts;
  readonly #rotation: LaneRotation;
  readonly #lateRefusals: LateRefusals;

  constructor(parts: AdmissionParts, rotation: LaneRotation, lateRefusals: LateRefusals) {
    this.#parts = parts;
    this.#rotation = rotation;
    this.#lateRefusals = lateRefusals;
  }

  /**
   * The refusal of an arriving call; `null` = it may wait.
   * @param askedAt when the limiter was asked, monotonic milliseconds.
   */
  async refusalOf(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Refusal | null> {
    const byCeiling = await this.#ceilingHold(call, reply, askedAt);
    if (reply.kind === 'refused') return laterOf(call, reply, byCeiling);
    if (byCeiling.waitMs > this.#withinMs(call)) return waitTooLong(byCeiling, call.request);
    if (call.lane.waiting > reply.ahead) this.#lateRefusals.onOvertaken(call);
    return null;
  }

  /** How long the ceiling holds an arriving call that waits, or would have waited. */
  async #ceilingHold(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<CeilingHold> {
    const { ceiling } = call.request;
    if (!('ahead' in reply) || (ceiling.perMinute === null && ceiling.perDay === null)) return notHeld;
    if (reply.kind === 'queued') this.#rotation.onPosition(call, reply.ahead);
    const position = this.#rotation.positionOf(call, reply.ahead);
    const { clock, ceilings } = this.#parts;
    const [hold = notHeld] = await ceilings.forecast(ceiling, [position], clock.monotonic() - askedAt);
    call.slotExpectedAt = clock.monotonic() + hold.waitMs;
    // A call that ended meanwhile must not start sweeps of its ceiling.
    if (!call.isGone) this.#lateRefusals.onForecastRead(ceiling.key);
    return hold;
  }

  /** How long the call may be held: what is left of its own wait, without the time that its deadline adds for stores' replies. */
  #withinMs({ request, deadline }: QueuedCall): number {
    const graceMs = request.admission.reservation === undefined ? 0 : returnGraceMs;
    return Math.min(Math.max(request.maxWaitMs, graceMs), deadline - this.#parts.clock.monotonic());
  }
}

/** The refusal with the later time: the limiter's, or that of the ceiling's slot. */
function laterOf({ request }: QueuedCall, reply: Refused, byCeiling: CeilingHold): Refusal {
  if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, request);
  return reply.reason === 'wait_too_long'
    ? waitTooLong(byCeiling, request)
    : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, request);
}
