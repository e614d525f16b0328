/**
 * Other courses of a history from the moment at which a call was refused: the same world up to there, and then nothing
 * that could not have been known. Nobody new comes, nobody leaves or loses patience, nothing breaks, the upstream stays
 * as it is. Owns: the changed plans. Does not own: running and judging them.
 */
import type { CallPlan, Plan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';

/** A counterfactual that goes on for longer is given up. Milliseconds. */
export const maxCourseMs = 4 * 3_600_000;
/** A call that waits without limit would wait for tens of thousands of years. Milliseconds. */
export const patienceMs = 1e15;

/** Nobody comes again at the very time: the response has its way to the client, and the call its way back. Milliseconds. */
export const clientWayMs = 5;

/** What of a plan stays as it was until the refusal, and is quiet from then on. */
function quietly(plan: Plan, { id, at, came, sent, ended, known }: RefusedCall): Plan {
  // A call that the store had not let into a lane yet is still arriving.
  const leavesAt = (call: CallPlan): number => {
    const isNew = came.has(call.id) && !ended.has(call.id) && !known.has(call.id);
    if (isNew && call.id !== id) return at;
    const isUnderWay = sent.has(call.id) || ended.has(call.id);
    const isGone = call.leavesAt < at || (call.leavesAt === at && isUnderWay);
    return isGone ? call.leavesAt : Infinity;
  };
  const isBefore = (one: { readonly at: number }): boolean => one.at <= at;
  return {
    ...plan,
    quietFrom: at,
    faults: plan.faults.filter(isBefore),
    reloads: plan.reloads.filter(isBefore),
    buckets: plan.buckets.map((bucket) => ({ ...bucket, changes: bucket.changes.filter(isBefore) })),
    calls: plan.calls.map((call) => ({
      ...call,
      at: came.has(call.id) ? call.at : Infinity,
      leavesAt: leavesAt(call),
      fate: sent.has(call.id) ? call.fate : 'answered',
      maxWaitMs: known.has(call.id) && call.id !== id ? patienceMs : call.maxWaitMs,
    })),
    workspaces: plan.workspaces.map((one) => ({
      ...one,
      revokedAt: one.revokedAt > at ? Infinity : one.revokedAt,
    })),
  };
}

/** The refused call is patient: it stands where it stood, until it is sent. */
export function patient(plan: Plan, refused: RefusedCall): Plan {
  const quiet = quietly(plan, refused);
  const calls = quiet.calls.map((call) => {
    if (call.id !== refused.id) return call;
    const urgency = urgencyOf(plan, refused, call);
    return { ...call, urgency, maxWaitMs: patienceMs, leavesAt: Infinity, isLetIn: true };
  });
  return { ...quiet, calls };
}

/** A full lane lets no call in before its head has left: however urgent the call is, its position is behind the head. */
function urgencyOf({ calls }: Plan, { code, known, sent }: RefusedCall, call: CallPlan): number {
  if (code !== 'queue_full') return call.urgency;
  const line = calls.filter(
    ({ id, lane }) => lane.key === call.lane.key && id !== call.id && known.has(id) && !sent.has(id),
  );
  return line.length === 0
    ? call.urgency
    : Math.max(call.urgency, Math.min(...line.map(({ urgency }) => urgency)));
}

/** The refused call returns at the stated time, with this maximum wait. */
export function returning(plan: Plan, refused: RefusedCall, maxWaitMs: number): Plan {
  const quiet = quietly(plan, refused);
  const again = quiet.calls
    .filter(({ id }) => id === refused.id)
    .map((call) => ({
      ...call,
      id: againOf(refused.id),
      at: refused.at + refused.retryInMs + clientWayMs,
      leavesAt: Infinity,
      fate: 'answered' as const,
      maxWaitMs,
    }));
  return { ...quiet, calls: [...quiet.calls, ...again] };
}

/** How a call is named that comes again. */
export const againOf = (id: string): string => `${id}r`;
