/** Calm histories, in which told waits can be held against the truth, and other courses of them from a refusal on: the same world up to there, nobody new after it. */
import { Chance } from './chance.ts';
import type { CallPlan, Plan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';
import { quiet } from './replicas/plan.ts';
import { found, isBackground, keyed } from './rules.ts';

/** A counterfactual that goes on for longer is given up. Milliseconds. */
export const maxCourseMs = 4 * 3_600_000;
/** A call that waits without limit would wait for tens of thousands of years. Milliseconds. */
const patienceMs = 1e15;
/** Nobody comes again at the very time: the response has its way to the client, and the call its way back. Milliseconds. */
const clientWayMs = 5;
/** Responses do not come too late for the gateway. Milliseconds. */
const maxServiceMs = 3_000;

/** The calls to one bucket, all of a lane for as much, held up by the bucket alone, or by the ceilings of their workspaces, whose bucket has room for all. */
export function calmOf(plan: Plan): Plan {
  const chance = new Chance(plan.seed ^ 0xca13);
  const isLimited = chance.happens(0.4);
  const first = plan.calls.find(({ lane }) => !isBackground(lane));
  const bucket = keyed(plan.buckets, first?.lane.bucket ?? plan.buckets[0]?.key ?? '');
  const lanes = plan.lanes.map((lane) => ({ ...lane, maxInFlight: null }));
  const here = plan.calls.filter(({ lane }) => lane.bucket === bucket.key && !isBackground(lane));
  const { network, isAlone } = plan;
  return {
    ...plan,
    faults: [],
    reloads: [],
    lostWakes: 0,
    frozenWrites: 0,
    network: isAlone === true ? network : { ...quiet, meanMs: network.meanMs },
    lanes,
    buckets: [
      {
        ...bucket,
        ...(isLimited ? { requests: { limit: 1_000_000, windowMs: 1_000 }, tokens: null, cost: null } : {}),
        // Points are stated at a call's end. A response that is longer on its way back than another one tells of an older level, and lets one
        // call too many go.
        calm: isLimited || bucket.cost === null,
        isReliable: true,
        perDay: null,
        documents: [],
        statedShare: 1,
        probe: 0,
        reports: bucket.reports === 'fields' ? 'rounded' : bucket.reports,
        isFixed: false,
        outsideShare: 0,
        startShare: 0,
        changes: [],
        hints: true,
      },
    ],
    workspaces: plan.workspaces.map((one) => ({
      ...one,
      perMinute: isLimited ? (one.perMinute ?? 8) : null,
      perDay: null,
      revokedAt: Infinity,
    })),
    calls: here.map((call) => {
      const { callClass, costs, document } = here.find(({ lane }) => lane.key === call.lane.key) ?? call;
      return {
        ...call,
        lane: keyed(lanes, call.lane.key),
        callClass,
        costs: document === null ? costs : { cost: document.points },
        document: null,
        chargedShare: 1,
        leavesAt: Infinity,
        serviceMs: Math.min(call.serviceMs, maxServiceMs),
        fate: 'answered',
      };
    }),
  };
}

/** What of a plan stays as it was until the refusal, and is quiet from then on. */
const quietly = (plan: Plan, { id, came, known }: RefusedCall): Plan => ({
  ...plan,
  calls: plan.calls.map((call) => ({
    ...call,
    at: came.has(call.id) ? call.at : Infinity,
    maxWaitMs: known.has(call.id) && call.id !== id ? patienceMs : call.maxWaitMs,
  })),
});

/** The refused call is patient: it stands where it stood, until it is sent. */
export function patient(plan: Plan, refused: RefusedCall): Plan {
  const quietPlan = quietly(plan, refused);
  const calls = quietPlan.calls.map((call) =>
    call.id === refused.id
      ? { ...call, urgency: urgencyOf(plan, refused, call), maxWaitMs: patienceMs, isLetIn: true }
      : call,
  );
  return { ...quietPlan, calls };
}

/** A full lane lets no call in before its head has left: however urgent the call is, its position is behind the head. */
function urgencyOf(
  { calls }: Plan,
  { code, known, sent }: RefusedCall,
  { id: own, lane, urgency }: CallPlan,
): number {
  const line = calls.filter(
    (call) => call.lane.key === lane.key && call.id !== own && known.has(call.id) && !sent.has(call.id),
  );
  if (code !== 'queue_full' || line.length === 0) return urgency;
  return Math.max(urgency, Math.min(...line.map((call) => call.urgency)));
}

export function returning(plan: Plan, refused: RefusedCall, maxWaitMs: number): Plan {
  const quietPlan = quietly(plan, refused);
  const at = refused.at + refused.retryInMs + clientWayMs;
  const again = { ...callOf(plan, refused.id), id: againOf(refused.id), at, maxWaitMs };
  return { ...quietPlan, calls: [...quietPlan.calls, again] };
}

export const againOf = (id: string): string => `${id}r`;

export function callOf({ calls }: Plan, id: string): CallPlan {
  const call = calls.find((each) => each.id === id);
  return found(call, id);
}
