/** Workspaces of which calls name their callers, and of which some calls are background: drawn apart from the rest. */
import { backgroundLane, laneKey } from '../../src/ids.ts';
import type { Chance } from './chance.ts';
import type { CallPlan, LanePlan, Plan } from './plan.ts';

type Flat = Pick<Plan, 'lanes' | 'calls'>;
type Saturable = Flat & Pick<Plan, 'buckets' | 'workspaces'>;

/** A bucket that has more to do than it can for minutes, so that background calls become due: patient calls of two workspaces come all the time. */
export function saturated(chance: Chance, { buckets, workspaces, lanes, calls }: Saturable): Saturable {
  const requests = { limit: chance.pick([1, 2]), windowMs: chance.pick([4_000, 8_000]) };
  const requestsOnly = { tokens: null, perDay: null, cost: null, documents: [] };
  const spanMs = chance.pick([60_000, 120_000]);
  return {
    buckets: buckets.map((bucket) => ({ ...bucket, ...requestsOnly, requests })),
    workspaces: workspaces.map((one) => ({ ...one, perMinute: null, perDay: null, maxQueued: 1_000 })),
    lanes: lanes.map((lane) => ({ ...lane, maxInFlight: null })),
    calls: calls.map((call) => ({
      ...call,
      at: chance.between(call.at, call.at + spanMs),
      callClass: 'default',
      costs: { requests: 1 },
      document: null,
      maxWaitMs: 200_000,
      leavesAt: Infinity,
    })),
  };
}

export function withLevels(chance: Chance, { lanes, calls }: Flat): Flat {
  const names = new Map<string, readonly [string, ...string[]]>();
  const background = new Map<string, LanePlan>();
  for (const lane of lanes) {
    if (!names.has(lane.workspace) && chance.happens(0.75)) names.set(lane.workspace, callersOf(chance));
    if (chance.happens(0.7)) background.set(lane.key, { ...lane, key: backgroundLane(laneKey(lane.key)) });
  }
  return {
    lanes: [...lanes, ...background.values()],
    calls: calls.map((call) => {
      const lane = (chance.happens(0.35) ? background.get(call.lane.key) : undefined) ?? call.lane;
      const known = names.get(lane.workspace);
      return known === undefined || chance.happens(0.15)
        ? { ...call, lane }
        : { ...call, lane, caller: chance.pick(known) };
    }),
  };
}

/** Most calls wait for less than before, so that they are refused, and keep their positions. */
export const withReservations = (chance: Chance, calls: readonly CallPlan[]): readonly CallPlan[] => {
  const maxReserved = chance.pick([2, 1_000, 1_000]);
  return calls.map((call) => {
    if (!chance.happens(0.7)) return call;
    const lateMs = chance.happens(0.25) ? null : chance.pick([-200, 0, 200, 2_000, 9_000, 12_000]);
    const reserves = { lateMs, isTwice: chance.happens(0.15), maxReserved };
    return { ...call, maxWaitMs: chance.pick([0, 300, 1_000]), reserves };
  });
};

/** The first one calls as often as all others together. */
function callersOf(chance: Chance): readonly [string, ...string[]] {
  const others = Array.from({ length: chance.whole(1, 4) }, (_, index) => `k${index + 1}`);
  return ['k0', ...others.slice(1).map(() => 'k0'), ...others];
}
