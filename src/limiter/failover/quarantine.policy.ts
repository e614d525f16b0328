/**
 * How long calls of capped lanes are kept after Redis became unavailable: those that it has granted may still be under way.
 * Pure.
 */
import type { HeldBy } from '../../errors.ts';
import type { Admission } from '../limiter.ts';

/** When a call leaves, and what keeps it until then. */
interface Held {
  readonly waitMs: number;
  readonly heldBy: HeldBy;
}

/** What is left of the quarantine of a call; 0 = there is none, also for lanes without a cap. Milliseconds. */
export const quarantineMs = (
  { maxInFlight, leaseMs }: Pick<Admission, 'maxInFlight'> & { readonly leaseMs: number },
  absentMs: number,
): number => (maxInFlight === null ? 0 : Math.max(0, leaseMs - absentMs));

/** The hold that lasts longer: the quarantine, or the wait that the store forecast without it. */
export const longerHold = (keptMs: number, byStore: Held): Held =>
  keptMs > byStore.waitMs ? { waitMs: keptMs, heldBy: 'serialized' } : byStore;
