/** Histories with all kinds of upstreams and calls, in which little breaks: of one process, and of replicas whose Redis is always there. */
import { originOf } from '../support/origins.ts';
import { Chance, describedFrom, levelsFrom } from './chance.ts';
import { bucketPlan } from './plan-buckets.ts';
import { callPlans } from './plan-calls.ts';
import { describedBucket, describedReloads } from './plan-described.ts';
import { saturated, withLevels } from './plan-levels.ts';
import { pinned, reloadPlans } from './plan-reloads.ts';
import { lanesOf, specialWorld, workspaceOf } from './plan-special.ts';
import type { Plan, WorkspacePlan } from './plan.ts';
import { quiet, startMs } from './replicas/plan.ts';

/** Reloads come until so long after the last call. Milliseconds. */
const afterLastMs = 15_000;

type OfBoth =
  'seed' | 'leaseMs' | 'lostWakes' | 'buckets' | 'lanes' | 'workspaces' | 'calls' | 'reloads' | 'replicas';
/** A plan whose times count from the first call, and for any number of processes. */
interface Drawn extends Pick<Plan, OfBoth> {
  /** Mean way to a store that the processes share. Milliseconds. */
  readonly wireMs: number;
  readonly stalls: readonly { readonly at: number; readonly ms: number }[];
}

export const mixedPlanOf = (seed: number): Plan => placed(drawn(seed));

/** Several processes share a Redis, which takes them some time to find. */
function placed({ wireMs, stalls, ...plan }: Drawn): Plan {
  const { seed, replicas } = plan;
  const homes = new Chance(seed ^ 0x40e5);
  const origin = originOf(seed, new Chance(seed ^ 0x0419).next());
  const isAlone = replicas === 1;
  const fromMs = isAlone ? 0 : startMs;
  const later = (all: readonly WorkspacePlan[]): readonly WorkspacePlan[] =>
    all.map((one) => ({ ...one, revokedAt: one.revokedAt + fromMs }));
  return {
    ...plan,
    origin,
    uptimesMs: isAlone ? [origin.ms] : [],
    isAlone,
    whenDown: 'deny',
    network: { ...quiet, meanMs: isAlone ? 0 : wireMs },
    faults: isAlone ? stalls.map(({ at, ms }) => ({ at, kind: 'pause', slot: 0, ms })) : [],
    frozenWrites: 0,
    calls: plan.calls.map((call) => {
      const slot = homes.whole(0, replicas - 1);
      return { ...call, at: call.at + fromMs, leavesAt: call.leavesAt + fromMs, slot };
    }),
    workspaces: later(plan.workspaces),
    reloads: plan.reloads.map((one) => ({ ...one, at: one.at + fromMs, workspaces: later(one.workspaces) })),
  };
}

function drawn(seed: number): Drawn {
  if (seed >= describedFrom && seed < levelsFrom) return describedPlanOf(seed);
  const plan = seed < levelsFrom ? quietPlanOf(seed) : levelsPlanOf(seed);
  const chance = new Chance(seed ^ 0x2e10);
  if (!chance.happens(0.7)) return plan;
  const buckets = plan.buckets.map((bucket) => pinned(chance, bucket));
  const toMs = Math.max(0, ...plan.calls.map(({ at }) => at)) + afterLastMs;
  const scene = { processes: plan.replicas, fromMs: 0, toMs };
  return { ...plan, buckets, reloads: reloadPlans(chance, { ...plan, buckets }, scene) };
}

function levelsPlanOf(seed: number): Drawn {
  const chance = new Chance(seed ^ 0x1e7e);
  const flat = quietPlanOf(seed);
  const plan = chance.happens(0.3) ? { ...flat, ...saturated(chance, flat) } : flat;
  return { ...plan, ...withLevels(chance, plan) };
}

function quietPlanOf(seed: number): Drawn {
  const chance = new Chance(seed);
  if (chance.happens(0.1)) return specialPlan(seed, chance);
  const calm = chance.happens(0.4);
  const buckets = Array.from({ length: chance.whole(1, 2) }, (_, index) => bucketPlan(chance, index, calm));
  const spanMs = chance.pick([200, 3_000, 20_000, 70_000]);
  // One workspace far beyond a ceiling that is large enough to leave its edge again.
  const crowd = chance.happens(0.06);
  const crowded = (at: number) => ({ ...workspaceOf(`w${at}`), perMinute: at === 0 ? 20 : null });
  const workspaces = Array.from({ length: chance.whole(1, 4) }, (_, index) =>
    crowd ? crowded(index) : workspacePlan(chance, index, spanMs),
  );
  const maxInFlight = chance.pick([null, null, 1, 1, 2, 3]);
  const weighted = chance.happens(0.5);
  const lanes = lanesOf(workspaces, buckets, () => ({
    weight: weighted ? chance.pick([0.5, 1, 2, 3]) : 1,
    maxInFlight,
  }));
  const replicas = chance.pick([1, 1, 1, 1, 1, 2, 3]);
  return {
    seed,
    replicas,
    wireMs: replicas > 1 || chance.happens(0.2) ? chance.pick([1, 3, 10]) : 0,
    leaseMs: chance.pick([12_000, 15_000, 30_000]),
    lostWakes: chance.happens(0.1) ? 0.5 : 0,
    stalls: stallsOf(chance, 0.2, spanMs),
    buckets,
    lanes,
    workspaces,
    calls: callPlans(chance, { lanes, buckets, spanMs, calm, crowd }),
    reloads: [],
  };
}

const specialPlan = (seed: number, chance: Chance): Drawn => ({
  seed,
  replicas: 1,
  wireMs: 0,
  leaseMs: 15_000,
  stalls: [],
  reloads: [],
  ...specialWorld(chance, ['documents', 'commerce']),
});

function describedPlanOf(seed: number): Drawn {
  const chance = new Chance(seed ^ 0x3d11);
  const buckets = Array.from({ length: chance.pick([1, 1, 1, 2]) }, (_, index) =>
    describedBucket(chance, `b${index}`),
  );
  const spanMs = chance.pick([200, 3_000, 20_000, 70_000]);
  const workspaces = Array.from({ length: chance.pick([1, 1, 2, 3]) }, (_, index) => ({
    ...workspacePlan(chance, index, spanMs),
    perMinute: chance.pick([null, null, null, 8]),
    perDay: null,
  }));
  const maxInFlight = chance.pick([null, null, 1, 2, 4]);
  const lanes = lanesOf(workspaces, buckets, () => ({ weight: 1, maxInFlight }));
  const replicas = chance.pick([1, 1, 1, 2]);
  const calls = callPlans(chance, { lanes, buckets, spanMs, calm: true, crowd: false });
  const first = { buckets, lanes, workspaces };
  return {
    seed,
    replicas,
    wireMs: replicas > 1 || chance.happens(0.1) ? chance.pick([1, 3]) : 0,
    leaseMs: 15_000,
    lostWakes: chance.happens(0.05) ? 0.5 : 0,
    stalls: stallsOf(chance, 0.1, spanMs),
    ...first,
    calls,
    reloads: chance.happens(0.85)
      ? describedReloads(chance, first, { processes: replicas, fromMs: 0, toMs: spanMs + afterLastMs })
      : [],
  };
}

const stallsOf = (chance: Chance, share: number, spanMs: number): Drawn['stalls'] =>
  chance.happens(share)
    ? [{ at: chance.between(0, spanMs + 5_000), ms: chance.pick([50, 1_000, 10_000]) }]
    : [];

function workspacePlan(chance: Chance, index: number, spanMs: number): WorkspacePlan {
  return {
    name: `w${index}`,
    perMinute: chance.pick([null, null, 1, 3, 8, 20, 60]),
    perDay: chance.happens(0.1) ? chance.whole(1, 20) : null,
    maxQueued: chance.pick([1, 4, 1_000, 1_000]),
    revokedAt: chance.happens(0.08) ? chance.between(0, spanMs + 10_000) : Infinity,
  };
}
