/**
 * The sliding log of `ceiling.policy.ts` behind rate-limiter-flexible's API, in this process's memory. It is the
 * embedded store of the ceiling and the insurance of the Redis one.
 *
 * `consume` resolves while slots are left and rejects with a `RateLimiterRes` whose `msBeforeNext` is the true wait,
 * as the library means it; a refusal writes nothing. Keys idle for a window are forgotten.
 */
import { RateLimiterCompatibleAbstract, RateLimiterRes } from 'rate-limiter-flexible';
import type { Clock } from '../../clock.ts';
import {
  ceilingWindowMs,
  expire,
  giveSlotBack,
  slotInMs,
  sentSince,
  takeSlot,
  type SlotResult,
} from '../policy/ceiling.policy.ts';

/** Thrown for the parts of the library's API that have no meaning for a sliding log. */
const unsupported = (method: string): Error => new Error(`a sliding log has no ${method}`);

/** A taken slot: the library's result plus the send time that identifies the slot. */
export class SlotTaken extends RateLimiterRes {
  readonly slot: number;

  /** `used`: slots of the window. */
  constructor({ remaining, nextSlotMs, slot }: Extract<SlotResult, { kind: 'taken' }>, used: number) {
    super(remaining, nextSlotMs, used, used === 1);
    this.slot = slot;
  }
}

/** Options of a call: the limit may differ from key to key. */
interface LogOptions {
  /** Slots per window. */
  readonly points?: number;
  /** How much later than now the call may leave (`consume`). Milliseconds. */
  readonly lateMs?: number;
  /** Slot to give back (`reward`). */
  readonly slot?: number;
}

export class EmbeddedSlidingLog extends RateLimiterCompatibleAbstract {
  override readonly keyPrefix: string;
  /** The owner of an insurance limiter writes these two; a log has neither. */
  override blockDuration = 0;
  override execEvenly = false;
  readonly #clock: Clock;
  readonly #points: number;
  readonly #logs = new Map<string, number[]>();
  #sweepAt = 0;

  constructor(options: { readonly clock: Clock; readonly points: number; readonly keyPrefix: string }) {
    super();
    this.#clock = options.clock;
    this.#points = options.points;
    this.keyPrefix = options.keyPrefix;
  }

  /** Takes one slot. Rejects with a `RateLimiterRes` when none is left. */
  override async consume(key: string | number, _points = 1, options: LogOptions = {}): Promise<SlotTaken> {
    const now = this.#clock.monotonic();
    this.#sweep(now);
    const limit = options.points ?? this.#points;
    const log = this.#logs.get(String(key)) ?? [];
    const result = takeSlot(log, { limit, lateMs: options.lateMs }, now);
    if (result.kind === 'refused') {
      throw new RateLimiterRes(0, result.waitMs, limit + 1, false);
    }
    this.#logs.set(String(key), log);
    return new SlotTaken(result, limit - result.remaining);
  }

  /** Gives back the slot named in the options. */
  override async reward(
    key: string | number,
    _points = 1,
    options: LogOptions = {},
  ): Promise<RateLimiterRes> {
    const log = this.#logs.get(String(key)) ?? [];
    if (options.slot !== undefined) giveSlotBack(log, options.slot);
    return this.#read(log, options.points ?? this.#points);
  }

  override async get(key: string | number, options: LogOptions = {}): Promise<RateLimiterRes | null> {
    const log = this.#logs.get(String(key));
    return log === undefined ? null : this.#read(log, options.points ?? this.#points);
  }

  /** Milliseconds until the call finds a slot that was the k-th `agoMs` ago. */
  slotInMs(key: string, limit: number, { k, agoMs = 0 }: { k: number; agoMs?: number | undefined }): number {
    const log = this.#logs.get(key) ?? [];
    const now = this.#clock.monotonic();
    return slotInMs(log, { limit, k: Math.max(1, k - sentSince(log, now - agoMs)) }, now);
  }

  override async delete(key: string | number): Promise<boolean> {
    return this.#logs.delete(String(key));
  }

  override penalty(): Promise<never> {
    return Promise.reject(unsupported('penalty'));
  }

  override set(): Promise<never> {
    return Promise.reject(unsupported('set'));
  }

  override block(): Promise<never> {
    return Promise.reject(unsupported('block'));
  }

  #read(log: number[], limit: number): RateLimiterRes {
    const now = this.#clock.monotonic();
    const { first, live } = expire(log, now);
    const oldest = log[first];
    const next = oldest === undefined ? 0 : Math.max(0, oldest + ceilingWindowMs - now);
    return new RateLimiterRes(Math.max(0, limit - live), next, live, live === 0);
  }

  /** Once a window, drops the logs that have run empty. */
  #sweep(now: number): void {
    if (now < this.#sweepAt) return;
    this.#sweepAt = now + ceilingWindowMs;
    for (const [key, log] of this.#logs) {
      if (expire(log, now).live === 0) this.#logs.delete(key);
    }
  }
}
