/**
 * The ceilings port: slots under a workspace's requests per minute and per day on an upstream, counted at the moment of
 * sending. One store keeps them in this process, another one in Redis for all replicas; both sit behind
 * rate-limiter-flexible's own API.
 */

import type { CeilingHold } from './policy/ceiling.policy.ts';
import type { CeilingKey } from '../ids.ts';

export { ceilingWindowMs } from './policy/ceiling.policy.ts';
export type { CeilingHold, CeilingKey };

/** Names one ceiling; `null` = there is none. */
export interface CeilingRef {
  readonly key: CeilingKey;
  readonly perMinute: number | null;
  readonly perDay: number | null;
}

/** A slot that was taken, to be given back when the call is not sent after all. Only the store that gave it can read it. */
export abstract class CeilingSlot {
  protected abstract readonly store: 'embedded' | 'failover';
}

/** State of the minute ceiling for the `RateLimit` fields; `null` when there is none. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until the next slot frees. */
  readonly nextSlotMs: number;
}

export type TakeReply =
  | { readonly kind: 'taken'; readonly slot: CeilingSlot; readonly state: CeilingState | null }
  | {
      readonly kind: 'refused';
      readonly waitMs: number;
      /** The daily ceiling refused. */
      readonly day: boolean;
      readonly state: CeilingState | null;
    };

/** What is known of the positions of a forecast, and what is to be decided by it. */
export interface ForecastQuestion {
  /**
   * The positions are of so long ago: calls that were sent since may have stood before them, and are not counted twice.
   * Milliseconds; absent: they are of now.
   */
  readonly agoMs?: number;
  /**
   * What matters is whether a slot comes free within this time, and that is answered as exactly as the store can. Otherwise the
   * times may be as much too short as a quarter of a second of other sends makes them. Milliseconds.
   */
  readonly withinMs?: number;
}

export interface Ceilings {
  /**
   * Takes a slot, or refuses without a trace. `again` names a slot of this ceiling that was taken too long before its
   * call may leave: the same slot, counted from now on. `lateMs` (default 0) after the store counts it, the call
   * may still leave: the slot is counted from then.
   */
  take(ceiling: CeilingRef, again?: CeilingSlot, lateMs?: number): Promise<TakeReply>;
  giveBack(ceiling: CeilingRef, slot: CeilingSlot): Promise<void>;
  /** When calls find a slot, if nobody else takes one: for each k of `positions`, the k-th from now (1 = the next). */
  forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    question?: ForecastQuestion,
  ): Promise<readonly CeilingHold[]>;
  /** The minute ceiling, read without taking; `null` without one. */
  state(ceiling: CeilingRef): Promise<CeilingState | null>;
  /** The day ceiling; `nextSlotMs` is the time to the end of its window. */
  dayState(ceiling: CeilingRef): Promise<CeilingState | null>;
  close(): Promise<void>;
}
