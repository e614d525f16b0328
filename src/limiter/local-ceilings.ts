/**
 * Ceilings as this process counts them: the sliding log of the minute and the fixed window of the day. A day begins with the first call
 * of a key and lasts 24 hours, as `redis/lua/consume.lua` counts it.
 *
 * A call needs a slot of both. The minute is asked first because it refuses most often and without a trace; when the day refuses, the
 * minute's slot goes back. Time is the clock's alone, so that a change of the system's time ends no window. Keys whose windows are over
 * are forgotten.
 */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../clock.ts';
import {
  type CeilingRef,
  type CeilingState,
  type CeilingView,
  ceilingWindowMs,
  dayLeft,
  expire,
  giveSlotBack,
  minuteState,
  type SlotRequest,
  takeSlot,
} from './policy/ceiling.policy.ts';

const dayMs = 86_400_000;

/** The send time under the minute ceiling, and when the day began that counts the call; `null` = not taken. */
export interface LocalSlot {
  readonly minute: number | null;
  readonly day: number | null;
}

/** Whether a slot was taken. */
export type Take<Slot> =
  /** `dayLeft`: calls that the ceiling of the day allows after this one; `null` = there is none. */
  | {
      readonly kind: 'taken';
      readonly slot: Slot;
      readonly state: CeilingState | null;
      readonly dayLeft: number | null;
    }
  | {
      readonly kind: 'refused';
      readonly waitMs: number;
      /** True when the ceiling of the day refused, false when that of the minute did. */
      readonly isDaily: boolean;
      readonly state: CeilingState | null;
    };

/** A taken slot: the library's result plus the send time that identifies the slot. */
class SlotTaken extends RateLimiterRes {
  readonly slot: number;

  constructor(slot: number, remaining: number, nextSlotMs: number) {
    super(remaining, nextSlotMs);
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
    return new SlotTaken(result.slot, result.remaining, result.nextSlotMs);
  }

  /** Once a window. */
  #sweep(now: number): void {
    if (now < this.#sweepAt) return;
    this.#sweepAt = now + ceilingWindowMs;
    for (const [key, log] of this.logs) if (expire(log, now).live === 0) this.logs.delete(key);
  }
}

export class LocalCeilings {
  readonly #clock: Clock;
  readonly #minutes: SlidingLog;
  /** One count for a key, whatever its limit is at the moment: a limit may change while the count goes on. */
  readonly #days = new Map<string, { readonly since: number; calls: number }>();
  #sweepAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#minutes = new SlidingLog(clock);
  }

  async take({ key, perMinute, perDay }: CeilingRef, lateMs: number): Promise<Take<LocalSlot>> {
    let minute: number | null = null;
    let state: CeilingState | null = null;
    try {
      if (perMinute !== null) {
        const taken = await this.#minutes.consume(key, 1, { limit: perMinute, lateMs });
        minute = taken.slot;
        state = { limit: perMinute, remaining: taken.remainingPoints, nextSlotMs: taken.msBeforeNext };
      }
    } catch (refusal) {
      if (!(refusal instanceof RateLimiterRes)) throw refusal;
      const full = { limit: perMinute ?? 0, remaining: 0, nextSlotMs: refusal.msBeforeNext };
      return { kind: 'refused', waitMs: refusal.msBeforeNext, isDaily: false, state: full };
    }
    if (perDay === null) return { kind: 'taken', slot: { minute, day: null }, state, dayLeft: null };
    const now = this.#clock.monotonic();
    const left = dayLeft(this.view(key), perDay, now);
    if (left.calls > 0) {
      const slot = { minute, day: this.#countOfDay(key) };
      return { kind: 'taken', slot, state, dayLeft: left.calls - 1 };
    }
    this.giveBack(key, { minute, day: null });
    state = perMinute === null ? null : minuteState(this.view(key), perMinute, now);
    return { kind: 'refused', waitMs: left.endsInMs, isDaily: true, state };
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
