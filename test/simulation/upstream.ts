/** The upstream of a history: buckets that drain continuously or in windows, refuse when full, and are also used by others. */
import type { Feedback, MeterName, MeterReport } from '../../src/call.ts';
import { DescribedCounts, type Described } from './described.ts';
import type { BucketPlan, CallPlan } from './plan.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';

const dayMs = 86_400_000;
const instant = 1e-6;

interface Level {
  readonly name: MeterName;
  limit: number;
  readonly windowMs: number;
  used: number;
  at: number;
  /** Of a meter that gives all back at once: when its window ends. */
  endsAt: number;
}

export interface Arrival {
  readonly call: CallPlan;
  readonly at: number;
}

export interface Verdict {
  readonly kind: 'accepted' | 'refused';
  readonly feedback: Feedback;
}

export class Upstream {
  readonly arrivals: Arrival[] = [];
  readonly #plan: BucketPlan;
  readonly #levels: Level[];
  /** It counts by these windows only. */
  readonly described: DescribedCounts | null;
  #outsideAt = 0;
  #changed = 0;

  constructor(plan: BucketPlan, described: Described | null = null) {
    this.#plan = plan;
    this.described = described === null ? null : new DescribedCounts(described);
    const level = (name: MeterName, limit: number, windowMs: number): Level => {
      const used = limit * plan.startShare;
      return { name, limit, windowMs, used, at: 0, endsAt: 0 };
    };
    this.#levels = [
      level('requests', plan.requests.limit, plan.requests.windowMs),
      ...(plan.tokens ? [level('tokens', plan.tokens.limit, plan.tokens.windowMs)] : []),
      ...(plan.cost ? [level('cost', plan.cost.limit, plan.cost.windowMs)] : []),
      ...(plan.perDay === null ? [] : [{ ...level('requests_day', plan.perDay, dayMs), used: 0 }]),
    ];
  }

  /** A call arrives: it is counted and runs, or is refused whole. */
  arrive(call: CallPlan, now: number): Verdict {
    this.arrivals.push({ call, at: now });
    if (this.described !== null) return this.#arriveCounted(this.described, now);
    this.#advance(now);
    const wanted = this.#levels.flatMap((level) => {
      const units = chargeOf(call, level.name);
      return units > 0 ? [{ level, units: Math.min(units, level.limit) }] : [];
    });
    const waits = wanted.map(({ level, units }) => ({ level, units, waitMs: this.#roomInMs(level, units) }));
    const longest = waits.toSorted((a, b) => b.waitMs - a.waitMs)[0];
    if (longest !== undefined && longest.waitMs > instant) {
      const waitMs = this.#plan.hints ? Math.ceil(longest.waitMs) : null;
      return { kind: 'refused', feedback: this.#refusal(longest.level.name, longest.units, waitMs) };
    }
    for (const { level, units } of wanted) {
      if (this.#plan.isFixed && level.used === 0) level.endsAt = now + level.windowMs;
      level.used += units;
    }
    const isInFields = this.#plan.reports === 'fields';
    const feedback = isInFields ? this.#fields(null) : { meters: this.#report(), throttle: null };
    return { kind: 'accepted', feedback };
  }

  #arriveCounted(counts: DescribedCounts, now: number): Verdict {
    const roomInMs = counts.roomInMs(now);
    if (roomInMs > instant) {
      const waitMs = this.#plan.hints ? Math.ceil(roomInMs) : null;
      return { kind: 'refused', feedback: { meters: [], throttle: { kind: 'rate', waitMs, meter: null } } };
    }
    counts.take(now);
    return { kind: 'accepted', feedback: { meters: [], throttle: null } };
  }

  /** The end of a GraphQL call: points that were not used come back, and only now is the level stated. */
  finish(call: CallPlan, now: number): Feedback {
    this.#advance(now);
    const points = this.#levels.find(({ name }) => name === 'cost');
    const requested = chargeOf(call, 'cost');
    const taken = Math.min(requested, points?.limit ?? 0);
    const actual = Math.floor(taken * Math.min(1, call.chargedShare));
    if (points !== undefined) points.used = Math.max(0, points.used - (taken - actual));
    const meters = this.#report().filter(({ meter }) => meter === 'cost');
    return { meters, throttle: null, requestedCost: requested, actualCost: actual };
  }

  /** All of these calls together have room, and a share of each limit is left. */
  hasRoom(calls: readonly CallPlan[], keptFree: number, now: number): boolean {
    this.#advance(now);
    return this.#levels.every((level) => {
      const units = calls.reduce((sum, call) => sum + Math.min(level.limit, chargeOf(call, level.name)), 0);
      return units === 0 || level.used + units <= level.limit * (1 - keptFree);
    });
  }

  /** Milliseconds until so many units have room, at the time of the latest step. */
  #roomInMs({ limit, used, windowMs, endsAt, at }: Level, units: number): number {
    const over = used + units - limit;
    if (over <= 0) return 0;
    return this.#plan.isFixed ? endsAt - at : (over * windowMs) / limit;
  }

  #refusal(meter: MeterName, units: number, waitMs: number | null): Feedback {
    if (this.#plan.reports === 'fields') return this.#fields({ waitMs });
    const reported = { meters: this.#report(), throttle: { kind: 'rate', waitMs, meter } } as const;
    if (meter === 'cost') return { ...reported, requestedCost: units };
    return meter === 'tokens' ? { ...reported, requestedTokens: units } : reported;
  }

  /** Limit, remaining and reset, and on a refusal the time to wait: whole units and whole seconds, read by the product's own dialect. */
  #fields(refused: { readonly waitMs: number | null } | null): Feedback {
    const [requests] = this.#levels;
    if (requests === undefined) throw new Error('an upstream without a limit');
    const { limit, used, windowMs, endsAt, at } = requests;
    const seconds = (ms: number): string => String(Math.ceil(ms / 1_000));
    const resetMs = this.#plan.isFixed ? Math.max(0, endsAt - at) : (used * windowMs) / limit;
    const fields = new Map([
      ['x-ratelimit-limit', String(limit)],
      ['x-ratelimit-remaining', String(Math.max(0, Math.floor(limit - used + instant)))],
      ['x-ratelimit-reset', seconds(resetMs)],
    ]);
    const waitMs = refused?.waitMs ?? null;
    if (waitMs !== null) fields.set('retry-after', seconds(waitMs));
    const status = refused === null ? 200 : 429;
    return learnFrom('generic', { status, fields, body: null, callClass: 'default', nowMs: 0 });
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

  /** Others take their bursts at their times, as far as there is room. */
  #drink(now: number): void {
    const requests = this.#levels[0];
    if (requests === undefined) return;
    const { outsideShare, outsideBurst } = this.#plan;
    const everyMs =
      outsideShare > 0 ? (outsideBurst * requests.windowMs) / (requests.limit * outsideShare) : Infinity;
    while (this.#outsideAt + everyMs <= now) {
      this.#outsideAt += everyMs;
      this.#drain(this.#outsideAt);
      for (const level of this.#levels) {
        if (level.name === 'requests_day') continue;
        const burst = (outsideBurst * level.limit) / requests.limit;
        level.used = Math.max(level.used, Math.min(level.limit, level.used + burst));
      }
    }
    this.#drain(now);
  }

  #drain(now: number): void {
    for (const level of this.#levels) {
      if (now <= level.at) continue;
      if (!this.#plan.isFixed) {
        level.used = Math.max(0, level.used - ((now - level.at) * level.limit) / level.windowMs);
      } else if (now >= level.endsAt) level.used = 0;
      level.at = now;
    }
  }

  #report(): MeterReport[] {
    const { reports } = this.#plan;
    if (reports === 'nothing') return [];
    return this.#levels.map(({ name, limit, windowMs, used }) => {
      const remaining = Math.floor(limit - used + instant);
      const level =
        reports === 'exact' && name !== 'cost'
          ? { lowest: used, highest: used }
          : { lowest: Math.max(0, limit - remaining - 1), highest: limit - remaining };
      return { meter: name, limit, windowMs, level };
    });
  }
}

/** What the upstream takes for a call: of a document what it is worth, of tokens what they turn out to be. */
function chargeOf({ costs, document, chargedShare }: CallPlan, name: MeterName): number {
  if (name === 'cost' && document !== null) return document.points;
  const units = costs[name] ?? 0;
  return name === 'tokens' ? units * chargedShare : units;
}
