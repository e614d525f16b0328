/** Histories that random mixtures contain too seldom, with nothing in them but what matters there. */
import type { Chance } from './chance.ts';
import { bucketPlan, documentPlan, unstatedPlan } from './plan-buckets.ts';
import { guessedPoints } from './plan-calls.ts';
import type { BucketPlan, CallPlan, LanePlan, Plan, WorkspacePlan } from './plan.ts';
import { found } from './rules.ts';

export type World = Pick<Plan, 'buckets' | 'lanes' | 'workspaces' | 'calls'>;

export function specialWorld(chance: Chance, kinds: readonly [Kind, ...Kind[]]): World {
  return worlds[chance.pick(kinds)](chance);
}

type Kind = keyof typeof worlds;

const worlds = { documents: documentWorld, commerce: commerceWorld, unstated: unstatedWorld };

/** Documents of one size, of which no two fit into the bucket: the first call of the second is refused with its cost, and nothing else decides who may go. */
function documentWorld(chance: Chance): World {
  const bucket = largeDocuments(chance);
  const workspaces = [workspaceOf('w0')];
  const lanes = lanesOf(workspaces, [bucket], free(null));
  const [document = null, ...others] = bucket.documents;
  const calls = Array.from({ length: chance.whole(3, 8) }, (_, index) => ({
    ...plainCall(index, firstOf(lanes)),
    at: chance.pick([0, 0.25, 30, chance.between(0, 4_000)]),
    callClass: 'graphql',
    costs: { cost: guessedPoints },
    document: chance.pick([document, ...others]),
    maxWaitMs: chance.pick([2_000, 4_000, 6_000, 10_000, 15_000, 45_000]),
  }));
  return { buckets: [bucket], lanes, workspaces, calls };
}

function largeDocuments(chance: Chance): BucketPlan {
  const bucket = bucketPlan(chance, 0, true);
  const cost = { limit: 1_000, windowMs: chance.pick([10_000, 20_000]) };
  const points = chance.pick([550, 600, 700]);
  const documents = [
    { name: 'd0', points },
    { name: 'd1', points },
  ];
  const truth = { ...bucket, tokens: null, perDay: null, cost, reports: 'exact', calm: false } as const;
  return { ...documentPlan(chance, truth), documents, isReliable: true };
}

/** Workspaces that share a commerce bucket: one fills it, and the others, new to it, send a few calls each. */
function commerceWorld(chance: Chance): World {
  const bucket: BucketPlan = {
    ...bucketPlan(chance, 0, true),
    requests: { limit: 40, windowMs: 20_000 },
    tokens: null,
    perDay: null,
    cost: null,
    reports: chance.pick(['exact', 'rounded']),
    probe: 0,
  };
  const workspaces = Array.from({ length: chance.whole(2, 5) }, (_, index) => workspaceOf(`w${index}`));
  const lanes = lanesOf(workspaces, [bucket], free(1));
  const busy = firstOf(lanes);
  const serviceMs = chance.pick([3, 20]);
  const crowd = Array.from({ length: chance.whole(45, 70) }, () => ({
    lane: busy,
    at: chance.between(0, 50),
  }));
  const few = lanes.slice(1).flatMap((lane) => {
    const at = chance.between(2_500, 6_000);
    return Array.from({ length: chance.whole(2, 5) }, () => ({ lane, at }));
  });
  const calls = [...crowd, ...few].map(({ lane, at }, index) => ({
    ...plainCall(index, lane),
    at,
    serviceMs,
    maxWaitMs: lane === busy ? 200_000 : chance.pick([6_000, 15_000, 45_000]),
  }));
  return { buckets: [bucket], lanes, workspaces, calls };
}

/** Two workspaces and a bucket of which nobody states anything: responses tell limit, remaining and reset. */
function unstatedWorld(chance: Chance): World {
  const bucket = unstatedPlan(chance, 'b0');
  const workspaces = ['w0', 'w1'].map(workspaceOf);
  const lanes = lanesOf(workspaces, [bucket], free(null));
  const bursts = Array.from({ length: chance.whole(1, 4) }, () => chance.between(0, 6_000));
  const calls = Array.from({ length: chance.whole(10, 40) }, (_, index) => ({
    ...plainCall(index, chance.pick([firstOf(lanes), ...lanes])),
    at: chance.pick([0, ...bursts]),
    maxWaitMs: chance.pick([1, 300, 2_000, 6_000, 15_000]),
  }));
  return { buckets: [bucket], lanes, workspaces, calls };
}

export const workspaceOf = (name: string): WorkspacePlan => ({
  name,
  perMinute: null,
  perDay: null,
  maxQueued: 1_000,
  revokedAt: Infinity,
});

export const lanesOf = (
  workspaces: readonly WorkspacePlan[],
  buckets: readonly BucketPlan[],
  limits: () => Pick<LanePlan, 'weight' | 'maxInFlight'>,
): LanePlan[] =>
  workspaces.flatMap(({ name: workspace }) => {
    const own = limits();
    return buckets.map(({ key: bucket }) => ({ key: `${workspace}-${bucket}`, workspace, bucket, ...own }));
  });

const free = (maxInFlight: number | null) => () => ({ weight: 1, maxInFlight });

const firstOf = (lanes: readonly LanePlan[]): LanePlan => found(lanes[0], 'lane');

export const plainCall = (index: number, lane: LanePlan): CallPlan => ({
  id: `c${index}`,
  at: 0,
  slot: 0,
  lane,
  callClass: 'default',
  costs: { requests: 1 },
  document: null,
  chargedShare: 1,
  urgency: 3,
  maxWaitMs: 0,
  isLetIn: false,
  leavesAt: Infinity,
  serviceMs: 40,
  bodyMs: 0,
  fate: 'answered',
  safe: true,
});
