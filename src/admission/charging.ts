/**
 * From a grant of the bucket to a lease: charges the ceiling at the moment of sending, lane by lane in order, and hands
 * back what cannot go now.
 *
 * Owns: that order. Refuses to own: whose turn it is (the limiter), callers and their deadlines (`waiting.ts`).
 * Keeps: a grant that comes before its caller waits takes its turn all the same, so that nobody behind it goes first; at
 * the edge of the ceiling nobody overtakes (4); a grant nobody can use goes back whole.
 */
import { ceilingWindowMs } from '../limiter/ceiling.policy.ts';
import type { CeilingRef, CeilingState, Place, TakeReply } from '../limiter/ceilings.ts';
import type { Grant } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import type { Gate, Gates } from './gates.ts';
import { callerTurned, reasonToStop, type Holder } from './holder.ts';
import type { Hopeless } from './hopeless.ts';
import { leaseOf } from './lease.ts';
import { edgeOf } from './shed.policy.ts';
import type { Turns } from './turns.ts';
import type { Waiting } from './waiting.ts';

/** A grant and its call, on the way through their lane's gate. */
interface Granted {
  readonly holder: Holder;
  readonly grant: Grant;
  readonly gate: Gate;
  /** Resolves when the one before is charged; false = it went back. */
  readonly before: Promise<boolean>;
}

/** A place under the ceiling, as it was asked for. */
interface Placed {
  readonly reply: TakeReply;
  /** The limits that it was asked under. */
  readonly ceiling: CeilingRef;
  /**
   * The call has to leave by then, on the monotonic clock: at most `freshMs` after its reply, and after the time that
   * the place is counted from, which is not before it was asked for.
   */
  readonly goodUntil: number;
  /** From asking to the reply, milliseconds. */
  readonly tookMs: number;
}

/** A place older than this is taken again before its call leaves: less than the windows have to spare. Milliseconds. */
const freshMs = 100;
/** A store that takes longer than this to answer is of no use. Milliseconds. */
const mostLateMs = 2_000;

export class Charging {
  readonly #parts: DeskParts;
  readonly #gates: Gates;
  readonly #waiting: Waiting;
  readonly #turns: Turns;
  readonly #hopeless: Hopeless;
  /** How long the ceiling's store takes to answer, while that is more than `freshMs`; else 0. */
  #slowMs = 0;

  constructor(
    parts: DeskParts,
    gates: Gates,
    line: { readonly waiting: Waiting; readonly turns: Turns; readonly hopeless: Hopeless },
  ) {
    this.#parts = parts;
    this.#gates = gates;
    this.#waiting = line.waiting;
    this.#turns = line.turns;
    this.#hopeless = line.hopeless;
  }

  /** A grant arrived. */
  take(grant: Grant): void {
    const holder = this.#waiting.get(grant.ticket);
    if (holder === undefined) return this.#giveUp(grant);
    const gate = this.#gates.underLimits(grant, holder.entry.admission.ceiling);
    const granted: Granted = { holder, grant, gate, before: gate.tail };
    const charged = this.#charge(granted, this.#placeFor(granted));
    gate.tail = charged.catch((failure: unknown) => {
      this.#giveUp(grant);
      this.#waiting.refuse(holder, failure instanceof Error ? failure : new Error('the ceiling failed'));
      return true;
    });
  }

  /** Asks the ceiling for a place that is good when it comes; `null` = it is known to have none. */
  #placeFor({ holder, gate }: Granted): Promise<Placed> | null {
    const now = this.#parts.clock.monotonic();
    if (gate.asleep !== null && now < gate.asleep.until) return null;
    gate.askedAt = now;
    const first = this.#take(holder.entry.ceiling, this.#slowMs);
    return first.then((early) => this.#inTime(holder, early));
  }

  /** Takes a place (again) for a call that leaves up to `lateMs` after the store counts it. */
  async #take(ceiling: CeilingRef, lateMs: number, again?: Place): Promise<Placed> {
    const { clock, ceilings } = this.#parts;
    const askedAt = clock.monotonic();
    const reply = await ceilings.take(ceiling, again, lateMs);
    const tookMs = clock.monotonic() - askedAt;
    this.#slowMs = tookMs <= freshMs ? 0 : Math.min(this.#slowMs, tookMs);
    return { reply, ceiling, goodUntil: askedAt + Math.min(lateMs, tookMs) + freshMs, tookMs };
  }

  /**
   * The ceiling counts from the moment a place was taken, and promises what arrives: a call that could not leave at once
   * takes its place again. Where that alone takes too long, the place is counted from when its reply is expected.
   */
  async #inTime({ entry, deadline }: Holder, early: Placed): Promise<Placed> {
    const { clock } = this.#parts;
    let placed = early;
    while (placed.reply.kind === 'taken' && entry.ceiling.perMinute !== null) {
      const now = clock.monotonic();
      if (now <= placed.goodUntil || now > deadline) break;
      if (placed !== early && placed.tookMs > freshMs) this.#slowMs = Math.min(placed.tookMs, mostLateMs);
      placed = await this.#take(entry.ceiling, this.#slowMs, placed.reply.place);
    }
    return placed;
  }

  /** True when the lane may go on behind this grant. */
  async #charge(granted: Granted, asked: Promise<Placed> | null): Promise<boolean> {
    const { clock, ceilings } = this.#parts;
    const { holder, grant, gate, before } = granted;
    const early = await asked;
    const inOrder = await before;
    const isAsleep = gate.asleep !== null && clock.monotonic() < gate.asleep.until;
    if (early === null || (!inOrder && isAsleep)) {
      await this.#handBack(granted, early?.reply ?? null);
      return false;
    }
    if (early.reply.kind === 'taken') await callerTurned(holder);
    const placed = await this.#inTime(holder, early);
    const { reply } = placed;
    if (reply.kind === 'refused') {
      if (isUnderLimits(placed, holder)) {
        gate.asleep = {
          until: clock.monotonic() + reply.waitMs + this.#turns.delayMs(holder.entry),
          because: reply.day ? 'ceiling_day' : 'ceiling_minute',
        };
      }
      await this.#handBack(granted, null);
      this.#hopeless.onFull(holder.entry.ceiling);
      return false;
    }
    const stop = reasonToStop(holder, clock.monotonic());
    if (stop !== null || holder.waiter === null) {
      await ceilings.giveBack(holder.entry.ceiling, reply.place);
      this.#giveUp(grant);
      if (stop !== null) this.#waiting.refuse(holder, stop);
      return true;
    }
    this.#tellEdge(granted, isUnderLimits(placed, holder) ? reply.state : null);
    this.#waiting.stop(holder)?.resolve(leaseOf(this.#parts, this.#hopeless, holder, grant, reply));
    return true;
  }

  /** At the edge of the ceiling the scheduler counts places; away from it again, it must stop counting. */
  #tellEdge({ gate, grant, holder }: Granted, state: CeilingState | null): void {
    const now = this.#parts.clock.monotonic();
    const mayBeAtEdge = gate.atEdge || knowsNothing(gate, holder.entry.ceiling, now);
    gate.slotAt = now;
    const atEdge = state !== null && state.remaining <= edgeOf(state.limit);
    if (!atEdge && !mayBeAtEdge) return;
    gate.atEdge = atEdge;
    const { limiter, background } = this.#parts;
    if (!atEdge) return background(limiter().charged(grant, null));
    const { remaining: slots, nextPlaceMs } = state;
    if (slots <= 0) gate.fullUntil = now + nextPlaceMs;
    const nextSlotMs = slots <= 0 ? nextPlaceMs + this.#turns.delayMs(holder.entry) : nextPlaceMs;
    background(limiter().charged(grant, { slots, nextSlotMs }));
  }

  /** The ceiling has no place: the ticket goes back to its lane, which sleeps until there is one. */
  async #handBack({ holder, grant, gate }: Granted, reply: TakeReply | null): Promise<void> {
    const { clock, ceilings, limiter } = this.#parts;
    if (reply?.kind === 'taken') await ceilings.giveBack(holder.entry.ceiling, reply.place);
    // Nobody would take a ticket out again whose caller has already left.
    if (holder.left) return this.#giveUp(grant);
    gate.atEdge = true;
    const { until, because } = gate.asleep ?? { until: clock.monotonic(), because: 'ceiling_minute' };
    const sleepMs = Math.max(0, until - clock.monotonic());
    const { ceiling } = holder.entry.admission;
    await limiter().settle(grant, { kind: 'returned', sleepMs, because, ceiling }, null);
  }

  /** A grant nobody can use any more goes back whole. */
  #giveUp(grant: Grant): void {
    this.#parts.background(this.#parts.limiter().settle(grant, { kind: 'dropped' }, null));
  }
}

/**
 * Another replica may have told the scheduler of an edge that this one has not seen: what was sent then is not in the window
 * any more.
 */
function knowsNothing({ slotAt }: Gate, { perMinute, perDay }: CeilingRef, now: number): boolean {
  if (slotAt === null) return true;
  return (perMinute !== null || perDay !== null) && now - slotAt > ceilingWindowMs;
}

/** False: configuration changed since the ceiling was asked, its answer does not hold for what follows. */
const isUnderLimits = ({ ceiling }: Placed, { entry }: Holder): boolean =>
  ceiling.perMinute === entry.ceiling.perMinute && ceiling.perDay === entry.ceiling.perDay;
