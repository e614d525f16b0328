/**
 * How much more a workspace could send: the arrivals of the last hour, its own and those of everybody in its bucket,
 * replayed against the limits. Owns what is remembered of replays and the pauses between them; refuses to own the replay
 * itself (`headroom.policy.ts`).
 */
import type { Clock } from '../clock.ts';
import { headroom, type Headroom } from './headroom.policy.ts';
import type { LaneLimits } from './limits.policy.ts';
import type { LaneId, Recorder } from './recorder.ts';

/** Limits of a workspace on each upstream it may call; empty for an unknown workspace. */
export interface LimitsSource {
  limits(workspaceId: string): readonly LaneLimits[];
}

export interface Replays {
  /** Remembered for a while: replaying an hour takes a millisecond or two. `lanes`: those with arrivals lately. */
  headroomOf(id: LaneId, limits: LaneLimits, lanes: readonly LaneId[]): Promise<Headroom>;
  /** Calls in flight come first. */
  breathe(): Promise<void>;
}

/** How long a replayed headroom is shown before it is computed again, milliseconds. */
const headroomAgeMs = 15_000;

interface GroupTotal {
  readonly at: number;
  /** Wall clock of the last second. */
  readonly until: number;
  readonly seconds: Promise<readonly number[]>;
}

/** Limits of a lane; `undefined` where its workspace may not call its upstream any more. */
export const limitsOf = (source: LimitsSource, { workspaceId, upstream }: LaneId): LaneLimits | undefined =>
  source.limits(workspaceId).find((each) => each.upstream === upstream);

export function createReplays(recorder: Recorder, source: LimitsSource, clock: Clock): Replays {
  const headrooms = new Map<string, { at: number; result: Promise<Headroom> }>();
  const groups = new Map<string, GroupTotal>();
  const breathe = (): Promise<void> => new Promise((resume) => void clock.after(0, resume));

  function headroomOf(id: LaneId, limits: LaneLimits, lanes: readonly LaneId[]): Promise<Headroom> {
    const now = clock.monotonic();
    for (const [key, { at }] of headrooms) if (now - at > headroomAgeMs) headrooms.delete(key);
    const name = `${id.upstream} ${id.workspaceId}`;
    let known = headrooms.get(name);
    if (known === undefined) headrooms.set(name, (known = { at: now, result: replayed(id, limits, lanes) }));
    return known.result;
  }

  /**
   * Arrivals of everybody in a bucket, added up once for all who share it: what the others sent is the total less one's
   * own up to the same instant. Adding the others up for each would cost the square of their number.
   */
  function groupTotal(upstream: string, group: string, lanes: readonly LaneId[]): GroupTotal {
    const now = clock.monotonic();
    for (const [key, { at }] of groups) if (now - at > headroomAgeMs) groups.delete(key);
    const name = `${upstream} ${group}`;
    let known = groups.get(name);
    if (known === undefined) {
      const until = clock.now();
      const own = lanes.filter(
        (lane) => lane.upstream === upstream && limitsOf(source, lane)?.bucket?.group === group,
      );
      groups.set(name, (known = { at: now, until, seconds: added(own, until) }));
    }
    return known;
  }

  async function added(lanes: readonly LaneId[], until: number): Promise<readonly number[]> {
    const total: number[] = [];
    for (const [i, { workspaceId, upstream }] of lanes.entries()) {
      if (i % 16 === 15) await breathe();
      const seconds = await recorder.arrivals(workspaceId, upstream, until);
      for (let second = 0; second < seconds.length; second++) {
        total[second] = (total[second] ?? 0) + (seconds[second] ?? 0);
      }
    }
    return total;
  }

  async function replayed(id: LaneId, limits: LaneLimits, lanes: readonly LaneId[]): Promise<Headroom> {
    const group = limits.bucket?.group;
    const total = group === undefined ? null : groupTotal(id.upstream, group, lanes);
    const everybody = total === null ? [] : await total.seconds;
    const own = await recorder.arrivals(id.workspaceId, id.upstream, total?.until);
    // Own calls that came since the total was taken are in its running second only.
    const others = own.map((n, second) => Math.max(0, (everybody[second] ?? 0) - n));
    return headroom(own, others, limits, limits.maxWaitMs);
  }

  return { headroomOf, breathe };
}
