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
import { RateLimiterMemory } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { CeilingKey, ReplicaId } from '../ids.ts';
import { type Hold, quotaShare, retryUnavailableMs, type WhenDown } from './limiter.ts';
import type { CeilingCounts, CeilingRef, CeilingState } from './policy/ceiling.policy.ts';
import * as ceilings from './policy/ceiling.policy.ts';
import {
  type Asking,
  type LocalSlot,
  type RedisCeilings,
  type RefusedSlot,
  replyIn,
  SlotResult,
  type Taken,
} from './redis/ceilings.ts';

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
export type TakeReply = (Omit<Taken, 'local'> & { readonly slot: Slot }) | RefusedSlot;

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
  async take(ceiling: CeilingRef, again?: Slot, lateMs = 0): Promise<TakeReply> {
    const known = again === undefined ? null : this.#forget(ceiling, again);
    const shared = isNone(ceiling) ? null : this.#shared;
    const id = shared === null ? '' : (known ?? `${shared.replica}.${(this.#slots += 1)}`);
    const reply = shared === null ? undefined : await shared.redis.take({ ceiling, id, lateMs });
    if (reply?.kind === 'unavailable' && shared?.whenDown() === 'deny')
      throw new Refusal('limiter_unavailable', { retryInMs: retryUnavailableMs });
    const isInRedis = reply !== undefined && reply.kind !== 'unavailable';
    // Redis is away, or there is none: the slot is one of what this process may let through by itself.
    const own = { ceiling: this.#share(ceiling), id, lateMs: reply === undefined ? lateMs : 0 };
    const found = isInRedis ? reply : await this.#local.take(own);
    if (found.kind === 'refused') return found;
    if (shared !== null && ceiling.perMinute !== null) this.#noteSend(ceiling.key, id);
    const { state, dayLeft, local = this.#local.note(ceiling) } = found;
    return { kind: 'taken', slot: { id, isInRedis, local, isGivenBack: false }, state, dayLeft };
  }

  /** Gives back the slot of a call that is not sent. Called at most once for a slot: the count of a day has no names. */
  async giveSlotBack(ceiling: CeilingRef, slot: Slot): Promise<void> {
    const id = this.#forget(ceiling, slot);
    if (isNone(ceiling)) return;
    if (id !== null) await this.#shared?.redis.giveSlotBack(ceiling, id);
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
  ): Promise<readonly Hold[]> {
    const none: Hold = { waitMs: 0, heldBy: 'ceiling_minute' };
    if (isNone(ceiling) || positions.length === 0) return positions.map(() => none);
    const asOf = agoMs === undefined ? null : this.#clock.monotonic() - agoMs;
    const { counts, limits, isOfRedis } = await this.#seen(ceiling);
    if (!isOfRedis && this.#shared?.whenDown() === 'deny') return positions.map(() => none);
    return ceilings.holdsIn(counts, limits, { positions, asOf, now: this.#clock.monotonic() });
  }

  /** The minute ceiling, read without taking; `null` without one. */
  async state(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perMinute === null) return null;
    const { counts, limits } = await this.#seen(ceiling);
    return ceilings.minuteState(counts, limits.perMinute ?? ceiling.perMinute, this.#clock.monotonic());
  }

  /** The day ceiling; `nextSlotMs` is the time to the end of its window. */
  async dayState(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perDay === null) return null;
    const { counts, limits } = await this.#seen(ceiling);
    return ceilings.dayState(counts, limits.perDay ?? ceiling.perDay, this.#clock.monotonic());
  }

  /** Puts this replica's own sends of the last window back, where Redis does not have them. False: Redis did not reply. */
  async restore(): Promise<boolean> {
    const now = this.#clock.monotonic();
    const recent = Array.from(this.#sends, ([id, { key, at }]) => ({ key, id, ageMs: now - at })).filter(
      ({ ageMs }) => ageMs < ceilings.ceilingWindowMs,
    );
    for (const [key, sends] of Map.groupBy(recent, (send) => send.key)) {
      if ((await this.#shared?.redis.restore(key, sends)) === false) return false;
    }
    return true;
  }

  #noteSend(key: CeilingKey, id: string): void {
    const at = this.#clock.monotonic();
    for (const [old, send] of this.#sends) {
      if (at - send.at < ceilings.ceilingWindowMs) break;
      this.#sends.delete(old);
    }
    // At the end, also when it was known.
    this.#sends.delete(id);
    this.#sends.set(id, { key, at });
  }

  /** What is counted under the ceiling, and the limits that hold for it: of all replicas, or of this one alone. */
  async #seen(ceiling: CeilingRef) {
    const counts = (await this.#shared?.redis.read(ceiling.key)) ?? null;
    return counts === null
      ? { counts: this.#local.countsOf(ceiling.key), limits: this.#share(ceiling), isOfRedis: false }
      : { counts, limits: ceiling, isOfRedis: true };
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

/** What this process counts, by the library's limiter in memory with a sliding log and a day in the place of its fixed window. */
class LocalCeilings extends RateLimiterMemory {
  readonly #clock: Clock;
  readonly #counts = new Map<CeilingKey, CeilingCounts>();
  #sweepAt = 0;

  constructor(clock: Clock) {
    super({ points: 1, duration: Math.ceil(ceilings.ceilingWindowMs / 1_000) });
    this.#clock = clock;
  }

  take(asking: Asking): Promise<Taken | RefusedSlot> {
    return replyIn(this.consume(asking.ceiling.key, 1, asking));
  }

  /** The minute is asked first because it refuses most often and without a trace; when the day refuses, the minute's slot goes back. */
  override async consume(_key: string, _points: number, asking: Asking): Promise<SlotResult> {
    const { key, perMinute, perDay } = asking.ceiling;
    const now = this.#clock.monotonic();
    const counts = this.countsOf(key);
    const { lateMs } = asking;
    const taken =
      perMinute === null ? null : ceilings.takeSlot(counts.log, { limit: perMinute, lateMs }, now);
    if (taken?.kind === 'refused') throw new SlotResult({ ...taken, isDaily: false });
    const minute = taken?.slot ?? null;
    const left = perDay === null ? null : ceilings.dayLeft(counts, perDay, now);
    if (left !== null && left.calls <= 0) {
      this.giveBack(key, { minute, day: null });
      throw new SlotResult({ kind: 'refused', waitMs: left.endsInMs, isDaily: true });
    }
    const state = perMinute === null ? null : ceilings.minuteState(counts, perMinute, now);
    const local = { minute, day: left === null ? null : ceilings.countOfDay(counts, now) };
    return new SlotResult({ kind: 'taken', state, dayLeft: left === null ? null : left.calls - 1, local });
  }

  /** Counts a send that another store allowed, whatever the limits are. */
  note({ key, perMinute, perDay }: CeilingRef): LocalSlot {
    const now = this.#clock.monotonic();
    const counts = this.countsOf(key);
    const taken = perMinute === null ? null : ceilings.takeSlot(counts.log, { limit: Infinity }, now);
    const minute = taken?.kind === 'taken' ? taken.slot : null;
    return { minute, day: perDay === null ? null : ceilings.countOfDay(counts, now) };
  }

  /** A day that is over stays as it was. */
  giveBack(key: CeilingKey, { minute, day: endsAt }: LocalSlot): void {
    const counts = this.#counts.get(key);
    if (minute !== null) ceilings.giveSlotBack(counts?.log ?? [], minute);
    if (counts?.day?.endsAt === endsAt && counts.day.calls > 0) counts.day.calls -= 1;
  }

  /** What is counted under a ceiling. Once a window those are forgotten that count nothing. */
  countsOf(key: CeilingKey): CeilingCounts {
    const now = this.#clock.monotonic();
    if (now >= this.#sweepAt) {
      this.#sweepAt = now + ceilings.ceilingWindowMs;
      for (const [each, counts] of this.#counts)
        if (ceilings.expire(counts.log, now).live === 0 && ceilings.dayOf(counts, now) === null)
          this.#counts.delete(each);
    }
    let counts = this.#counts.get(key);
    if (counts === undefined) this.#counts.set(key, (counts = { log: [], day: null }));
    return counts;
  }
}
