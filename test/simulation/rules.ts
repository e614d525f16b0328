/** What configuration says, process by process and over time: each process takes a reload over when it gets round to it. */
import { backgroundCeiling, type CallSettings } from '../../src/admission/buckets.policy.ts';
import { isBackground as isBackgroundLane, laneKey } from '../../src/ids.ts';
import type { BucketSetting, MeterSetting } from '../../src/limiter/limiter.ts';
import { metersOf, wayMs as describedWayMs, type Described } from './described.ts';
import type { BucketPlan, CallPlan, LanePlan, MeterPlan, WorkspacePlan } from './plan.ts';

export interface Regime {
  readonly buckets: readonly BucketPlan[];
  readonly lanes: readonly LanePlan[];
  readonly workspaces: readonly WorkspacePlan[];
}

export interface ReloadPlan extends Regime {
  readonly at: number;
  /** By how much later than `at` each process in turn takes it over. Milliseconds. */
  readonly latesMs: readonly number[];
}

export interface Reloaded extends Regime {
  readonly reloads: readonly ReloadPlan[];
}

/** Reads a limit out of a regime; `null` = there is none. */
type Limit = (regime: Regime) => number | null;

const dayMs = 86_400_000;
/** Ways of commands to the store until nothing is on its way that was asked before a reload. */
const waysOfReload = 12;

interface Step {
  readonly at: number;
  readonly numbers: readonly number[];
  readonly regimes: readonly Regime[];
}

export class Rules {
  readonly #regimes: readonly Regime[];
  readonly #of = new Map<string, number>();
  /** Which regimes processes went by from these times on. */
  readonly #steps: Step[] = [];
  /** The regime of those who have taken nothing over yet. */
  readonly #first: readonly Regime[];

  constructor(plan: Reloaded) {
    this.#regimes = [plan, ...plan.reloads];
    this.#first = [plan];
  }

  /** A process goes by the regime after so many reloads from now on, unless it has gone further already. */
  takesOver(process: string, reloads: number, now: number): void {
    const known = this.#of.get(process);
    if (known !== undefined && known >= reloads) return;
    this.#of.set(process, reloads);
    this.#step(now);
  }

  ends(process: string, now: number): void {
    if (this.#of.delete(process) && this.#of.size > 0) this.#step(now);
  }

  /** By which the process goes now. */
  of(process: string): Regime {
    return nth(this.#regimes, this.#of.get(process) ?? 0);
  }

  /** Regimes that some process went by at some time from `from` to `to`. */
  during(from: number, to: number): readonly Regime[] {
    const within = this.#steps.filter(
      ({ at }, index) => at <= to && (this.#steps[index + 1]?.at ?? Infinity) >= from,
    );
    const [first, ...others] = within;
    if (first === undefined) return this.#first;
    if (others.length === 0) return first.regimes;
    return [...new Set(within.flatMap(({ numbers }) => numbers))].map((index) => nth(this.#regimes, index));
  }

  /** When a process last took something over; `null` = never. The first configuration counts for nothing. */
  lastChangeAt(now: number): number | null {
    return this.#steps.findLast(({ at, numbers }) => at <= now && Math.max(...numbers) > 0)?.at ?? null;
  }

  #step(at: number): void {
    const numbers = [...new Set(this.#of.values())];
    this.#steps.push({ at, numbers, regimes: numbers.map((index) => nth(this.#regimes, index)) });
  }
}

/** The highest of these limits; `null` = one of the regimes has none. */
export function highest(regimes: readonly Regime[], limit: Limit): number | null {
  const limits = regimes.map((regime) => limit(regime) ?? Infinity);
  return limits.includes(Infinity) ? null : Math.max(...limits);
}

/** The lowest of these limits; `null` = none of the regimes has one. */
export function lowest(regimes: readonly Regime[], limit: Limit): number | null {
  const least = Math.min(...regimes.map((regime) => limit(regime) ?? Infinity));
  return least === Infinity ? null : least;
}

export const perMinuteOf = (name: string) => (regime: Regime) => named(regime.workspaces, name).perMinute;

export const perDayOf = (name: string) => (regime: Regime) => named(regime.workspaces, name).perDay;

export const capOf = (lane: string) => (regime: Regime) => keyed(regime.lanes, lane).maxInFlight;

export function freeLanes(plan: Reloaded): ReadonlySet<string> {
  const regimes = [plan, ...plan.reloads];
  const free = plan.lanes.filter(({ key, workspace }) => {
    const limits = [capOf(key), perMinuteOf(workspace), perDayOf(workspace)];
    return limits.every((limit) => lowest(regimes, limit) === null);
  });
  return new Set(free.map(({ key }) => key));
}

/** A turn in the bucket stays what it was: what calls cost there is known before. */
export const keepsTurns = ({ cost, reports }: BucketPlan): boolean => cost === null && reports !== 'fields';

/** Requests that the operator states of a bucket, by one regime after the other; `null` = none. */
export const statedOf = perRegime((regimes: readonly Regime[], key): readonly (MeterPlan | null)[] =>
  regimes.map(({ buckets }) => {
    const { requests, statedShare } = keyed(buckets, key);
    return statedShare === null ? null : shareOf(requests, statedShare);
  }),
);

/** What the operator states is all that anybody knows of the bucket. */
export const isStatedAlone = ({ reports }: Pick<BucketPlan, 'reports'>): boolean => reports === 'nothing';

export function describedOf(
  plan: Reloaded & { readonly calls: readonly CallPlan[] },
  { key, windows }: BucketPlan,
  world: {
    readonly wayMs: number;
    readonly wallMs: number;
    readonly stalledMs: number;
    /** When a process first turns after something reached it then. */
    readonly turnedAt: (at: number) => number;
  },
): Described | null {
  if (windows === undefined) return null;
  const services = plan.calls.filter(({ lane }) => lane.bucket === key).map(({ serviceMs }) => serviceMs);
  const { wayMs, wallMs, stalledMs, turnedAt } = world;
  return {
    windows,
    wallMs,
    lateMs: Math.max(0, ...services) + 2 * describedWayMs + waysOfReload * wayMs + stalledMs,
    changes: plan.reloads.map(({ at, latesMs, buckets }) => ({
      from: turnedAt(at + Math.min(...latesMs)),
      at: turnedAt(at + Math.max(...latesMs)) + waysOfReload * wayMs,
      isMixed: Math.max(...latesMs) > 0,
      windows: keyed(buckets, key).windows ?? [],
    })),
  };
}

/** The operator states less than the upstream has, and that holds. */
const isStatedLess = (bucket: BucketPlan): boolean =>
  (isStatedAlone(bucket) || !bucket.learn) && bucket.statedShare !== null && bucket.statedShare < 1;

/**
 * What the operator states of a bucket may bring refusals about: a call takes more than a limit that is too low, and what was
 * used is forgotten where it is more than that, and lacks when the limit is raised again, or by a process that has not taken
 * the lower one over.
 */
export function misleads(plan: Reloaded, key: string): boolean {
  const stated = [plan, ...plan.reloads].map(({ buckets }) => keyed(buckets, key));
  const isMixed = plan.reloads.some(({ latesMs }) => Math.max(...latesMs) > 0);
  return stated.some((bucket, index) => {
    const share = bucket.statedShare ?? 0;
    const isRaised = stated.slice(index + 1).some(({ statedShare }) => (statedShare ?? 0) > share);
    return isStatedLess(bucket) && (isMixed || isRaised || bucket.tokens !== null || bucket.cost !== null);
  });
}

export const entrySettingsOf = perRegime((regime: Regime, laneKey): CallSettings => {
  const lane = keyed(regime.lanes, laneKey);
  const { maxQueued, ...limits } = named(regime.workspaces, lane.workspace);
  const ceiling = isBackground(lane) ? backgroundCeiling(limits) : limits;
  const { perMinute, perDay } = ceiling;
  return {
    ...('left' in ceiling ? { left: ceiling.left } : {}),
    mode: 'enforce',
    setting: bucketSettingOf(keyed(regime.buckets, lane.bucket)),
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    maxQueued,
    ceilingTag: `${perMinute ?? 'none'}.${perDay ?? 'none'}`,
    perMinute,
    perDay,
    yielded: null,
  };
});

/** Works something out once, as configuration is read once. Histories ask for the same after every event. */
function perRegime<R extends object, T>(work: (regime: R, key: string) => T): (regime: R, key: string) => T {
  const known = new WeakMap<R, Map<string, T>>();
  return (regime, key) => {
    let ofRegime = known.get(regime);
    if (ofRegime === undefined) known.set(regime, (ofRegime = new Map<string, T>()));
    let one = ofRegime.get(key);
    if (one === undefined) ofRegime.set(key, (one = work(regime, key)));
    return one;
  };
}

export function bucketSettingOf(bucket: BucketPlan): BucketSetting {
  const { statedShare } = bucket;
  const stated = (meter: MeterSetting['meter'], plan: MeterPlan | null): MeterSetting[] =>
    plan === null || statedShare === null ? [] : [{ meter, ...shareOf(plan, statedShare) }];
  const day = bucket.perDay === null ? null : { limit: bucket.perDay, windowMs: dayMs };
  return {
    meters: [
      ...stated('requests', bucket.requests),
      ...stated('tokens', bucket.tokens),
      ...stated('cost', bucket.cost),
      ...stated('requests_day', day),
      ...metersOf(bucket.windows ?? []),
    ],
    learn: bucket.learn,
    probe: bucket.probe,
  };
}

const shareOf = ({ limit, windowMs }: MeterPlan, share: number): MeterPlan => ({
  limit: Math.max(1, Math.round(limit * share)),
  windowMs,
});

export const isBackground = ({ key }: Pick<LanePlan, 'key'>): boolean => isBackgroundLane(laneKey(key));

export const keyed = <T extends { readonly key: string }>(all: readonly T[], key: string): T => {
  const one = all.find((each) => each.key === key);
  return found(one, key);
};

const named = <T extends { readonly name: string }>(all: readonly T[], name: string): T => {
  const one = all.find((each) => each.name === name);
  return found(one, name);
};

const nth = <T>(all: readonly T[], index: number): T => found(all[index], String(index));

export function found<T>(one: T | undefined, what: string): T {
  if (one === undefined) throw new Error(`there is no ${what}`);
  return one;
}
