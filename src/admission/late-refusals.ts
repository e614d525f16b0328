/**
 * Refuses calls as soon as it is known that they cannot leave within their wait: an arriving call by what the bucket and its ceiling
 * forecast; a waiting one at a full ceiling, a closed bucket, a lane that stands still, by a reload, at the end of the process.
 *
 * What happens is noted, and one look at the waiting calls, some milliseconds later, applies all that was noted since the last one. Other
 * replicas take slots, too, which no event here shows: while calls wait, they are looked at once a second in any case.
 * Keeps: a call that is refused does not count as being ahead of the calls behind it.
 */
import type { Refusal } from '../errors.ts';
import { isBackground } from '../ids.ts';
import type { CeilingLimits, CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import {
  type AdmissionReply,
  type BucketKey,
  type Hold,
  type LaneKey,
  returnGraceMs,
} from '../limiter/limiter.ts';
import { present, type QueuedCall, type WaitRegistry } from './queued-call.ts';
import type { LaneView } from './lanes.ts';
import { draining, refusedBy, tooLate, waitTooLong } from './refusals.ts';
import type { AdmissionParts } from './ticket.ts';

/** At most this many calls of one bucket have their waits forecast again after a change that may have made waits longer. */
const maxRejudged = 64;
/** Waiting calls are looked at so often for the sake of other replicas. Milliseconds. */
const lookEveryMs = 1_000;
/** From an event to the look, milliseconds, and for each call that is looked at: about a hundred times as long as that takes. */
const togetherMs = 20;
const togetherPerCallMs = 0.01;

/** A reply of the limiter by which an arriving call is judged. */
type Ungranted = Exclude<AdmissionReply, { kind: 'granted' }>;
type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: Hold = { waitMs: 0, heldBy: 'ceiling_minute' };

export class LateRefusals {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  /** Until when buckets, and lanes of them (`bucket lane`), send nothing. Monotonic milliseconds. */
  readonly #standstills = new Map<string, number>();
  #isPlanned = false;
  /** When calls were last looked at, monotonic milliseconds. */
  #lookedAt = -Infinity;

  constructor(parts: AdmissionParts, registry: WaitRegistry) {
    this.#parts = parts;
    this.#registry = registry;
  }

  /**
   * The refusal of an arriving call that cannot be sent within its wait, with the true time (13); `null` = it may wait.
   * @param askedAt when the limiter was asked, monotonic milliseconds.
   */
  async refusalOf(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Refusal | null> {
    const { request, deadline } = call;
    const byCeiling = await this.#byCeiling(call, reply, askedAt);
    if (reply.kind === 'refused') return laterOf(call, reply, byCeiling);
    const graceMs = request.admission.reservation === undefined ? 0 : returnGraceMs;
    // What is left of its own wait, without the time that its deadline adds for stores' replies.
    const withinMs = Math.min(Math.max(request.maxWaitMs, graceMs), deadline - this.#now());
    if (byCeiling.waitMs > withinMs) return waitTooLong(byCeiling, request);
    // It is more urgent than others that wait for a slot of its ceiling.
    if (call.lane.waiting > reply.ahead) this.plan();
    return null;
  }

  /** How long the ceiling holds an arriving call that waits, or would have waited. */
  async #byCeiling(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Hold> {
    const { ceiling } = call.request;
    if (!('ahead' in reply) || !hasLimits(ceiling)) return notHeld;
    const position = this.#registry.turns(call.lane)(call.lane, reply.ahead);
    const [hold = notHeld] = await this.#parts.ceilings.forecast(ceiling, [position], this.#now() - askedAt);
    call.slotExpectedAt = this.#now() + hold.waitMs;
    return hold;
  }

  /** Calls are held; called some times in a second while that lasts. */
  onHeld(): void {
    if (this.#now() >= this.#lookedAt + lookEveryMs) this.plan();
  }

  /** A bucket (`lane` is `null`), or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const name = lane === null ? bucket : `${bucket} ${lane}`;
    this.#standstills.set(name, Math.max(this.#standstills.get(name) ?? 0, this.#now() + stillMs));
    this.plan();
  }

  /** The ceiling has no slots but these `count`, which are kept for reservations of others for `waitMs` at least. */
  onKept(call: QueuedCall, { waitMs, count }: { readonly waitMs: number; readonly count: number }): void {
    if (this.#now() + waitMs <= call.deadline) return;
    this.#parts.detached(this.#refuseHeld(call, { waitMs, heldBy: 'ceiling_minute' }, count));
  }

  /** Configuration changed: calls that were expected to leave in time may be late. */
  onReconfigured(calls: readonly QueuedCall[]): void {
    const waiting = calls.filter((call) => call.isWaiting);
    for (const inBucket of Map.groupBy(waiting, ({ request }) => request.admission.bucket).values())
      this.#parts.detached(this.#refuseLateOf(inBucket.slice(0, maxRejudged)));
    this.#look();
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

  /** Something has happened, such as that a ceiling had no slot, by which slots may come later than was forecast. */
  plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    const inMs = togetherMs + this.#registry.calls.size * togetherPerCallMs;
    this.#parts.clock.after(inMs, () => {
      this.#isPlanned = false;
      this.#look();
    });
  }

  #look(): void {
    const now = this.#now();
    this.#lookedAt = now;
    if (this.#standstills.size > 0)
      for (const call of this.#registry.calls.values()) {
        const { bucket, lane } = call.request.admission;
        const untils = [bucket, `${bucket} ${lane}`].map((name) => this.#standstills.get(name) ?? 0);
        const until = Math.max(...untils);
        if (!call.isWaiting || until <= call.deadline) continue;
        this.#parts.detached(this.#refuseHeld(call, { waitMs: until - now, heldBy: 'closed' }));
      }
    this.#standstills.clear();
    this.#lookAtCeilings();
  }

  #lookAtCeilings(): void {
    // Others may go before a background call as long as it waits, and it is not refused for that.
    const waiting = [...this.#registry.calls.values()].filter(
      (call) => call.isWaiting && !isBackground(call.lane.key),
    );
    // Limits differ between buckets where a default ceiling has yielded to what a bucket states.
    const ceilingOf = ({ request }: QueuedCall): CeilingRef => present(request, this.#parts.limiter).ceiling;
    const named = Map.groupBy(waiting, (call) => `${ceilingOf(call).key} ${limitsOf(ceilingOf(call))}`);
    for (const calls of named.values()) {
      const [ceiling] = calls.slice(0, 1).map(ceilingOf);
      if (ceiling !== undefined && hasLimits(ceiling)) this.#parts.detached(this.#lookAt(ceiling, calls));
    }
  }

  /** Forecasts slots for the calls under the ceiling in their order, and refuses the late ones. */
  async #lookAt(ceiling: CeilingRef, calls: readonly QueuedCall[]): Promise<void> {
    const waiting = this.#registry.waitingUnder(ceiling.key);
    const positions = Array.from({ length: waiting }, (_, index) => index + 1);
    await Promise.all([...new Set(calls.map(({ lane }) => lane))].map(asked));
    const holds = await this.#parts.ceilings.forecast(ceiling, positions);
    // Mostly it holds nobody, and there are very many calls to look at.
    if (holds.some(({ waitMs }) => waitMs > 0))
      this.#refuseLate(inTurn(calls.filter((call) => call.isWaiting)), holds);
  }

  /** @param holds by position: how long the ceiling holds the call there. The last one stands for all positions behind it. */
  #refuseLate(calls: readonly QueuedCall[], holds: readonly Hold[]): void {
    const [first] = calls;
    if (first === undefined) return;
    const now = this.#now();
    const positionOf = this.#registry.turns(first.lane);
    // Callers of a workspace take turns, also with calls that name none: the limiter alone knows in which order, and they wait until it is their
    // turn or their wait is over.
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
      ahead.set(call.lane, before + 1);
    }
  }

  /** Forecasts the waits of these calls again, and refuses the late ones, one after the other, so that a refused call is not part of the next one's forecast. */
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
    const position = this.#registry.turns(lane)(lane, ahead);
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

/** The calls about as they leave: those that came back, then the most urgent first, then as they entered. */
const inTurn = (calls: readonly QueuedCall[]): readonly QueuedCall[] =>
  calls.toSorted((one, other) => rankOf(one) - rankOf(other));

/** The refusal with the later time: the limiter's, or that of the ceiling's slot. */
function laterOf({ request }: QueuedCall, reply: Refused, byCeiling: Hold): Refusal {
  if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, request);
  return reply.reason === 'wait_too_long'
    ? waitTooLong(byCeiling, request)
    : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, request);
}
