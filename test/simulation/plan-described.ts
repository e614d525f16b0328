/** Histories whose upstreams are described by their windows, which change by reload while calls wait, as does the number of calls in flight. */
import type { Chance } from './chance.ts';
import { slowestOf, type WindowPlan } from './described.ts';
import { plainBucket } from './plan-buckets.ts';
import { otherLane, otherWorkspace, reloadPlans, type Scene } from './plan-reloads.ts';
import type { BucketPlan, LanePlan } from './plan.ts';
import type { Regime, ReloadPlan } from './rules.ts';

const lengthsMs = [1_000, 2_000, 4_000, 20_000, 60_000] as const;
const maxWindows = 3;

export function describedBucket(chance: Chance, key: string): BucketPlan {
  let windows: readonly WindowPlan[] = [];
  const wanted = chance.pick([1, 1, 2, 3]);
  while (windows.length < wanted) windows = withAnother(chance, windows);
  const learn = chance.happens(0.5);
  const hints = chance.happens(0.85);
  const bucket = plainBucket(key, { limit: 1, windowMs: 1 });
  return describedAs({ ...bucket, statedShare: null, reports: 'nothing', learn, hints }, windows);
}

/** Its requests are those of the window that takes longest for one call. */
const describedAs = (bucket: BucketPlan, windows: readonly WindowPlan[]): BucketPlan => ({
  ...bucket,
  requests: slowestOf(windows),
  windows,
});

/** Windows change, and with them caps; weights and ceilings seldom. */
export const describedReloads = (chance: Chance, first: Regime, scene: Scene): ReloadPlan[] =>
  reloadPlans(chance, first, scene, changed);

const changed = (chance: Chance, { buckets, lanes, workspaces }: Regime): Regime => ({
  buckets: buckets.map((bucket) =>
    chance.happens(0.8) ? describedAs(bucket, otherWindows(chance, bucket.windows ?? [])) : bucket,
  ),
  lanes: lanes.map((lane) => otherCap(chance, chance.happens(0.2) ? otherLane(chance, lane) : lane)),
  workspaces: workspaces.map((one) => (chance.happens(0.2) ? otherWorkspace(chance, one) : one)),
});

const otherCap = (chance: Chance, lane: LanePlan): LanePlan =>
  chance.happens(0.4) ? { ...lane, maxInFlight: chance.pick([null, 1, 2, 4]) } : lane;

/** One of the windows is lowered, raised, of another length or kind, or gone, or there is one more. */
function otherWindows(chance: Chance, windows: readonly WindowPlan[]): readonly WindowPlan[] {
  const [first, ...others] = windows;
  if (first === undefined || (windows.length < maxWindows && chance.happens(0.12)))
    return withAnother(chance, windows);
  const one = chance.pick([first, ...others]);
  if (chance.happens(0.12)) return windows.filter((each) => each !== one);
  const changed = chance.pick([lowered, lowered, raised, otherLength, otherLength, otherKind])(chance, one);
  const rest = windows.filter((each) => each !== one);
  return inOrder([...rest.filter(({ windowMs }) => windowMs !== changed.windowMs), changed]);
}

const lowered = (chance: Chance, one: WindowPlan): WindowPlan => ({
  ...one,
  requests: Math.max(1, Math.floor(one.requests * chance.pick([0.5, 0.25, 0.1]))),
});

const raised = (chance: Chance, one: WindowPlan): WindowPlan => ({
  ...one,
  requests: one.requests * chance.pick([2, 4]),
});

const otherLength = (chance: Chance, one: WindowPlan): WindowPlan => ({
  ...one,
  windowMs: chance.pick(lengthsMs),
});

const otherKind = (chance: Chance, one: WindowPlan): WindowPlan => ({
  ...one,
  kind: chance.pick(['rolling', 'fixed', 'leaky']),
});

function withAnother(chance: Chance, windows: readonly WindowPlan[]): readonly WindowPlan[] {
  const one: WindowPlan = {
    requests: chance.pick([1, 2, 3, 5, 10, 20, 40]),
    windowMs: chance.pick(lengthsMs),
    kind: chance.pick(['rolling', 'rolling', 'fixed', 'leaky']),
  };
  return inOrder([...windows.filter(({ windowMs }) => windowMs !== one.windowMs), one]);
}

const inOrder = (windows: readonly WindowPlan[]): readonly WindowPlan[] =>
  windows.toSorted((one, other) => one.windowMs - other.windowMs);
