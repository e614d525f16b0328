/**
 * Start-time fair queueing, watched at the server: while two lanes wait that nothing but the bucket holds back, their
 * shares differ by at most the largest call of each (invariant 5). A grant is a turn, also when it comes back. Begins anew
 * whenever data was lost.
 */
import { laneKey } from '../../../src/ids.ts';
import type { Costs, MeterName } from '../../../src/call.ts';
import type { Plan } from '../plan.ts';
import type { StoredBucket } from './stored-bucket.ts';
import { freeLanes, isBackground, keyed, type Regime } from '../rules.ts';

interface Served {
  readonly since: number;
  units: number;
  largest: number;
}

export class Fairness {
  readonly #plan: Plan;
  readonly #regimes: (now: number) => readonly Regime[];
  readonly #comparable: ReadonlySet<string>;
  /** Since when each lane has been waiting without a break. */
  readonly #waitingSince = new Map<string, number>();
  /** Lanes whose last ticket was granted: they stop waiting with that. */
  readonly #emptied = new Set<string>();
  readonly #served = new Map<string, Served>();
  /** What the latest grant of each lane took of its share: it may stand behind that yet, also where little was lost. */
  readonly #lastServiceMs = new Map<string, number>();
  #mark = 0;

  /** @param regimes what replicas go by at a time, or went by shortly before. */
  constructor(plan: Plan, regimes: (now: number) => readonly Regime[]) {
    this.#plan = plan;
    this.#regimes = regimes;
    this.#comparable = freeLanes(plan);
  }

  /** Which lanes wait, after a transition and before its grants are counted. `entered`: the ticket that it entered. */
  check(model: StoredBucket, entered: string | null, now: number): void {
    if (this.#comparable.size < 2) return;
    const granted = new Set(model.effects.grants.map(({ lane }) => lane));
    for (const { key, bucket } of this.#plan.lanes) {
      if (bucket !== model.key) continue;
      const lane = model.bucket?.lanes.get(laneKey(key));
      // A lane that was narrowed by its ceiling, or after a loss, is held back by more than the bucket.
      const free = lane !== undefined && lane.asleep.size === 0 && lane.slots === null;
      const waits = free && (lane.line.size > 0 || granted.has(laneKey(key)));
      if (this.#emptied.delete(key)) this.#waitingSince.delete(key);
      const others = lane?.line.names().filter((ticket) => ticket !== entered) ?? [];
      if (granted.has(laneKey(key)) && others.length === 0) this.#emptied.add(key);
      if (!waits) this.#waitingSince.delete(key);
      else if (!this.#waitingSince.has(key)) this.#waitingSince.set(key, now + ++this.#mark * 1e-9);
    }
  }

  /**
   * One grant of the latest transition. Returns what is unfair about it. `entered`: the ticket that the transition entered;
   * what had room went before it, in a pump of its own.
   */
  granted(model: StoredBucket, at: number, costs: Costs, entered: string | null, now: number): string | null {
    const [{ lane } = { lane: '' }, ...later] = model.effects.grants.slice(at);
    const rates = [...(model.bucket?.meters.values() ?? [])].flatMap(({ name: meter, limit, windowMs }) =>
      limit === null ? [] : [{ meter, limit, windowMs }],
    );
    const serviceMs = serviceMsOf(costs, rates);
    const [regime, ...older] = this.#regimes(now);
    const weight = regime === undefined ? 1 : keyed(regime.lanes, lane).weight;
    const before = this.#lastServiceMs.get(lane) ?? 0;
    // Where the weight has just changed its turn was as long as one of them says.
    const least = Math.min(weight, ...older.map(({ lanes }) => keyed(lanes, lane).weight));
    this.#lastServiceMs.set(lane, serviceMs / least);
    if (older.length > 0) this.forgetAll();
    const since = this.#waitingSince.get(lane);
    if (since === undefined || !this.#comparable.has(lane)) return null;
    let found: string | null = null;
    for (const other of this.#comparable) {
      const otherSince = this.#waitingSince.get(other);
      const otherLane = model.bucket?.lanes.get(laneKey(other));
      if (other === lane || otherLane === undefined || otherSince === undefined) continue;
      if (isBackground({ key: other }) !== isBackground({ key: lane })) continue;
      // Both were waiting before this transition, and the other one still is.
      const both = Math.max(since, otherSince);
      const behind = later.filter((grant) => grant.lane === other).map(({ ticket }) => ticket);
      const waits = [...otherLane.line.names(), ...behind].some((ticket) => ticket !== entered);
      if (both >= now || !waits) continue;
      const mine = this.#pair(lane, other, both, before);
      const theirs = this.#pair(other, lane, both, this.#lastServiceMs.get(other) ?? 0);
      mine.units += serviceMs / weight;
      mine.largest = Math.max(mine.largest, serviceMs / weight);
      const lead = mine.units - theirs.units;
      if (lead > mine.largest + theirs.largest + 1e-6) {
        found = `${lane} is ${lead.toFixed(2)} ahead of ${other}`;
      }
    }
    return found;
  }

  forgetAll(): void {
    this.#waitingSince.clear();
    this.#emptied.clear();
    this.#served.clear();
  }

  #pair(lane: string, other: string, since: number, before: number): Served {
    const key = `${lane}/${other}`;
    let pair = this.#served.get(key);
    if (pair === undefined || pair.since !== since) {
      pair = { since, units: 0, largest: before };
      this.#served.set(key, pair);
    }
    return pair;
  }
}

/** What the store believes of a meter when it grants. */
interface Rate {
  readonly meter: MeterName;
  readonly limit: number;
  readonly windowMs: number;
}

/** How long the costs keep the slowest of these meters busy: a day is no rate. Where no limit is known all calls are equal. */
export function serviceMsOf(costs: Costs, rates: readonly Rate[]): number {
  const busy = rates
    .filter(({ meter }) => meter !== 'requests_day' && meter !== 'tokens_day')
    .map(({ meter, limit, windowMs }) => windowMs * Math.min(1, unitsOf(costs, meter) / limit));
  return Math.max(0, ...busy) || 1;
}

/** Each window of requests counts what a call counts as a request. */
const unitsOf = (costs: Costs, meter: MeterName): number =>
  costs[meter] ?? (meter === 'requests_burst' || meter === 'requests_hour' ? (costs.requests ?? 0) : 0);
