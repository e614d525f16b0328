/**
 * What configuration says, process by process and over time: each process takes a reload over when it gets round to it.
 *
 * Owns: which limits some process may have gone by at a time. Refuses to own: what they must lead to (the ledger).
 */
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import type { BucketSetting, MeterSetting } from '../../src/limiter/limiter.ts';
import type { BucketPlan, CallPlan, LanePlan, MeterPlan, WorkspacePlan } from './plan.ts';

/** What configuration says at one time. */
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
export type Limit = (regime: Regime) => number | null;

const dayMs = 86_400_000;
/** Ways of commands to the store until nothing is on its way that was asked before a reload. */
const waysOfReload = 12;

export class Rules {
  readonly #regimes: readonly Regime[];
  readonly #of = new Map<string, number>();
  /** Which regimes processes went by from these times on. */
  readonly #steps: { readonly at: number; readonly regimes: ReadonlySet<number> }[] = [];

  constructor(plan: Reloaded) {
    this.#regimes = [plan, ...plan.reloads];
  }

  /** A process goes by the regime after so many reloads from now on, unless it has gone further already. */
  takesOver(process: string, reloads: number, now: number): void {
    const known = this.#of.get(process);
    if (known !== undefined && known >= reloads) return;
    this.#of.set(process, reloads);
    this.#step(now);
  }

  /** A process is no more. */
  ends(process: string, now: number): void {
    if (this.#of.delete(process) && this.#of.size > 0) this.#step(now);
  }

  /** By which the process goes now. */
  of(process: string): Regime {
    return nth(this.#regimes, this.#of.get(process) ?? 0);
  }

  /** Regimes that some process went by at some time from `from` to `to`. */
  during(from: number, to: number): readonly Regime[] {
    const found = new Set<number>();
    for (const [index, { at, regimes }] of this.#steps.entries()) {
      const until = this.#steps[index + 1]?.at ?? Infinity;
      if (at <= to && until >= from) for (const regime of regimes) found.add(regime);
    }
    return found.size === 0
      ? this.#regimes.slice(0, 1)
      : [...found].map((index) => nth(this.#regimes, index));
  }

  /** When a process last took something over; `null` = never. The first configuration counts for nothing. */
  lastChangeAt(now: number): number | null {
    return this.#steps.findLast(({ at, regimes }) => at <= now && Math.max(...regimes) > 0)?.at ?? null;
  }

  #step(at: number): void {
    this.#steps.push({ at, regimes: new Set(this.#of.values()) });
  }
}

/** The highest of these limits; `null` = one of the regimes has none. */
export function highest(regimes: readonly Regime[], limit: Limit): number | null {
  const limits = regimes.map(limit);
  return limits.some((each) => each === null) ? null : Math.max(...limits.filter((each) => each !== null));
}

/** The lowest of these limits; `null` = none of the regimes has one. */
export function lowest(regimes: readonly Regime[], limit: Limit): number | null {
  const limits = regimes.map(limit).filter((each) => each !== null);
  return limits.length === 0 ? null : Math.min(...limits);
}

export const perMinuteOf =
  (name: string): Limit =>
  ({ workspaces }) =>
    named(workspaces, name).perMinute;

export const perDayOf =
  (name: string): Limit =>
  ({ workspaces }) =>
    named(workspaces, name).perDay;

/** Requests that the operator states of a bucket; `null` = none. */
export function statedOf({ buckets }: Regime, key: string): MeterPlan | null {
  const { requests, statedShare } = keyed(buckets, key);
  return statedShare === null ? null : shareOf(requests, statedShare);
}

/** What the operator states is all that anybody knows of the bucket. */
export const isStatedAlone = ({ reports }: Pick<BucketPlan, 'reports'>): boolean => reports === 'nothing';

/**
 * A plan as everybody knew it at a time, from the latest reload on: calls in lanes as they were then, buckets as large as
 * the gateway took them to be.
 */
export function knownAt<P extends Reloaded & { readonly calls: readonly CallPlan[] }>(
  plan: P,
  at: number,
): P {
  const { buckets, lanes, workspaces } = regimeAt(plan, at);
  const calls = plan.calls.map((call) => ({ ...call, lane: keyed(lanes, call.lane.key) }));
  return { ...plan, buckets: buckets.map(asStated), lanes, workspaces, calls };
}

/** What configuration says from the latest reload before a time on. */
export const regimeAt = (plan: Reloaded, at: number): Regime =>
  plan.reloads.findLast((reload) => reload.at <= at) ?? plan;

/** Processes differ in what they go by, or what one of them did before is still on its way. */
export function isTakingOver({ at, latesMs }: ReloadPlan, wayMs: number, now: number): boolean {
  const tookMs = Math.max(...latesMs) + waysOfReload * wayMs;
  return tookMs > 0 && at <= now && now <= at + tookMs;
}

/** The operator states less than the upstream has, and that holds. */
export const isStatedLess = (bucket: BucketPlan): boolean =>
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

function asStated(bucket: BucketPlan): BucketPlan {
  const { statedShare, requests, tokens, cost, perDay } = bucket;
  if (!isStatedLess(bucket) || statedShare === null) return bucket;
  return {
    ...bucket,
    // A call may take more than a limit that is stated too low, and answers tell the level of a larger bucket.
    isReliable: bucket.isReliable && isStatedAlone(bucket) && tokens === null && cost === null,
    requests: shareOf(requests, statedShare),
    tokens: tokens === null ? null : shareOf(tokens, statedShare),
    cost: cost === null ? null : shareOf(cost, statedShare),
    perDay: perDay === null ? null : shareOf({ limit: perDay, windowMs: dayMs }, statedShare).limit,
  };
}

/** What configuration says of the calls of a lane. */
export function entrySettingsOf(regime: Regime, laneKey: string): CallSettings {
  const lane = keyed(regime.lanes, laneKey);
  const { perMinute, perDay, maxQueued } = named(regime.workspaces, lane.workspace);
  return {
    setting: bucketSettingOf(keyed(regime.buckets, lane.bucket)),
    weight: lane.weight,
    maxInFlight: lane.maxInFlight,
    maxQueued,
    ceiling: `${perMinute ?? 'none'}.${perDay ?? 'none'}`,
    perMinute,
    perDay,
  };
}

/** What the operator wrote down of this bucket. */
function bucketSettingOf(bucket: BucketPlan): BucketSetting {
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
    ],
    learn: bucket.learn,
    probe: bucket.probe,
  };
}

const shareOf = ({ limit, windowMs }: MeterPlan, share: number): MeterPlan => ({
  limit: Math.max(1, Math.round(limit * share)),
  windowMs,
});

export const keyed = <T extends { readonly key: string }>(all: readonly T[], key: string): T =>
  found(
    all.find((one) => one.key === key),
    key,
  );

const named = <T extends { readonly name: string }>(all: readonly T[], name: string): T =>
  found(
    all.find((one) => one.name === name),
    name,
  );

const nth = (regimes: readonly Regime[], index: number): Regime => found(regimes[index], String(index));

function found<T>(one: T | undefined, what: string): T {
  if (one === undefined) throw new Error(`configuration lacks ${what}`);
  return one;
}
