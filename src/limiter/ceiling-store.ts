/**
 * The ceilings of a process: counted here, and in Redis for all replicas where there is one. While Redis is away the operator's choice
 * holds. `local`: this replica lets its share of every ceiling through. `deny`: calls are refused.
 *
 * Invariants: every send is counted here as well, so that the share counts the whole window from the first moment on; every 60 s window
 * holds at most the ceiling over all replicas (1), also over a loss of Redis' data, as long as the replicas that sent are alive; without
 * Redis nobody is let through unseen.
 *
 * In this process a day begins with the first call of a key and lasts 24 hours, as `redis/lua/consume.lua` counts it. Time is the clock's
 * alone, so that a change of the system's time ends no window.
 */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { CeilingKey, ReplicaId } from '../ids.ts';
import {
  type CeilingHold,
  type CeilingRef,
  type CeilingState,
  type CeilingView,
  ceilingWindowMs,
  dayLeft,
  dayState,
  expire,
  giveSlotBack,
  holdAt,
  holdsIn,
  minuteState,
  type SlotRequest,
  takeSlot,
} from './policy/ceiling.policy.ts';
import { quotaShare, retryUnavailableMs, type WhenDown } from './when-down.policy.ts';
import type { RedisCeilings } from './redis/ceilings.ts';
import { dayMs } from '../time-units.ts';

/** A slot that was taken, to be given back when the call is not sent after all. */
export interface Slot {
  /** The slot's name in Redis. */
  readonly id: string;
  /** True when Redis counts the slot. */
  readonly isInRedis: boolean;
  readonly local: LocalSlot;
  isGivenBack: boolean;
}

/** Whether a slot was taken. */
export type TakeReply =
  /** `dayLeft`: calls that the ceiling of the day allows after this one; `null` = there is none. */
  | {
      readonly kind: 'taken';
      readonly slot: Slot;
      readonly state: CeilingState | null;
      readonly dayLeft: number | null;
    }
  /** `isDaily`: the ceiling of the day refused; else that of the minute did. */
  | { readonly kind: 'refused'; readonly waitMs: number; readonly isDaily: boolean };

export interface SharedCeilingParts {
  readonly redis: RedisCeilings;
  readonly replica: ReplicaId;
  /** Number of living replicas. */
  readonly replicas: () => number;
  /** What this replica does while Redis is unavailable. */
  readonly whenDown: () => WhenDown;
  /** A slot went back into Redis. */
  readonly onSlotBack: (ceiling: CeilingKey) => void;
}

/**
 * Slots under a workspace's requests per minute and per day on an upstream, counted at the moment of sending: in this process, or in
 * Redis for all replicas; both behind rate-limiter-flexible's own API.
 */
export type Ceilings = Pick<
  CeilingStore,
  'take' | 'giveSlotBack' | 'listen' | 'forecast' | 'state' | 'dayState'
>;

export class CeilingStore {
  /** `null` = this process is the only one. */
  readonly #shared: SharedCeilingParts | null;
  readonly #clock: Clock;
  readonly #local: LocalCeilings;
  /**
   * What this replica sent in the last window, by the names of the slots and in the order of time: enough to put it back in a Redis that
   * lost its data or was unavailable.
   */
  readonly #sends = new Map<string, { readonly key: CeilingKey; readonly at: number }>();
  #slots = 0;
  #onSlotBack: (ceiling: CeilingKey) => void = () => {};

  constructor(clock: Clock, shared: SharedCeilingParts | null = null) {
    this.#shared = shared;
    this.#clock = clock;
    this.#local = new LocalCeilings(clock);
  }

  /**
   * Takes a slot, or refuses and writes nothing. `again` is a slot of this ceiling that was taken too long before its call
   * could leave: that slot is counted from now on instead, and is given back when none is taken, also when this rejects. (A
   * slot in Redis stays counted while Redis cannot be reached: too few sends are allowed then, never too many.) The call may
   * leave up to `lateMs` (default 0) after the store has processed the request: the slot is counted from that later time.
   */
  take(ceiling: CeilingRef, again?: Slot, lateMs = 0): Promise<TakeReply> {
    const known = again === undefined ? null : this.#forget(ceiling, again);
    if (this.#shared === null || isNone(ceiling)) return this.#takeHere(ceiling, '', lateMs);
    return this.#takeInRedis(this.#shared, ceiling, known, lateMs);
  }

  /** `known`: the name of the slot that is taken again. */
  async #takeInRedis(
    { redis, replica, whenDown }: SharedCeilingParts,
    ceiling: CeilingRef,
    known: string | null,
    lateMs: number,
  ): Promise<TakeReply> {
    this.#slots += 1;
    const id = known ?? `${replica}.${this.#slots}`;
    const { key, perMinute } = ceiling;
    const reply = await redis.take(ceiling, id, lateMs);
    switch (reply.kind) {
      case 'taken': {
        const slot = { id, isInRedis: true, local: await this.#local.note(ceiling), isGivenBack: false };
        if (perMinute !== null) this.#noteSend(key, id);
        const { remaining, nextSlotMs, dayLeft } = reply;
        const state = perMinute === null ? null : { limit: perMinute, remaining, nextSlotMs };
        return { kind: 'taken', slot, state, dayLeft };
      }
      case 'refused':
        return reply;
      case 'unavailable': {
        if (whenDown() === 'deny')
          throw new Refusal('limiter_unavailable', { retryInMs: retryUnavailableMs });
        const taken = await this.#takeHere(ceiling, id, 0);
        if (taken.kind === 'taken' && perMinute !== null) this.#noteSend(key, id);
        return taken;
      }
    }
  }

  /** Gives back the slot of a call that is not sent. Called at most once for a slot: the count of a day has no names. */
  async giveSlotBack(ceiling: CeilingRef, slot: Slot): Promise<void> {
    const id = this.#forget(ceiling, slot);
    if (isNone(ceiling)) return;
    if (this.#shared !== null && id !== null) await this.#shared.redis.giveSlotBack(ceiling, id);
    this.#onSlotBack(ceiling.key);
    if (id !== null) this.#shared?.onSlotBack(ceiling.key);
  }

  /** `onSlotBack` is called whenever a slot is given back, by this replica or another: who waits for one may ask again. */
  listen(onSlotBack: (ceiling: CeilingKey) => void): void {
    this.#onSlotBack = onSlotBack;
  }

  /** Another replica has given a slot back. */
  slotIsBack(key: CeilingKey): void {
    this.#onSlotBack(key);
  }

  /**
   * When calls find a slot, if nobody else takes one: for each k of `positions`, the k-th from now (1 = the next).
   * @param agoMs how long ago the positions were determined, milliseconds; left out: now. Sends since then may be calls that stood before
   * these positions, and are not counted twice.
   */
  async forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    agoMs?: number,
  ): Promise<readonly CeilingHold[]> {
    if (isNone(ceiling) || positions.length === 0) return positions.map((k) => holdAt(0, k, null));
    const asOf = agoMs === undefined ? null : this.#clock.monotonic() - agoMs;
    const { view, limits, isOfRedis } = await this.#seen(ceiling);
    if (!isOfRedis && this.#shared?.whenDown() === 'deny') return positions.map((k) => holdAt(0, k, null));
    return holdsIn(view, limits, { positions, asOf, now: this.#clock.monotonic() });
  }

  /** The minute ceiling, read without taking; `null` without one. */
  async state(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perMinute === null) return null;
    const { view, limits } = await this.#seen(ceiling);
    return minuteState(view, limits.perMinute ?? ceiling.perMinute, this.#clock.monotonic());
  }

  /** The day ceiling; `nextSlotMs` is the time to the end of its window. */
  async dayState(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perDay === null) return null;
    const { view, limits } = await this.#seen(ceiling);
    return dayState(view, limits.perDay ?? ceiling.perDay, this.#clock.monotonic());
  }

  /** Puts this replica's own sends of the last window back, where Redis does not have them. False: Redis did not reply. */
  async restore(): Promise<boolean> {
    const now = this.#clock.monotonic();
    const recent = Array.from(this.#sends, ([id, { key, at }]) => ({ key, id, ageMs: now - at })).filter(
      ({ ageMs }) => ageMs < ceilingWindowMs,
    );
    for (const [key, sends] of Map.groupBy(recent, (send) => send.key)) {
      if ((await this.#shared?.redis.restore(key, sends)) === false) return false;
    }
    return true;
  }

  #noteSend(key: CeilingKey, id: string): void {
    const at = this.#clock.monotonic();
    for (const [old, send] of this.#sends) {
      if (at - send.at < ceilingWindowMs) break;
      this.#sends.delete(old);
    }
    // At the end, also when it was known.
    this.#sends.delete(id);
    this.#sends.set(id, { key, at });
  }

  /** What is counted under the ceiling, and the limits that hold for it: of all replicas, or of this one alone. */
  async #seen(ceiling: CeilingRef) {
    const read = await this.#shared?.redis.read(ceiling.key);
    if (read?.kind === 'view') return { view: read, limits: ceiling, isOfRedis: true };
    return { view: this.#local.view(ceiling.key), limits: this.#share(ceiling), isOfRedis: false };
  }

  /** Takes a slot of what this process may let through by itself. */
  #takeHere(ceiling: CeilingRef, id: string, lateMs: number): Promise<TakeReply> {
    return this.#local.take(this.#share(ceiling), id, lateMs);
  }

  /** Forgets a slot that is about to be taken again or goes back. Returns its name where Redis counts it. */
  #forget({ key }: CeilingRef, slot: Slot): string | null {
    if (slot.isGivenBack) return null;
    slot.isGivenBack = true;
    this.#sends.delete(slot.id);
    this.#local.giveBack(key, slot.local);
    return slot.isInRedis ? slot.id : null;
  }

  /** This process' share of the ceiling, which it enforces without Redis; the whole, where it is the only one. */
  #share(ceiling: CeilingRef): CeilingRef {
    if (this.#shared === null) return ceiling;
    const replicas = this.#shared.replicas();
    const share = (limit: number | null): number | null =>
      limit === null ? null : quotaShare(limit, replicas);
    return { key: ceiling.key, perMinute: share(ceiling.perMinute), perDay: share(ceiling.perDay) };
  }
}

const isNone = ({ perMinute, perDay }: CeilingRef): boolean => perMinute === null && perDay === null;

// What this process counts: the sliding log of the minute and the fixed window of the day. Keys whose windows are over are forgotten

/** The send time under the minute ceiling, and when the day began that counts the call; `null` = not taken. */
export interface LocalSlot {
  readonly minute: number | null;
  readonly day: number | null;
}

/** A taken slot: the library's result plus the send time that identifies the slot. */
class SlotTaken extends RateLimiterRes {
  readonly slot: number;

  constructor(slot: number) {
    super();
    this.slot = slot;
  }
}

/** The library's limiter in memory, with the sliding log of `ceiling.policy.ts` in the place of its fixed window. */
class SlidingLog extends RateLimiterMemory {
  readonly #clock: Clock;
  /** Times of sends by key, ascending. */
  readonly logs = new Map<string, number[]>();
  #sweepAt = 0;

  constructor(clock: Clock) {
    super({ points: 1, duration: Math.ceil(ceilingWindowMs / 1_000) });
    this.#clock = clock;
  }

  /** Takes one slot. Rejects with a `RateLimiterRes` when none is left. */
  override async consume(key: string, _points: number, request: SlotRequest): Promise<SlotTaken> {
    const now = this.#clock.monotonic();
    this.#sweep(now);
    const log = this.logs.get(key) ?? [];
    const result = takeSlot(log, request, now);
    if (result.kind === 'refused') throw new RateLimiterRes(0, result.waitMs);
    this.logs.set(key, log);
    return new SlotTaken(result.slot);
  }

  /** Once a window. */
  #sweep(now: number): void {
    if (now < this.#sweepAt) return;
    this.#sweepAt = now + ceilingWindowMs;
    for (const [key, log] of this.logs) if (expire(log, now).live === 0) this.logs.delete(key);
  }
}

class LocalCeilings {
  readonly #clock: Clock;
  readonly #minutes: SlidingLog;
  /** One count for a key, whatever its limit is at the moment: a limit may change while the count goes on. */
  readonly #days = new Map<string, { readonly since: number; calls: number }>();
  #sweepAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#minutes = new SlidingLog(clock);
  }

  /** The minute is asked first because it refuses most often and without a trace; when the day refuses, the minute's slot goes back. */
  async take({ key, perMinute, perDay }: CeilingRef, id: string, lateMs: number): Promise<TakeReply> {
    let minute: number | null = null;
    if (perMinute !== null) {
      try {
        minute = (await this.#minutes.consume(key, 1, { limit: perMinute, lateMs })).slot;
      } catch (refusal) {
        if (!(refusal instanceof RateLimiterRes)) throw refusal;
        return { kind: 'refused', waitMs: refusal.msBeforeNext, isDaily: false };
      }
    }
    const now = this.#clock.monotonic();
    const left = perDay === null ? null : dayLeft(this.view(key), perDay, now);
    if (left !== null && left.calls <= 0) {
      this.giveBack(key, { minute, day: null });
      return { kind: 'refused', waitMs: left.endsInMs, isDaily: true };
    }
    const state = perMinute === null ? null : minuteState(this.view(key), perMinute, now);
    const day = left === null ? null : this.#countOfDay(key);
    const slot = { id, isInRedis: false, local: { minute, day }, isGivenBack: false };
    return { kind: 'taken', slot, state, dayLeft: left === null ? null : left.calls - 1 };
  }

  /** Counts a send that another store allowed, whatever the limits are. */
  async note({ key, perMinute, perDay }: CeilingRef): Promise<LocalSlot> {
    const limit = Number.MAX_SAFE_INTEGER;
    const minute = perMinute === null ? null : (await this.#minutes.consume(key, 1, { limit })).slot;
    return { minute, day: perDay === null ? null : this.#countOfDay(key) };
  }

  /** A day that is over stays as it was. */
  giveBack(key: string, { minute, day: since }: LocalSlot): void {
    if (minute !== null) giveSlotBack(this.#minutes.logs.get(key) ?? [], minute);
    const day = this.#days.get(key);
    if (day?.since === since && day.calls > 0) day.calls -= 1;
  }

  view(key: string): CeilingView {
    const day = this.#dayOf(key);
    return {
      log: this.#minutes.logs.get(key) ?? [],
      day: day === null ? null : { calls: day.calls, endsAt: day.since + dayMs },
    };
  }

  /** `null` = none has begun, or it is over. */
  #dayOf(key: string): { readonly since: number; calls: number } | null {
    const day = this.#days.get(key);
    return day === undefined || day.since + dayMs <= this.#clock.monotonic() ? null : day;
  }

  /** Counts a call, with which a day begins where none lasts. Returns when the day began. */
  #countOfDay(key: string): number {
    const now = this.#clock.monotonic();
    if (now >= this.#sweepAt) {
      this.#sweepAt = now + dayMs / 24;
      for (const [each, { since }] of this.#days) if (since + dayMs <= now) this.#days.delete(each);
    }
    const day = this.#dayOf(key) ?? { since: now, calls: 0 };
    day.calls += 1;
    this.#days.set(key, day);
    return day.since;
  }
}
