/** What happens in one history of several replicas, decided from its seed: who calls whom when, and what breaks. */
import { maxUptimeMs, originOf } from '../../support/origins.ts';
import { Chance, describedFrom, levelsFrom, replicatedFrom, reservingFrom } from '../chance.ts';
import { plainBucket } from '../plan-buckets.ts';
import { describedBucket, describedReloads } from '../plan-described.ts';
import { saturated, withLevels, withReservations } from '../plan-levels.ts';
import { pinned, reloadPlans, type Scene } from '../plan-reloads.ts';
import { lanesOf, plainCall, specialWorld } from '../plan-special.ts';
import type { BucketPlan, CallPlan, Fate, Fault, LanePlan } from '../plan.ts';
import type { NetworkPlan, Plan, WorkspacePlan } from '../plan.ts';

/** Calls that come until two minutes have passed end within the history. Milliseconds. */
const maxWaitMs = 120_000;
/** Calls and faults begin when the replicas have had the time to start. Milliseconds. */
export const startMs = 1_500;

/** Nothing goes wrong. */
export const quiet: NetworkPlan = {
  meanMs: 0.5,
  commandTimeoutMs: 250,
  lostRequests: 0,
  lostReplies: 0,
  late: 0,
  repeated: 0,
  lostMessages: 0,
  disorder: false,
};

/** In some of the histories in which something breaks, an old copy of all data is restored besides, drawn apart from the rest. */
export const faultyPlanOf = (seed: number): Plan => withOldCopy(planOf(seed));

function planOf(seed: number): Plan {
  if (seed >= replicatedFrom && seed < levelsFrom) return replicatedPlanOf(seed);
  if (seed >= describedFrom && seed < levelsFrom) return describedPlanOf(seed);
  const chance = new Chance(seed ^ 0x2e10);
  const plan = basicPlanOf(seed, chance);
  if (!chance.happens(0.6)) return plan;
  const buckets = plan.buckets.map((bucket) => pinned(chance, bucket));
  return { ...plan, buckets, reloads: reloadPlans(chance, { ...plan, buckets }, sceneOf(plan)) };
}

const lastOf = ({ calls }: Plan): number => Math.max(startMs, ...calls.map(({ at }) => at));
const sceneOf = (plan: Plan): Scene => ({
  processes: plan.replicas,
  fromMs: startMs,
  toMs: lastOf(plan) + 8_000,
});

function basicPlanOf(seed: number, chance: Chance): Plan {
  if (seed >= levelsFrom) return levelsPlanOf(seed);
  return chance.happens(0.1) ? specialPlanOf(seed, chance) : steadyPlanOf(seed);
}

function levelsPlanOf(seed: number): Plan {
  const chance = new Chance(seed ^ 0x1e7e);
  const flat = steadyPlanOf(seed);
  const plan = chance.happens(0.3) ? { ...flat, ...saturated(chance, flat) } : flat;
  const { lanes, calls } = withLevels(chance, plan);
  const patient = calls.map((call) => ({ ...call, maxWaitMs: Math.min(call.maxWaitMs, maxWaitMs) }));
  return { ...plan, lanes, calls: seed < reservingFrom ? patient : withReservations(chance, patient) };
}

function withOldCopy(plan: Plan): Plan {
  const chance = new Chance(plan.seed ^ 0x10c5);
  if (plan.faults.length === 0 || !chance.happens(0.3)) return plan;
  const restored: Fault = {
    at: startMs + chance.between(0, lastOf(plan) - startMs + 6_000),
    kind: 'failover',
    ms: chance.pick([30, 400, 2_000]),
    lostMs: chance.pick([1_000, 4_000, 10_000]),
    skewMs: chance.between(-50, 50),
  };
  return { ...plan, faults: [...plan.faults, restored].toSorted((a, b) => a.at - b.at) };
}

/** Upstreams that are described by their windows. In half of the histories nothing breaks: there they are judged to the last call. */
function describedPlanOf(seed: number): Plan {
  const plan = steadyPlanOf(seed);
  const chance = new Chance(seed ^ 0x3d11);
  const isCalm = chance.happens(0.5);
  const buckets = plan.buckets.map(({ key }) => describedBucket(chance, key));
  const isLimited = chance.happens(0.25);
  const free = isLimited ? {} : { perMinute: null, perDay: null };
  const workspaces = plan.workspaces.map((one) => ({ ...one, ...free }));
  const first = { buckets, lanes: plan.lanes, workspaces };
  return {
    ...plan,
    ...(isCalm && { network: { ...quiet, meanMs: chance.pick([0.3, 0.5, 1]) }, faults: [], frozenWrites: 0 }),
    ...first,
    reloads: chance.happens(0.85) ? describedReloads(chance, first, sceneOf(plan)) : [],
  };
}

/** Redis is backed up, gets replicas, which are promoted, and connections break while more replicas start; in half of these histories no data is lost. */
function replicatedPlanOf(seed: number): Plan {
  const plan = steadyPlanOf(seed);
  const chance = new Chance(seed ^ 0x2ef1);
  const isWhole = chance.happens(0.5);
  const events = Array.from({ length: chance.whole(1, 8) }, (): Fault => {
    const at = startMs + chance.between(0, lastOf(plan) - startMs + 6_000);
    const kind = chance.whole(0, 5);
    if (kind < 2) return { at, kind: 'replicate' };
    if (kind === 2)
      return { at, kind: 'promote', ms: chance.pick([0, 30, 400, 1_500]), skewMs: chance.between(-50, 50) };
    if (kind === 5) return { at, kind: 'start' };
    const slot = chance.whole(0, plan.replicas - 1);
    return { at, kind: 'cut', slot, ms: chance.pick([5, 100, 400]), mute: false };
  });
  const network = { ...quiet, meanMs: chance.pick([0.3, 0.5, 2]) };
  return {
    ...plan,
    ...(isWhole && { network, frozenWrites: 0 }),
    faults: [...(isWhole ? [] : plan.faults), ...events].toSorted((a, b) => a.at - b.at),
  };
}

/** A world in which nothing breaks, and that has what mixtures come across too seldom. */
function specialPlanOf(seed: number, chance: Chance): Plan {
  const replicas = chance.whole(2, 3);
  const world = specialWorld(chance, ['documents', 'commerce', 'unstated']);
  return {
    seed,
    ...clocksOf(seed, replicas),
    replicas,
    whenDown: 'local',
    leaseMs: 15_000,
    network: { ...quiet, meanMs: chance.pick([0.3, 0.5, 2]) },
    faults: [],
    frozenWrites: 0,
    reloads: [],
    ...world,
    calls: world.calls.map((call) => ({
      ...call,
      at: startMs + call.at,
      slot: chance.whole(0, replicas - 1),
    })),
  };
}

export function steadyPlanOf(seed: number): Plan {
  const chance = new Chance(seed ^ 0x7e11);
  const replicas = chance.whole(2, 4);
  const leaseMs = chance.pick([12_000, 15_000]);
  const mood = chance.pick(['calm', 'lossy', 'lossy', 'faults', 'faults', 'both'] as const);
  const spanMs = chance.pick([50, 1_000, 5_000, 15_000]);
  const network = {
    ...quiet,
    meanMs: chance.pick([0.3, 0.5, 2, 8]),
    ...(isLossy(mood) ? lossOf(chance) : {}),
  };
  const faults = mood === 'calm' || mood === 'lossy' ? [] : faultsOf(chance, replicas, spanMs, leaseMs);
  const buckets = Array.from({ length: chance.pick([1, 1, 2]) }, (_, index) => bucketOf(chance, index));
  const maxInFlight = chance.pick([null, null, 1, 1, 2]);
  const limited = chance.happens(0.35);
  const workspaces = Array.from({ length: chance.whole(1, 3) }, (_, index) =>
    workspaceOf(chance, index, limited, spanMs),
  );
  const lanes = lanesOf(workspaces, buckets, () => ({ weight: chance.pick([1, 1, 2]), maxInFlight }));
  return {
    seed,
    ...clocksOf(seed, replicas),
    replicas,
    whenDown: chance.pick(['local', 'deny']),
    leaseMs,
    network,
    faults,
    frozenWrites: mood !== 'calm' && chance.happens(0.1) ? 0.05 : 0,
    buckets,
    lanes,
    workspaces,
    calls: callsOf(chance, { lanes, spanMs, replicas, limited }),
    reloads: [],
  };
}

/** Drawn apart, so that the rest of a history is the same by every clock. */
function clocksOf(seed: number, replicas: number): Pick<Plan, 'origin' | 'uptimesMs'> {
  const chance = new Chance(seed ^ 0x0419);
  const origin = originOf(seed, chance.next());
  const uptime = (): number => chance.pick([0, chance.between(0, maxUptimeMs)]);
  return { origin, uptimesMs: Array.from({ length: replicas }, uptime) };
}

const isLossy = (mood: string): boolean => mood === 'lossy' || mood === 'both';

function lossOf(chance: Chance): Partial<NetworkPlan> {
  const share = (): number => chance.pick([0, 0, 0.02, 0.1]);
  return {
    lostRequests: share(),
    lostReplies: share(),
    late: share(),
    repeated: share(),
    lostMessages: chance.pick([0, 0.1, 0.5, 1]),
    disorder: chance.happens(0.3),
  };
}

function faultsOf(chance: Chance, replicas: number, spanMs: number, leaseMs: number): Fault[] {
  return Array.from({ length: chance.pick([1, 1, 2, 4]) }, (): Fault => {
    const at = startMs + chance.between(0, spanMs + 3_000);
    const slot = chance.whole(0, replicas - 1);
    const kind = chance.whole(0, 9);
    if (kind < 2) return { at, kind: 'pause', slot, ms: chance.pick([200, 3_000, 8_000, leaseMs + 4_000]) };
    if (kind < 4) return { at, kind: 'kill', slot, ms: chance.pick([50, 2_000, Infinity]) };
    if (kind === 4) return { at, kind: 'step', slot, ms: chance.pick([-3_600_000, -500, 500, 3_600_000]) };
    if (kind === 5)
      return { at, kind: 'cut', slot, ms: chance.pick([100, 1_500, 7_000]), mute: chance.happens(0.5) };
    if (kind === 6) return { at, kind: 'flush' };
    if (kind === 7) {
      const ms = chance.pick([30, 400, 3_000, 25_000]);
      return { at, kind: 'down', ms, back: chance.pick(['whole', 'empty']) };
    }
    if (kind === 9) return { at, kind: 'hang', ms: chance.pick([100, 400, 1_500, 6_000]) };
    const [ms, lostMs] = [chance.pick([30, 800, 4_000]), chance.pick([0, 2, 30, 300])];
    return { at, kind: 'failover', ms, lostMs, skewMs: chance.between(-50, 50) };
  });
}

function bucketOf(chance: Chance, index: number): BucketPlan {
  const calm = chance.happens(0.7);
  const limit = chance.pick([1, 2, 5, 40, 100]);
  const windowMs = chance.pick([1_000, 4_000, 20_000]);
  return {
    ...plainBucket(`b${index}`, { limit, windowMs }),
    calm,
    isReliable: calm,
    statedShare: calm ? 1 : chance.pick([1, 2]),
    probe: chance.pick([0, 0, 1]),
    reports: chance.pick<BucketPlan['reports']>(['exact', 'rounded', 'nothing']),
    outsideShare: calm ? 0 : chance.pick([0, 0.3]),
    startShare: calm ? 0 : chance.pick([0, 1]),
    hints: chance.happens(0.9),
  };
}

const workspaceOf = (chance: Chance, index: number, limited: boolean, spanMs: number): WorkspacePlan => ({
  name: `w${index}`,
  perMinute: limited ? chance.pick([null, 2, 5, 20]) : null,
  perDay: limited && chance.happens(0.2) ? chance.whole(2, 20) : null,
  maxQueued: chance.pick([3, 1_000, 1_000, 1_000]),
  revokedAt: chance.happens(0.05) ? startMs + chance.between(0, spanMs + 5_000) : Infinity,
});

interface CallScene {
  readonly lanes: readonly LanePlan[];
  readonly spanMs: number;
  readonly replicas: number;
  readonly limited: boolean;
}

function callsOf(chance: Chance, scene: CallScene): CallPlan[] {
  const [first, ...others] = scene.lanes;
  if (first === undefined) return [];
  const urgent = chance.happens(0.25);
  const troubled = chance.happens(0.4);
  const patience = scene.limited ? [2_000, 20_000, 70_000] : [300, 5_000, 20_000, 40_000];
  const [shortest = 0, ...longer] = patience;
  return Array.from({ length: chance.whole(4, 36) }, (_, index) => {
    const at = startMs + (chance.happens(0.5) ? chance.pick([0, 3]) : chance.between(0, scene.spanMs));
    return {
      ...plainCall(index, first),
      at,
      slot: chance.whole(0, scene.replicas - 1),
      lane: chance.pick([first, ...others]),
      urgency: urgent ? chance.whole(2, 4) : 3,
      maxWaitMs: chance.pick([shortest, ...longer]),
      leavesAt: chance.happens(0.12) ? at + chance.pick([1, 30, 500, 5_000]) : Infinity,
      serviceMs: chance.pick([3, 40, 200, 1_500]),
      bodyMs: chance.pick([0, 0, 300]),
      fate: troubled && chance.happens(0.15) ? chance.pick(troubles) : 'answered',
      safe: chance.happens(0.3),
    };
  });
}

const troubles: readonly [Fate, ...Fate[]] = ['lost', 'unsent', 'secondary', 'overload', 'permanent'];
