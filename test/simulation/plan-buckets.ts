/** The upstream's buckets of a history: how much they hold, what they tell, who else uses them. */
import type { Chance } from './chance.ts';
import type { BucketPlan, DocumentPlan, MeterPlan } from './plan.ts';

const undisturbed = { learn: true, outsideShare: 0, outsideBurst: 1, startShare: 0, changes: [] };

/** A quota of requests, which is stated and reported as it is, and used by nobody else. */
export const plainBucket = (key: string, requests: MeterPlan): BucketPlan => ({
  ...undisturbed,
  key,
  calm: true,
  isReliable: true,
  isFixed: false,
  documents: [],
  requests,
  tokens: null,
  perDay: null,
  cost: null,
  statedShare: 1,
  probe: 0,
  reports: 'exact',
  hints: true,
});

export function bucketPlan(chance: Chance, index: number, calm: boolean): BucketPlan {
  const windowMs = chance.pick([1_000, 4_000, 20_000, 60_000]);
  const limit = chance.pick([1, 2, 3, 5, 10, 40, 100]);
  const kind = chance.pick(['plain', 'plain', 'tokens', 'cost', 'day']);
  const truth = {
    key: `b${index}`,
    requests: { limit, windowMs },
    tokens: kind === 'tokens' ? { limit: chance.pick([100, 1_000]), windowMs } : null,
    perDay: kind === 'day' ? chance.whole(3, 40) : null,
    cost: kind === 'cost' ? { limit: 1_000, windowMs: chance.pick([10_000, 20_000]) } : null,
    documents: [],
    reports: chance.pick<BucketPlan['reports']>(['exact', 'exact', 'rounded', 'nothing']),
    isFixed: false,
    hints: chance.happens(0.85),
    calm,
    isReliable: calm,
  };
  if (calm) return { ...truth, ...undisturbed, statedShare: 1, probe: chance.pick([0, 0, 1, 2]) };
  if (truth.cost !== null && chance.happens(0.4)) return documentPlan(chance, truth);
  if (kind === 'plain' && chance.happens(0.2)) return unstatedPlan(chance, truth.key);
  return {
    ...truth,
    statedShare: chance.pick([null, 1, 1, 0.5, 2]),
    learn: chance.happens(0.7),
    probe: chance.pick([0, 1, 1, 2]),
    outsideShare: chance.pick([0, 0, 0.1, 0.3, 0.9]),
    outsideBurst: chance.pick([1, 1, Math.ceil(limit / 3)]),
    startShare: chance.pick([0, 0, 0.5, 1]),
    changes: chance.happens(0.2)
      ? [{ at: chance.between(0, 30_000), factor: chance.pick([0.5, 2, 0.25]) }]
      : [],
  };
}

type Truth = Omit<BucketPlan, keyof typeof undisturbed | 'statedShare' | 'probe'>;

/** Points whose need only responses tell: what is reserved for the first call of a document is a guess. */
export function documentPlan(chance: Chance, truth: Truth): BucketPlan {
  const points = truth.cost?.limit ?? 0;
  const documents = Array.from({ length: chance.whole(1, 3) }, (_, at): DocumentPlan => ({
    name: `d${at}`,
    points: Math.round(points * chance.pick([0.02, 0.2, 0.4, 0.8])),
  }));
  const requests = { limit: 1_000, windowMs: 20_000 };
  return {
    ...truth,
    ...undisturbed,
    requests,
    documents,
    // In a line of several documents nobody knows what those cost that nobody has asked for.
    isReliable: false,
    hints: true,
    statedShare: 1,
    probe: 0,
  };
}

/** The operator states nothing, and responses tell limit, remaining and reset: a window of any length from a second on. */
export function unstatedPlan(chance: Chance, key: string): BucketPlan {
  const limit = chance.pick([3, 10, 40, 100]);
  const windowMs = chance.pick([1_000, 2_000, 10_000, 60_000, 600_000, 3_600_000]);
  return {
    ...plainBucket(key, { limit, windowMs }),
    calm: false,
    statedShare: null,
    reports: 'fields',
    isFixed: chance.happens(0.5),
    hints: chance.happens(0.7),
  };
}
