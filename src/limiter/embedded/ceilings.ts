/**
 * Ceilings of one process: the sliding log per minute and the fixed window per day.
 *
 * A call needs a slot of both. The minute is asked first because it refuses most often and without a trace; when the day
 * refuses, the minute's slot goes back.
 */
import { RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../../clock.ts';
import { holdAt, type CeilingHold, type DayLeft } from '../policy/ceiling.policy.ts';
import {
  CeilingSlot,
  type CeilingKey,
  type CeilingRef,
  type Ceilings,
  type CeilingState,
  type ForecastQuestion,
  type TakeReply,
} from '../ceilings.ts';
import { DayCounts, dayMs } from './day-counts.ts';
import { EmbeddedSlidingLog } from './sliding-log.ts';

/** A slot of this store: its send time under the minute ceiling, and when the day began that counts it (`null` = not taken). */
export class EmbeddedSlot extends CeilingSlot {
  protected readonly store = 'embedded';
  readonly minute: number | null;
  readonly day: number | null;

  constructor(minute: number | null, day: number | null) {
    super();
    this.minute = minute;
    this.day = day;
  }
}

export class EmbeddedCeilings implements Ceilings {
  readonly #minutes: EmbeddedSlidingLog;
  // One count per key, whatever the limit is at the moment: it is compared here, so that a limit may change with the count
  // going on.
  readonly #days: DayCounts;
  #onSlotBack: (ceiling: CeilingKey) => void = () => {};

  constructor(clock: Clock) {
    this.#minutes = new EmbeddedSlidingLog({ clock, points: 0, keyPrefix: 'minute' });
    this.#days = new DayCounts(clock);
  }

  async take(ceiling: CeilingRef, again?: CeilingSlot, lateMs = 0): Promise<TakeReply> {
    if (again !== undefined) await this.#giveBack(ceiling, again);
    const { key, perMinute } = ceiling;
    let minute: number | null = null;
    let state: CeilingState | null = null;
    try {
      if (perMinute !== null) {
        const taken = await this.#minutes.consume(key, 1, { points: perMinute, lateMs });
        minute = taken.slot;
        state = { limit: perMinute, remaining: taken.remainingPoints, nextSlotMs: taken.msBeforeNext };
      }
    } catch (refusal) {
      if (!(refusal instanceof RateLimiterRes)) throw refusal;
      const full = { limit: perMinute ?? 0, remaining: 0, nextSlotMs: refusal.msBeforeNext };
      return { kind: 'refused', waitMs: refusal.msBeforeNext, isDaily: false, state: full };
    }
    const left = this.#dayLeft(ceiling);
    if (left === null || left.calls > 0) {
      const day = left === null ? null : this.#days.count(key).since;
      const dayLeft = left === null ? null : left.calls - 1;
      return { kind: 'taken', slot: new EmbeddedSlot(minute, day), state, dayLeft };
    }
    if (minute !== null) await this.#minutes.reward(key, 1, { slot: minute });
    return { kind: 'refused', waitMs: left.endsInMs, isDaily: true, state: await this.state(ceiling) };
  }

  /** Counts a send that another store allowed, whatever the limits are. */
  async note({ key, perMinute, perDay }: CeilingRef): Promise<EmbeddedSlot> {
    const points = Number.MAX_SAFE_INTEGER;
    const minute = perMinute === null ? null : (await this.#minutes.consume(key, 1, { points })).slot;
    return new EmbeddedSlot(minute, perDay === null ? null : this.#days.count(key).since);
  }

  async giveSlotBack(ceiling: CeilingRef, slot: CeilingSlot): Promise<void> {
    await this.#giveBack(ceiling, slot);
    if (ceiling.perMinute !== null || ceiling.perDay !== null) this.#onSlotBack(ceiling.key);
  }

  async #giveBack({ key }: CeilingRef, slot: CeilingSlot): Promise<void> {
    if (!(slot instanceof EmbeddedSlot)) return;
    if (slot.minute !== null) await this.#minutes.reward(key, 1, { slot: slot.minute });
    if (slot.day !== null) this.#days.giveBack(key, slot.day);
  }

  listen(onSlotBack: (ceiling: CeilingKey) => void): void {
    this.#onSlotBack = onSlotBack;
  }

  async forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    { agoMs }: ForecastQuestion = {},
  ): Promise<readonly CeilingHold[]> {
    const { key, perMinute } = ceiling;
    const day = this.#dayLeft(ceiling);
    return positions.map((k) => {
      const minuteMs = perMinute === null ? 0 : this.#minutes.slotInMs(key, perMinute, { k, agoMs });
      return holdAt(minuteMs, k, day);
    });
  }

  async state({ key, perMinute }: CeilingRef): Promise<CeilingState | null> {
    if (perMinute === null) return null;
    const seen = await this.#minutes.get(key, { points: perMinute });
    return {
      limit: perMinute,
      remaining: seen?.remainingPoints ?? perMinute,
      nextSlotMs: seen?.msBeforeNext ?? 0,
    };
  }

  async dayState({ key, perDay }: CeilingRef): Promise<CeilingState | null> {
    if (perDay === null) return null;
    const day = this.#days.get(key);
    return {
      limit: perDay,
      remaining: Math.max(0, perDay - (day?.calls ?? 0)),
      nextSlotMs: day?.endsInMs ?? 0,
    };
  }

  async close(): Promise<void> {}

  #dayLeft({ key, perDay }: CeilingRef): DayLeft | null {
    if (perDay === null) return null;
    const day = this.#days.get(key);
    return { calls: Math.max(0, perDay - (day?.calls ?? 0)), endsInMs: day?.endsInMs ?? dayMs };
  }
}
