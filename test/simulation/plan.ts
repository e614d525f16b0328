/**
 * What happens in one history, decided from its seed before anything runs: the upstream's buckets, who calls when, who
 * leaves, what breaks. Owns: the mixture of situations. Refuses to own: what is right.
 *
 * `calm` buckets have an upstream that does what it states and nobody else drinking from it: there the promises are
 * exact (no 429 at all). The others have the whole zoo.
 */
import type { Costs } from '../../src/call.ts';
import { originOf, type Origin } from '../support/origins.ts';
import { Chance } from './chance.ts';

export interface MeterPlan {
  readonly limit: number;
  readonly windowMs: number;
}

/** The upstream's own idea of a bucket. */
export interface BucketPlan {
  readonly key: string;
  readonly calm: boolean;
  readonly requests: MeterPlan;
  readonly tokens: MeterPlan | null;
  /** Requests per day, when the upstream has such a quota. */
  readonly perDay: number | null;
  /** GraphQL points. */
  readonly cost: MeterPlan | null;
  /** What the operator stated, as a share of the truth; `null` = nothing. */
  readonly statedShare: number | null;
  readonly learn: boolean;
  readonly probe: number;
  /** What answers tell of the level: the exact figure, whole units, or nothing. */
  readonly tells: 'exact' | 'rounded' | 'nothing';
  /** Share of the drain that somebody else takes. */
  readonly outsideShare: number;
  /** Outside traffic comes in gulps of this many units. */
  readonly outsideGulp: number;
  /** Share of the limit used before we come. */
  readonly startShare: number;
  readonly changes: readonly { readonly at: number; readonly factor: number }[];
  /** Refusals name the time to wait. */
  readonly hints: boolean;
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

/** `lost`: it ran, but no answer comes. `unsent`: the connection fails before a byte is out. */
export type Fate = 'answered' | 'lost' | 'unsent' | 'secondary' | 'overload' | 'permanent';

export interface CallPlan {
  readonly id: string;
  readonly at: number;
  readonly lane: LanePlan;
  readonly callClass: string;
  readonly costs: Costs;
  /** What the upstream really charges, as a share of the estimate. */
  readonly chargedShare: number;
  readonly urgency: number;
  readonly maxWaitMs: number;
  /** When its client leaves; `Infinity` = stays. */
  readonly leavesAt: number;
  /** From arrival at the upstream to the answer's head, and from there to its last byte. */
  readonly serviceMs: number;
  readonly bodyMs: number;
  /** How its first attempt ends; later ones are answered. */
  readonly fate: Fate;
  readonly safe: boolean;
}

export interface Plan {
  readonly seed: number;
  /** Where the clock of the process begins. The times of a plan count from the beginning of the history. */
  readonly origin: Origin;
  /** One process, or several that share the store over a wire with delays. */
  readonly desks: number;
  readonly wireMs: number;
  readonly leaseMs: number;
  /** Share of the embedded limiter's wake-ups that never come. */
  readonly lostWakes: number;
  readonly stalls: readonly { readonly at: number; readonly ms: number }[];
  readonly buckets: readonly BucketPlan[];
  readonly lanes: readonly LanePlan[];
  readonly workspaces: readonly WorkspacePlan[];
  readonly calls: readonly CallPlan[];
}

export function planOf(seed: number): Plan {
  const chance = new Chance(seed);
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
  const desks = chance.pick([1, 1, 1, 1, 1, 2, 3]);
  const wireMs = desks > 1 || chance.happens(0.2) ? chance.pick([1, 3, 10]) : 0;
  return {
    seed,
    origin: originOf(seed, new Chance(seed ^ 0x0419).next()),
    desks,
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
  };
}

function bucketPlan(chance: Chance, index: number, calm: boolean): BucketPlan {
  const windowMs = chance.pick([1_000, 4_000, 20_000, 60_000]);
  const limit = chance.pick([1, 2, 3, 5, 10, 40, 100]);
  const kind = chance.pick(['plain', 'plain', 'tokens', 'cost', 'day']);
  const truth = {
    key: `b${index}`,
    requests: { limit, windowMs },
    tokens: kind === 'tokens' ? { limit: chance.pick([100, 1_000]), windowMs } : null,
    perDay: kind === 'day' ? chance.whole(3, 40) : null,
    cost: kind === 'cost' ? { limit: 1_000, windowMs: chance.pick([10_000, 20_000]) } : null,
    tells: chance.pick<BucketPlan['tells']>(['exact', 'exact', 'rounded', 'nothing']),
    hints: chance.happens(0.85),
    calm,
  };
  if (calm) {
    const probe = chance.pick([0, 0, 1, 2]);
    const quiet = { learn: true, outsideShare: 0, outsideGulp: 1, startShare: 0, changes: [] };
    return { ...truth, ...quiet, statedShare: 1, probe };
  }
  return {
    ...truth,
    statedShare: chance.pick([null, 1, 1, 0.5, 2]),
    learn: chance.happens(0.7),
    probe: chance.pick([0, 1, 1, 2]),
    outsideShare: chance.pick([0, 0, 0.1, 0.3, 0.9]),
    outsideGulp: chance.pick([1, 1, Math.ceil(limit / 3)]),
    startShare: chance.pick([0, 0, 0.5, 1]),
    changes: chance.happens(0.2)
      ? [{ at: chance.between(0, 30_000), factor: chance.pick([0.5, 2, 0.25]) }]
      : [],
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

function callPlans(
  chance: Chance,
  scene: {
    readonly lanes: readonly LanePlan[];
    readonly buckets: readonly BucketPlan[];
    readonly spanMs: number;
    readonly calm: boolean;
    readonly crowd: boolean;
  },
): CallPlan[] {
  const [firstLane, ...otherLanes] = scene.lanes;
  if (firstLane === undefined) return [];
  const urgent = chance.happens(0.3);
  const troubled = chance.happens(0.5);
  const bursts = Array.from({ length: chance.whole(1, 4) }, () => chance.between(0, scene.spanMs));
  const slow = chance.happens(0.2) ? 10 : 1;
  return Array.from({ length: scene.crowd ? 80 : chance.whole(5, 70) }, (_, index) => {
    const lane = chance.pick([firstLane, ...otherLanes]);
    const bucket = scene.buckets.find(({ key }) => key === lane.bucket);
    const at = chance.happens(0.6)
      ? chance.pick([0, ...bursts]) + chance.pick([0, 0, 0.25, 3])
      : chance.between(0, scene.spanMs);
    const graphql = bucket?.cost !== null && chance.happens(0.7);
    const large = chance.happens(0.05) ? 1.2 : chance.pick([0.01, 0.1, 0.3, 0.95]);
    const costs: Costs = graphql
      ? { cost: Math.ceil((bucket?.cost?.limit ?? 0) * large) }
      : {
          requests: 1,
          ...(bucket?.tokens ? { tokens: Math.ceil(bucket.tokens.limit * large) } : {}),
          ...(bucket?.perDay ? { requests_day: 1 } : {}),
        };
    return {
      id: `c${index}`,
      at,
      lane,
      callClass: graphql ? 'graphql' : 'default',
      costs,
      chargedShare: scene.calm ? chance.between(0.3, 1) : chance.between(0.3, 1.5),
      urgency: urgent ? chance.whole(0, 7) : 3,
      maxWaitMs: scene.crowd ? 200_000 : chance.pick([1, 300, 2_000, 15_000, 45_000, 200_000]),
      leavesAt: chance.happens(0.15) ? at + chance.pick([0, 1, 30, 500, 5_000, 30_000]) : Infinity,
      serviceMs: chance.pick([3, 40, 40, 200, 700]) * slow,
      bodyMs: chance.pick([0, 0, 5, 300]),
      fate: troubled && chance.happens(0.15) ? chance.pick(troubles) : 'answered',
      safe: chance.happens(0.3),
    };
  });
}

const troubles = ['lost', 'lost', 'unsent', 'secondary', 'overload', 'permanent'] as const;
