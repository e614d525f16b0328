/** Reloads of a history, drawn apart from the rest: ceilings, limits, weights and lines go up, down, come and go while calls wait. */
import type { Chance } from './chance.ts';
import type { BucketPlan, LanePlan, WorkspacePlan } from './plan.ts';
import { isStatedAlone, type Regime, type ReloadPlan } from './rules.ts';

export interface Scene {
  readonly processes: number;
  readonly fromMs: number;
  readonly toMs: number;
}

/** Processes read a file that changed within this time of each other. Milliseconds. */
const maxLateMs = 900;

/** @param change what the next configuration says */
export function reloadPlans(
  chance: Chance,
  first: Regime,
  scene: Scene,
  change: (chance: Chance, regime: Regime) => Regime = changed,
): ReloadPlan[] {
  const times = Array.from({ length: chance.pick([1, 1, 2, 3]) }, () =>
    chance.between(scene.fromMs, scene.toMs),
  ).toSorted((one, other) => one - other);
  const reloads: ReloadPlan[] = [];
  const late = (): number => (scene.processes === 1 ? 0 : chance.pick([0, chance.between(0, maxLateMs)]));
  const lates = (): number[] => Array.from({ length: scene.processes }, late);
  for (const at of times) {
    // Drawn in this order, seeds keep the histories that they have always named.
    const before = change === changed ? null : lates();
    const regime = change(chance, reloads.at(-1) ?? first);
    reloads.push({ ...regime, at, latesMs: before ?? lates() });
  }
  return reloads;
}

function changed(chance: Chance, { buckets, lanes, workspaces }: Regime): Regime {
  return {
    buckets: buckets.map((bucket) => (chance.happens(0.6) ? otherBucket(chance, bucket) : bucket)),
    lanes: lanes.map((lane) => (chance.happens(0.3) ? otherLane(chance, lane) : lane)),
    workspaces: workspaces.map((one) => (chance.happens(0.6) ? otherWorkspace(chance, one) : one)),
  };
}

/** An upstream that does what is stated is never stated more than it has. */
function otherBucket(chance: Chance, bucket: BucketPlan): BucketPlan {
  const shares = bucket.calm ? ([1, 0.5, 0.25] as const) : ([1, 0.5, 2, null] as const);
  return { ...bucket, statedShare: chance.pick<number | null>(shares) };
}

export const otherLane = (chance: Chance, lane: LanePlan): LanePlan => ({
  ...lane,
  weight: chance.pick([0.5, 1, 2, 3]),
});

export function otherWorkspace(chance: Chance, workspace: WorkspacePlan): WorkspacePlan {
  const { perMinute, perDay } = workspace;
  const minute = chance.pick([
    perMinute,
    null,
    1,
    (perMinute ?? 2) * 10,
    Math.max(1, Math.floor((perMinute ?? 10) / 2)),
  ]);
  const day =
    perDay === null
      ? chance.pick([null, null, null, 4])
      : chance.pick([perDay, null, perDay * 3, Math.max(1, perDay - 3)]);
  const maxQueued = chance.pick([workspace.maxQueued, workspace.maxQueued, 2, 1_000]);
  return { ...workspace, perMinute: minute, perDay: day, maxQueued };
}

/** Half of the buckets of whose limits nobody knows more than what is stated, so that a change of that shows. */
export const pinned = (chance: Chance, bucket: BucketPlan): BucketPlan =>
  isStatedAlone(bucket) || bucket.statedShare === null || bucket.documents.length > 0 || chance.happens(0.5)
    ? bucket
    : { ...bucket, learn: false };
