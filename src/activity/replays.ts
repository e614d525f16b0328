/**
 * How much more a workspace could send: the arrivals of the last hour, its own and those of everybody in its bucket,
 * replayed against the limits. Owns what is remembered of replays and the pauses between them; does not own the replay
 * itself (`headroom.policy.ts`).
 */
import type { Clock } from '../clock.ts';
import { headroom, type Headroom } from './headroom.policy.ts';
import type { LaneLimits } from './limits.policy.ts';
import type { LaneId, Recorder } from './recorder.ts';

export interface Replays {
  /** Remembered for a while: replaying an hour takes a millisecond or two. */
  headroomOf(id: LaneId, limits: LaneLimits): Promise<Headroom>;
  /** Calls in flight come first. */
  breathe(): Promise<void>;
}

/** How long a replayed headroom is shown before it is computed again, milliseconds. */
const headroomAgeMs = 15_000;

/** Arrivals of everybody who shares the quota of an upstream's own credential. */
interface SharedArrivals {
  readonly at: number;
  /** Wall clock of the last second. */
  readonly until: number;
  readonly seconds: Promise<readonly number[]>;
}

export function createReplays(
  recorder: Pick<Recorder, 'arrivals' | 'sharedArrivals'>,
  clock: Clock,
): Replays {
  const headrooms = new Map<string, { at: number; result: Promise<Headroom> }>();
  const together = new Map<string, SharedArrivals>();
  const breathe = (): Promise<void> => new Promise((resume) => void clock.after(0, resume));

  function headroomOf(id: LaneId, limits: LaneLimits): Promise<Headroom> {
    const now = clock.monotonic();
    forgetOld(headrooms, now);
    const name = `${id.upstream} ${id.workspaceId}`;
    let known = headrooms.get(name);
    if (known === undefined) headrooms.set(name, (known = { at: now, result: replayed(id, limits) }));
    return known.result;
  }

  /**
   * Read once for all who share: what the others sent is the total less one's own up to the same instant. Adding the
   * others up for each would cost the square of their number, and many of them are not remembered one by one.
   */
  function sharedArrivals(upstream: string): SharedArrivals {
    const now = clock.monotonic();
    forgetOld(together, now);
    const known = together.get(upstream);
    if (known !== undefined) return known;
    const until = clock.now();
    const read = { at: now, until, seconds: recorder.sharedArrivals(upstream, until) };
    together.set(upstream, read);
    return read;
  }

  async function replayed(id: LaneId, limits: LaneLimits): Promise<Headroom> {
    const total = limits.bucket?.shared === true ? sharedArrivals(id.upstream) : null;
    const everybody = total === null ? [] : await total.seconds;
    const own = await recorder.arrivals(id.workspaceId, id.upstream, total?.until);
    // Own calls that came since the total was taken are in its running second only.
    const others = own.map((n, second) => Math.max(0, (everybody[second] ?? 0) - n));
    return headroom(own, others, limits, limits.maxWaitMs);
  }

  return { headroomOf, breathe };
}

/** The oldest come first in both maps. */
function forgetOld(remembered: Map<string, { readonly at: number }>, now: number): void {
  for (const [key, { at }] of remembered) {
    if (now - at <= headroomAgeMs) return;
    remembered.delete(key);
  }
}
