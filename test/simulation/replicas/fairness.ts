/**
 * Start-time fair queueing, watched at the server: while two lanes wait that nothing but the bucket holds back, their
 * shares differ by at most the largest call of each (invariant 5). A grant is a turn, also when it comes back. Begins anew
 * whenever data was lost.
 */
import { laneKey } from '../../../src/ids.ts';
import type { Costs, MeterName } from '../../../src/call.ts';
import type { Plan } from '../plan.ts';
import type { StoredBucket } from './log-copies.ts';
import { freeLanes, isBackground, keepsTurns, keyed, type Regime } from '../rules.ts';

interface Served {
  readonly who: string;
  readonly serviceMs: number;
  /** What the next turn begins behind at most. Absent: the same. */
  readonly lastMs?: number;
}

/** Turns taken since both wait, and the largest of them; the one before counts, too. */
interface Taken {
  readonly since: number;
  units: number;
  largest: number;
}

export class Turns {
  readonly #taken = new Map<string, Taken>();
  readonly #last = new Map<string, number>();
  readonly #lost: number;

  /** @param lost so many turns of either may not have taken place */
  constructor(lost: number) {
    this.#lost = lost;
  }

  /** Says what is unfair about a grant: while two wait (`waiting`: since when), their shares differ by the largest call of each, and by turns that did not take place. */
  granted(served: Served, waiting: ReadonlyMap<string, number>, now: number): string | null {
    const { who, serviceMs, lastMs = serviceMs } = served;
    const before = this.#last.get(who) ?? 0;
    this.#last.set(who, lastMs);
    let found: string | null = null;
    for (const [other, otherSince] of waiting) {
      const since = Math.max(0, otherSince, waiting.get(who) ?? now);
      if (other === who || since >= now) continue;
      const mine = this.#of(who, other, { since, largest: before });
      const theirs = this.#of(other, who, { since, largest: this.#last.get(other) ?? 0 });
      mine.units += serviceMs;
      mine.largest = Math.max(mine.largest, serviceMs);
      const lead = mine.units - theirs.units;
      if (lead > (1 + this.#lost) * mine.largest + theirs.largest + 1e-6)
        found = `"${who}" is ${lead.toFixed(2)} ahead of "${other}"`;
    }
    return found;
  }

  forget(): void {
    this.#taken.clear();
  }

  #of(who: string, other: string, fresh: Omit<Taken, 'units'>): Taken {
    const key = `${who}/${other}`;
    let taken = this.#taken.get(key);
    if (taken?.since !== fresh.since) this.#taken.set(key, (taken = { ...fresh, units: 0 }));
    return taken;
  }
}

export class Fairness {
  readonly #plan: Plan;
  readonly #regimes: (now: number) => readonly Regime[];
  readonly #comparable: ReadonlySet<string>;
  readonly #waitingSince = new Map<string, number>();
  /** Lanes whose last ticket was granted: they stop waiting with that. */
  readonly #emptied = new Set<string>();
  readonly #turns = new Turns(0);
  #mark = 0;

  /** @param regimes what replicas go by at a time, or went by shortly before. */
  constructor(plan: Plan, regimes: (now: number) => readonly Regime[]) {
    this.#plan = plan;
    this.#regimes = regimes;
    const free = freeLanes(plan);
    const keepTurns = new Set(plan.buckets.filter(keepsTurns).map(({ key }) => key));
    const comparable = plan.lanes.filter(({ key, bucket }) => free.has(key) && keepTurns.has(bucket));
    this.#comparable = new Set(comparable.map(({ key }) => key));
  }

  check(model: StoredBucket, now: number): void {
    if (this.#comparable.size < 2) return;
    const granted = new Set(model.effects.grants.map(({ lane }) => lane));
    for (const { key, bucket } of this.#plan.lanes) {
      if (bucket !== model.key) continue;
      const lane = model.bucket?.lanes.get(laneKey(key));
      // A lane that was narrowed by its ceiling, or after a loss, is held back by more than the bucket.
      const free = lane !== undefined && lane.asleep.size === 0 && lane.slots === null;
      const waits = free && (lane.line.size > 0 || granted.has(laneKey(key)));
      if (this.#emptied.delete(key)) this.#waitingSince.delete(key);
      if (granted.has(laneKey(key)) && (lane?.line.size ?? 0) === 0) this.#emptied.add(key);
      if (!waits) this.#waitingSince.delete(key);
      else if (!this.#waitingSince.has(key)) this.#waitingSince.set(key, now + ++this.#mark * 1e-9);
    }
  }

  granted(model: StoredBucket, at: number, costs: Costs, now: number): string | null {
    const [{ lane } = { lane: '' }, ...later] = model.effects.grants.slice(at);
    const serviceMs = serviceMsOf(costs, ratesOf(model));
    const [regime, ...older] = this.#regimes(now);
    const weight = regime === undefined ? 1 : keyed(regime.lanes, lane).weight;
    // Where the weight has just changed its turn was as long as one of them says.
    const least = Math.min(weight, ...older.map(({ lanes }) => keyed(lanes, lane).weight));
    if (older.length > 0) this.forgetAll();
    const waiting = new Map<string, number>();
    for (const [other, since] of this.#waitingSince) {
      if (!this.#comparable.has(other) || isBackground({ key: other }) !== isBackground({ key: lane }))
        continue;
      const here = model.bucket?.lanes.get(laneKey(other));
      // It was waiting before this transition, and still is.
      const waits = here !== undefined && (here.line.size > 0 || later.some((grant) => grant.lane === other));
      if (waits || other === lane) waiting.set(other, since);
    }
    const served = { who: lane, serviceMs: serviceMs / weight, lastMs: serviceMs / least };
    return this.#turns.granted(served, waiting, now);
  }

  forgetAll(): void {
    this.#waitingSince.clear();
    this.#emptied.clear();
    this.#turns.forget();
  }
}

/** What the store knows of a meter when it grants. */
interface Rate {
  readonly meter: MeterName;
  readonly limit: number;
  readonly windowMs: number;
}

export const ratesOf = ({ bucket }: StoredBucket): Rate[] =>
  [...(bucket?.meters.values() ?? [])].flatMap(({ name: meter, limit, windowMs }) =>
    limit === null ? [] : [{ meter, limit, windowMs }],
  );

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
