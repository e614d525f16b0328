/**
 * How much more a workspace could send: the arrivals of the last hour, its own and those of everybody in its bucket,
 * replayed against the limits. Owns the cache of replays and the pauses between them; does not own the replay itself
 * (`headroom.policy.ts`).
 */
import type { Clock } from '../clock.ts';
import { headroom, type Headroom } from './headroom.policy.ts';
import type { LaneLimits } from './limits.policy.ts';
import type { ActivityLaneId, Recorder } from './recorder.ts';

export interface Replays {
  /** Cached for `headroomAgeMs`: a replay of an hour takes 1 to 2 ms. */
  headroomOf(id: ActivityLaneId, limits: LaneLimits): Promise<Headroom>;
  /** Resolves after other events have been handled, so that calls do not wait for many replays in a row. */
  yieldToCalls(): Promise<void>;
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
  const yieldToCalls = (): Promise<void> => new Promise((resume) => void clock.after(0, resume));

  function headroomOf(id: ActivityLaneId, limits: LaneLimits): Promise<Headroom> {
    const now = clock.monotonic();
    forgetOld(headrooms, now);
    const name = `${id.upstream} ${id.workspaceId}`;
    let known = headrooms.get(name);
    if (known === undefined) headrooms.set(name, (known = { at: now, result: replay(id, limits) }));
    return known.result;
  }

  /**
   * The arrivals of all workspaces that share the quota, read once for all of them: what the others of one workspace sent is
   * this total less its own arrivals up to the same instant. To add up the others for each workspace would take time in the
   * square of their number, and the lanes of many are forgotten.
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

  async function replay(id: ActivityLaneId, limits: LaneLimits): Promise<Headroom> {
    const total = limits.bucket?.shared === true ? sharedArrivals(id.upstream) : null;
    const everybody = total === null ? [] : await total.seconds;
    const own = await recorder.arrivals(id.workspaceId, id.upstream, total?.until);
    // Own calls that arrived since the total was read affect only the second that was running then.
    const others = own.map((n, second) => Math.max(0, (everybody[second] ?? 0) - n));
    return headroom(own, others, limits, limits.maxWaitMs);
  }

  return { headroomOf, yieldToCalls };
}

/** Drops entries older than `headroomAgeMs`. Entries are in order of age, so the scan stops at the first fresh one. */
function forgetOld(remembered: Map<string, { readonly at: number }>, now: number): void {
  for (const [key, { at }] of remembered) {
    if (now - at <= headroomAgeMs) return;
    remembered.delete(key);
  }
}
