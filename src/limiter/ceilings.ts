/**
 * The ceilings port: places under a workspace's requests per minute and per day on an upstream, counted at the moment
 * of sending. `memory-ceilings.ts` keeps them in this process, the Redis twin for all replicas; both sit behind
 * rate-limiter-flexible's own API.
 */

/** Names one ceiling. `key` is a keyed digest of workspace and upstream. `null` = no such ceiling. */
export interface CeilingRef {
  readonly key: string;
  readonly perMinute: number | null;
  readonly perDay: number | null;
}

/** What was taken, to be given back when the call is not sent after all. */
export interface Place {
  readonly minute: number | null;
  readonly day: boolean;
}

/** State of the minute ceiling for the `RateLimit` fields; `null` when there is none. */
export interface CeilingState {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until the next place frees. */
  readonly nextPlaceMs: number;
}

export type TakeReply =
  | { readonly kind: 'taken'; readonly place: Place; readonly state: CeilingState | null }
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
   * What matters is whether a place comes within this time, and that is told as exactly as the store can. Otherwise the
   * times may be as much too short as a quarter of a second of other sends makes them. Milliseconds.
   */
  readonly withinMs?: number;
}

/** How long a ceiling holds a call back, and which; 0 ms: it does not. */
export interface CeilingHold {
  readonly waitMs: number;
  readonly heldBy: 'ceiling_minute' | 'ceiling_day';
}

/** What is left of a day. */
export interface DayLeft {
  /** Calls. */
  readonly calls: number;
  /** Until the count begins anew, milliseconds. */
  readonly endsInMs: number;
}

/** A call's hold, from its wait for the minute and its position under the day (`null` = no such ceiling). */
export const holdAt = (minuteMs: number, position: number, day: DayLeft | null): CeilingHold =>
  day !== null && position > day.calls && day.endsInMs > minuteMs
    ? { waitMs: day.endsInMs, heldBy: 'ceiling_day' }
    : { waitMs: minuteMs, heldBy: 'ceiling_minute' };

export interface Ceilings {
  /**
   * Takes a place, or refuses without a trace. `again` names a place of this ceiling that was taken too long before its
   * call may leave: the same place, counted from now on. `lateMs` (0 unless told) after the store counts it, the call
   * may still leave: the place is counted from then.
   */
  take(ceiling: CeilingRef, again?: Place, lateMs?: number): Promise<TakeReply>;
  giveBack(ceiling: CeilingRef, place: Place): Promise<void>;
  /** When calls find a slot, if nobody else takes one: for each k of `positions`, the k-th from now (1 = the next). */
  forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    question?: ForecastQuestion,
  ): Promise<readonly CeilingHold[]>;
  /** The minute ceiling, read without taking; `null` without one. */
  state(ceiling: CeilingRef): Promise<CeilingState | null>;
  /** The day ceiling; `nextPlaceMs` is the time to the end of its window. */
  dayState(ceiling: CeilingRef): Promise<CeilingState | null>;
  close(): Promise<void>;
}
