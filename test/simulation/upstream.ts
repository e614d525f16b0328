/**
 * The upstream of a history: buckets that drain continuously, refuse when full, and are also used by others. Its log
 * is the outside witness of what reached it; no line of the product is in it.
 */
import type { Costs, Feedback, MeterName, MeterReport } from '../../src/call.ts';
import type { BucketPlan, CallPlan } from './plan.ts';

const dayMs = 86_400_000;
const instant = 1e-6;

interface Level {
  readonly name: MeterName;
  limit: number;
  readonly windowMs: number;
  used: number;
  at: number;
}

export interface Arrival {
  readonly call: CallPlan;
  readonly at: number;
  readonly executed: boolean;
  /** Milliseconds the refusal named; `null` = accepted, or no hint. */
  readonly waitMs: number | null;
  /** The outside had taken from the bucket, or what was stated was not the truth: a refusal is nobody's fault. */
  readonly foreseeable: boolean;
}

export type Verdict =
  | { readonly kind: 'accepted'; readonly feedback: () => Feedback }
  | { readonly kind: 'refused'; readonly feedback: Feedback };

export class Upstream {
  readonly arrivals: Arrival[] = [];
  readonly #plan: BucketPlan;
  readonly #levels: Level[];
  #outsideAt = 0;
  #changed = 0;

  constructor(plan: BucketPlan) {
    this.#plan = plan;
    const level = (name: MeterName, limit: number, windowMs: number): Level => ({
      name,
      limit,
      windowMs,
      used: limit * plan.startShare,
      at: 0,
    });
    this.#levels = [
      level('requests', plan.requests.limit, plan.requests.windowMs),
      ...(plan.tokens ? [level('tokens', plan.tokens.limit, plan.tokens.windowMs)] : []),
      ...(plan.cost ? [level('cost', plan.cost.limit, plan.cost.windowMs)] : []),
      ...(plan.perDay === null ? [] : [{ ...level('requests_day', plan.perDay, dayMs), used: 0 }]),
    ];
  }

  /** A call arrives: it is counted and runs, or is refused whole. */
  arrive(call: CallPlan, now: number): Verdict {
    this.#advance(now);
    const wanted = this.#levels.flatMap((level) => {
      const units = charge(call.costs, level.name, level.name === 'tokens' ? call.chargedShare : 1);
      return units > 0 ? [{ level, units: Math.min(units, level.limit) }] : [];
    });
    const waits = wanted.map(({ level, units }) => ({
      level,
      waitMs: ((level.used + units - level.limit) * level.windowMs) / level.limit,
    }));
    const longest = waits.toSorted((a, b) => b.waitMs - a.waitMs)[0];
    const foreseeable = this.#plan.calm;
    if (longest !== undefined && longest.waitMs > instant) {
      const waitMs = Math.ceil(longest.waitMs);
      this.arrivals.push({
        call,
        at: now,
        executed: false,
        waitMs: this.#plan.hints ? waitMs : null,
        foreseeable,
      });
      const throttle = {
        kind: 'rate',
        waitMs: this.#plan.hints ? waitMs : null,
        meter: longest.level.name,
      } as const;
      return { kind: 'refused', feedback: { meters: this.#report(), throttle } };
    }
    for (const { level, units } of wanted) level.used += units;
    this.arrivals.push({ call, at: now, executed: true, waitMs: null, foreseeable });
    const atAdmission = this.#report();
    return { kind: 'accepted', feedback: () => ({ meters: atAdmission, throttle: null }) };
  }

  /** The end of a GraphQL call: points that were not used come back, and only now is the level told. */
  finish(call: CallPlan, now: number): Feedback {
    this.#advance(now);
    const points = this.#levels.find(({ name }) => name === 'cost');
    const requested = call.costs.cost ?? 0;
    const taken = Math.min(requested, points?.limit ?? 0);
    const actual = Math.floor(taken * Math.min(1, call.chargedShare));
    if (points !== undefined) points.used = Math.max(0, points.used - (taken - actual));
    const meters = this.#report().filter(({ meter }) => meter === 'cost');
    return { meters, throttle: null, requestedCost: requested, actualCost: actual };
  }

  /** Used units of calls. */
  usedRequests(now: number): number {
    this.#advance(now);
    return this.#levels[0]?.used ?? 0;
  }

  /** The levels in words, for the log. */
  describe(now: number): string {
    this.#advance(now);
    return this.#levels.map(({ name, used, limit }) => `${name} ${used.toFixed(2)}/${limit}`).join(', ');
  }

  #advance(now: number): void {
    for (const change of this.#plan.changes.slice(this.#changed)) {
      if (change.at > now) break;
      this.#changed += 1;
      this.#drink(change.at);
      for (const level of this.#levels) level.limit = Math.max(1, Math.round(level.limit * change.factor));
    }
    this.#drink(now);
  }

  /** Others take their gulps at their times, as far as there is room. */
  #drink(now: number): void {
    const requests = this.#levels[0];
    if (requests === undefined) return;
    const { outsideShare, outsideGulp } = this.#plan;
    const everyMs =
      outsideShare > 0 ? (outsideGulp * requests.windowMs) / (requests.limit * outsideShare) : Infinity;
    while (this.#outsideAt + everyMs <= now) {
      this.#outsideAt += everyMs;
      this.#drain(this.#outsideAt);
      for (const level of this.#levels) {
        if (level.name === 'requests_day') continue;
        const gulp = (outsideGulp * level.limit) / requests.limit;
        level.used = Math.max(level.used, Math.min(level.limit, level.used + gulp));
      }
    }
    this.#drain(now);
  }

  #drain(now: number): void {
    for (const level of this.#levels) {
      if (now <= level.at) continue;
      level.used = Math.max(0, level.used - ((now - level.at) * level.limit) / level.windowMs);
      level.at = now;
    }
  }

  #report(): MeterReport[] {
    const { tells } = this.#plan;
    if (tells === 'nothing') return [];
    return this.#levels.map(({ name, limit, windowMs, used }) => {
      const remaining = Math.floor(limit - used + instant);
      const level =
        tells === 'exact' && name !== 'cost'
          ? { lowest: used, highest: used }
          : { lowest: Math.max(0, limit - remaining - 1), highest: limit - remaining };
      return { meter: name, limit, windowMs, level };
    });
  }
}

const charge = (costs: Costs, name: MeterName, share: number): number => (costs[name] ?? 0) * share;
