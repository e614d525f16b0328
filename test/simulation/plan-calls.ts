/** The calls of a history: who calls when, for how much, with how much patience, and what becomes of them. */
import type { Costs } from '../../src/call.ts';
import type { Chance } from './chance.ts';
import type { BucketPlan, CallPlan, Fate, LanePlan } from './plan.ts';

const troubles: readonly [Fate, ...Fate[]] = ['lost', 'lost', 'unsent', 'secondary', 'overload', 'permanent'];
/** What is reserved for a document that nobody has asked for yet. */
export const guessedPoints = 10;

export interface CallScene {
  readonly lanes: readonly LanePlan[];
  readonly buckets: readonly BucketPlan[];
  readonly spanMs: number;
  readonly calm: boolean;
  readonly crowd: boolean;
}

export function callPlans(chance: Chance, scene: CallScene): CallPlan[] {
  const [firstLane, ...otherLanes] = scene.lanes;
  if (firstLane === undefined) return [];
  const urgent = chance.happens(0.3);
  const troubled = chance.happens(0.5);
  const isHonest = chance.happens(0.5);
  const bursts = Array.from({ length: chance.whole(1, 4) }, () => chance.between(0, scene.spanMs));
  const slow = chance.happens(0.2) ? 10 : 1;
  const steadyMs = chance.happens(0.4) ? chance.pick([40, 200, 700]) : null;
  return Array.from({ length: scene.crowd ? 80 : chance.whole(5, 70) }, (_, index) => {
    const lane = chance.pick([firstLane, ...otherLanes]);
    const bucket = scene.buckets.find(({ key }) => key === lane.bucket);
    const at = chance.happens(0.6)
      ? chance.pick([0, ...bursts]) + chance.pick([0, 0, 0.25, 3])
      : chance.between(0, scene.spanMs);
    const needs = needsOf(chance, bucket);
    return {
      id: `c${index}`,
      at,
      slot: 0,
      lane,
      ...needs,
      chargedShare: isHonest ? 1 : scene.calm ? chance.between(0.3, 1) : chance.between(0.3, 1.5),
      urgency: urgent ? chance.whole(0, 7) : 3,
      maxWaitMs: scene.crowd ? 200_000 : chance.pick([1, 300, 2_000, 6_000, 15_000, 45_000, 200_000]),
      isLetIn: false,
      leavesAt: chance.happens(0.15) ? at + chance.pick([0, 1, 30, 500, 5_000, 30_000]) : Infinity,
      serviceMs: steadyMs ?? chance.pick([3, 40, 40, 200, 700]) * slow,
      bodyMs: steadyMs === null ? chance.pick([0, 0, 5, 300]) : 0,
      fate: troubled && chance.happens(0.15) ? chance.pick(troubles) : 'answered',
      safe: chance.happens(0.3),
    };
  });
}

function needsOf(
  chance: Chance,
  bucket: BucketPlan | undefined,
): Pick<CallPlan, 'callClass' | 'costs' | 'document'> {
  const graphql = bucket?.cost !== null && chance.happens(0.7);
  const large = chance.happens(0.05) ? 1.2 : chance.pick([0.01, 0.1, 0.3, 0.95]);
  const [document = null, ...others] = bucket?.documents ?? [];
  if (graphql && document !== null) {
    const asked = chance.pick([document, ...others]);
    return { callClass: 'graphql', costs: { cost: guessedPoints }, document: asked };
  }
  if (graphql) {
    const cost = Math.ceil((bucket?.cost?.limit ?? 0) * large);
    return { callClass: 'graphql', costs: { cost }, document: null };
  }
  const costs: Costs = {
    requests: 1,
    ...(bucket?.tokens ? { tokens: Math.ceil(bucket.tokens.limit * large) } : {}),
    ...(bucket?.perDay ? { requests_day: 1 } : {}),
  };
  return { callClass: 'default', costs, document: null };
}
