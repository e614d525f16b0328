/**
 * What happens in one history, decided from its seed before anything runs: the upstream's buckets, who calls when, who
 * leaves, what breaks. Owns: the mixture of situations. Does not own: what is right.
 *
 * `calm` buckets have an upstream that does what it states and nobody else drinking from it: there the promises are
 * exact (no 429 at all). The others have the whole zoo.
 */
import type { Costs } from '../../src/call.ts';
import { originOf, type Origin } from '../support/origins.ts';
import { Chance } from './chance.ts';
import { bucketPlan } from './plan-buckets.ts';
import { callPlans } from './plan-calls.ts';
import { pinned, reloadPlans } from './plan-reloads.ts';
import { specialPlan } from './plan-special.ts';
import type { WindowPlan } from './described.ts';
import { levelsFrom, saturated, withLevels } from './plan-levels.ts';
import { describedBucket, describedFrom, describedReloads } from './plan-described.ts';
import type { Reloaded } from './rules.ts';

export interface MeterPlan {
  readonly limit: number;
  readonly windowMs: number;
}

/** The upstream's own idea of a bucket. */
export interface BucketPlan {
  readonly key: string;
  readonly calm: boolean;
  /** The upstream does what its responses state, and nobody else uses it: a wait that the gateway states can be held against it. */
  readonly isReliable: boolean;
  readonly requests: MeterPlan;
  readonly tokens: MeterPlan | null;
  /** Requests per day, when the upstream has such a quota. */
  readonly perDay: number | null;
  /** GraphQL points. */
  readonly cost: MeterPlan | null;
  /** What GraphQL calls ask for; empty = they ask for what they are taken to cost. */
  readonly documents: readonly DocumentPlan[];
  /** What the operator stated, as a share of the truth; `null` = nothing. */
  readonly statedShare: number | null;
  readonly learn: boolean;
  readonly probe: number;
  /** What responses tell of the level: the exact figure, whole units, nothing, or what a triple of fields can. */
  readonly reports: 'exact' | 'rounded' | 'nothing' | 'fields';
  /** All places of a window come back at its end; otherwise they come back one by one. */
  readonly isFixed: boolean;
  /** Share of the drain that somebody else takes. */
  readonly outsideShare: number;
  /** Outside traffic comes in bursts of this many units. */
  readonly outsideBurst: number;
  /** Share of the limit used before we come. */
  readonly startShare: number;
  readonly changes: readonly { readonly at: number; readonly factor: number }[];
  /** Refusals name the time to wait. */
  readonly hints: boolean;
  /** Everything is refused between these times, with their end as the time to come again. Absent: never. */
  readonly closed?: readonly [from: number, until: number];
  /** The windows that the operator describes and the upstream counts. Absent: it is not described. */
  readonly windows?: readonly WindowPlan[];
}

export interface LanePlan {
  readonly key: string;
  readonly workspace: string;
  readonly bucket: string;
  readonly weight: number;
  readonly maxInFlight: number | null;
}

export interface WorkspacePlan {
  readonly name: string;
  readonly perMinute: number | null;
  readonly perDay: number | null;
  readonly maxQueued: number;
  readonly revokedAt: number;
}

export interface DocumentPlan {
  readonly name: string;
  /** Points that every call of it asks for. */
  readonly points: number;
}

/** `lost`: it ran, but no response comes. `unsent`: the connection fails before a byte is out. */
export type Fate = 'answered' | 'lost' | 'unsent' | 'secondary' | 'overload' | 'permanent';

export interface CallPlan {
  readonly id: string;
  readonly at: number;
  readonly lane: LanePlan;
  /** Absent: it names none. */
  readonly caller?: string;
  readonly callClass: string;
  /** What the gateway takes it to cost. */
  readonly costs: Costs;
  /** A GraphQL document, whose cost only the upstream knows; `null` = the costs are right. */
  readonly document: DocumentPlan | null;
  /** What the upstream really charges, as a share of what it asks for. */
  readonly chargedShare: number;
  readonly urgency: number;
  readonly maxWaitMs: number;
  /** It is let in however long the line is. */
  readonly isLetIn: boolean;
  /** When its client leaves; `Infinity` = stays. */
  readonly leavesAt: number;
  /** From arrival at the upstream to the response's head, and from there to its last byte. */
  readonly serviceMs: number;
  readonly bodyMs: number;
  /** How its first attempt ends; later ones are answered. */
  readonly fate: Fate;
  readonly safe: boolean;
  /** If it is refused, its client comes back. Absent: it does not. */
  readonly reserves?: ReturnPlan;
}

/** A client that comes back for its reservation. */
export interface ReturnPlan {
  /** So long after the told time; `null` = never. Milliseconds. */
  readonly lateMs: number | null;
  /** It sends its ticket to two replicas at once. */
  readonly isTwice: boolean;
  /** Reservations of its ceiling at most. */
  readonly maxReserved: number;
}

export interface Plan extends Reloaded {
  readonly seed: number;
  /** Where the clock of the process begins. The times of a plan count from the beginning of the history. */
  readonly origin: Origin;
  /** One process, or several that share the store over a wire with delays. */
  readonly queues: number;
  readonly wireMs: number;
  readonly leaseMs: number;
  /** Share of the embedded limiter's wake-ups that never come. */
  readonly lostWakes: number;
  readonly stalls: readonly { readonly at: number; readonly ms: number }[];
  readonly calls: readonly CallPlan[];
}

/** Most histories have reloads, drawn apart from the rest. */
export function planOf(seed: number): Plan {
  if (seed >= describedFrom && seed < levelsFrom) return describedPlanOf(seed);
  const plan = seed < levelsFrom ? quietPlanOf(seed) : levelsPlanOf(seed);
  const chance = new Chance(seed ^ 0x2e10);
  if (!chance.happens(0.7)) return plan;
  const buckets = plan.buckets.map((bucket) => pinned(chance, bucket));
  const lastAt = Math.max(0, ...plan.calls.map(({ at }) => at));
  const scene = { processes: plan.queues, fromMs: 0, toMs: lastAt + 15_000 };
  return { ...plan, buckets, reloads: reloadPlans(chance, { ...plan, buckets }, scene) };
}

/** Callers and background, in a third of the histories beside calls that never end. */
function levelsPlanOf(seed: number): Plan {
  const chance = new Chance(seed ^ 0x1e7e);
  const flat = quietPlanOf(seed);
  const plan = chance.happens(0.3) ? { ...flat, ...saturated(chance, flat) } : flat;
  return { ...plan, ...withLevels(chance, plan) };
}

function quietPlanOf(seed: number): Plan {
  const chance = new Chance(seed);
  if (chance.happens(0.1)) return specialPlan(seed, chance);
  const calm = chance.happens(0.4);
  const buckets = Array.from({ length: chance.whole(1, 2) }, (_, index) => bucketPlan(chance, index, calm));
  const spanMs = chance.pick([200, 3_000, 20_000, 70_000]);
  // One workspace far beyond a ceiling that is large enough to leave its edge again.
  const crowd = chance.happens(0.06);
  const workspaces = Array.from({ length: chance.whole(1, 4) }, (_, index) =>
    crowd ? crowdedPlan(index) : workspacePlan(chance, index, spanMs),
  );
  const cap = chance.pick([null, null, 1, 1, 2, 3]);
  const weighted = chance.happens(0.5);
  const lanes = workspaces.flatMap((workspace) => {
    const weight = weighted ? chance.pick([0.5, 1, 2, 3]) : 1;
    return buckets.map((bucket) => ({
      key: `${workspace.name}-${bucket.key}`,
      workspace: workspace.name,
      bucket: bucket.key,
      weight,
      maxInFlight: cap,
    }));
  });
  const queues = chance.pick([1, 1, 1, 1, 1, 2, 3]);
  const wireMs = queues > 1 || chance.happens(0.2) ? chance.pick([1, 3, 10]) : 0;
  return {
    seed,
    origin: originOf(seed, new Chance(seed ^ 0x0419).next()),
    queues,
    wireMs,
    leaseMs: chance.pick([12_000, 15_000, 30_000]),
    lostWakes: chance.happens(0.1) ? 0.5 : 0,
    stalls: chance.happens(0.2)
      ? [{ at: chance.between(0, spanMs + 5_000), ms: chance.pick([50, 1_000, 10_000]) }]
      : [],
    buckets,
    lanes,
    workspaces,
    calls: callPlans(chance, { lanes, buckets, spanMs, calm, crowd }),
    reloads: [],
  };
}

/** Upstreams that are described by their windows. */
function describedPlanOf(seed: number): Plan {
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
  const cap = chance.pick([null, null, 1, 2, 4]);
  const lanes = workspaces.flatMap(({ name: workspace }) =>
    buckets.map(({ key: bucket }) => ({
      key: `${workspace}-${bucket}`,
      workspace,
      bucket,
      weight: 1,
      maxInFlight: cap,
    })),
  );
  const queues = chance.pick([1, 1, 1, 2]);
  const calls = callPlans(chance, { lanes, buckets, spanMs, calm: true, crowd: false });
  const first = { buckets, lanes, workspaces };
  const scene = { processes: queues, fromMs: 0, toMs: spanMs + 15_000 };
  return {
    seed,
    origin: originOf(seed, new Chance(seed ^ 0x0419).next()),
    queues,
    wireMs: queues > 1 || chance.happens(0.1) ? chance.pick([1, 3]) : 0,
    leaseMs: 15_000,
    lostWakes: chance.happens(0.05) ? 0.5 : 0,
    stalls: chance.happens(0.1)
      ? [{ at: chance.between(0, spanMs + 5_000), ms: chance.pick([50, 1_000, 10_000]) }]
      : [],
    ...first,
    calls,
    reloads: chance.happens(0.85) ? describedReloads(chance, first, scene) : [],
  };
}

function workspacePlan(chance: Chance, index: number, spanMs: number): WorkspacePlan {
  return {
    name: `w${index}`,
    perMinute: chance.pick([null, null, 1, 3, 8, 20, 60]),
    perDay: chance.happens(0.1) ? chance.whole(1, 20) : null,
    maxQueued: chance.pick([1, 4, 1_000, 1_000]),
    revokedAt: chance.happens(0.08) ? chance.between(0, spanMs + 10_000) : Infinity,
  };
}

const crowdedPlan = (index: number): WorkspacePlan => ({
  name: `w${index}`,
  perMinute: index === 0 ? 20 : null,
  perDay: null,
  maxQueued: 1_000,
  revokedAt: Infinity,
});
