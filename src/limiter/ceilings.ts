/**
 * The ceilings port: slots under a workspace's requests per minute and per day on an upstream, counted at the moment of
 * sending: in this process, or in Redis for all replicas (`ceiling-store.ts`); both behind rate-limiter-flexible's own API.
 */

import type { CeilingHold, CeilingLimits, CeilingState } from './policy/ceiling.policy.ts';
import type { CeilingKey } from '../ids.ts';

export { ceilingWindowMs } from './policy/ceiling.policy.ts';
export type { CeilingHold, CeilingKey, CeilingState };

export interface CeilingRef extends CeilingLimits {
  readonly key: CeilingKey;
  /** Beside them, places that are left to other calls under the same ceiling; absent: none. */
  readonly left?: { readonly perMinute: number; readonly perDay: number };
}

/** The ceiling of this key under these limits. */
export const ceilingUnder = (
  key: CeilingKey,
  { perMinute, perDay, left }: Omit<CeilingRef, 'key'>,
): CeilingRef => (left === undefined ? { key, perMinute, perDay } : { key, perMinute, perDay, left });

/** The ceiling with all its places. */
export const whole = ({ key, perMinute, perDay, left }: CeilingRef): CeilingRef => ({
  key,
  perMinute: perMinute === null ? null : perMinute + (left?.perMinute ?? 0),
  perDay: perDay === null ? null : perDay + (left?.perDay ?? 0),
});

/** A slot that was taken, to be given back when the call is not sent after all. Only the store that gave it can read it. */
export abstract class CeilingSlot {
  abstract readonly isGivenBack: boolean;
}

export type TakeReply =
  /** `dayLeft`: calls that the ceiling of the day allows after this one; `null` = there is none. */
  | {
      readonly kind: 'taken';
      readonly slot: CeilingSlot;
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

export interface Ceilings {
  /**
   * Takes a slot, or refuses and writes nothing. `again` is a slot of this ceiling that was taken too long before its call
   * could leave: that slot is counted from now on instead, and is given back when none is taken, also when this rejects. (A
   * slot in Redis stays counted while Redis cannot be reached: too few sends are allowed then, never too many.) The call may
   * leave up to `lateMs` (default 0) after the store has processed the request: the slot is counted from that later time.
   */
  take(ceiling: CeilingRef, again?: CeilingSlot, lateMs?: number): Promise<TakeReply>;
  /** Gives back the slot of a call that is not sent. Called at most once for a slot: the count of a day has no names. */
  giveSlotBack(ceiling: CeilingRef, slot: CeilingSlot): Promise<void>;
  /** `onSlotBack` is called whenever a slot is given back, by this replica or another: who waits for one may ask again. */
  listen(onSlotBack: (ceiling: CeilingKey) => void): void;
  /**
   * When calls find a slot, if nobody else takes one: for each k of `positions`, the k-th from now (1 = the next).
   * @param agoMs how long ago the positions were determined, milliseconds; left out: now. Sends since then may be calls that stood before
   * these positions, and are not counted twice.
   */
  forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    agoMs?: number,
  ): Promise<readonly CeilingHold[]>;
  /** The minute ceiling, read without taking; `null` without one. */
  state(ceiling: CeilingRef): Promise<CeilingState | null>;
  /** The day ceiling; `nextSlotMs` is the time to the end of its window. */
  dayState(ceiling: CeilingRef): Promise<CeilingState | null>;
}
