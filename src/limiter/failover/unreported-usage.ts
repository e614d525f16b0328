/**
 * What this replica uses of every bucket while Redis is unavailable: from which level each bucket begins, this replica's
 * share of it, and what is reported to Redis afterwards.
 *
 * Owns: the seeds of an absence, the account of usage that Redis has not seen. Does not own: tickets, and when an absence
 * begins and ends (`failover/limiter.ts`).
 * Invariant: no usage is forgotten when Redis becomes unavailable again before it was reported.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { Clock } from '../../clock.ts';
import type { LastReading } from '../redis/bucket-session.ts';
import type { Admission, BucketKey, BucketSetting, Limiter, MeterSnapshot } from '../limiter.ts';
import { laneKey, ticketId } from '../../ids.ts';
import { limitsInForce, shareOfLevel, takenOf } from './known-usage.ts';
import { quotaShare } from './quota-share.ts';
import type { BucketSessions } from '../redis/bucket-sessions.ts';

/** Usage is reported again while Redis has no room for it, as long as nobody is sent after an absence. Milliseconds. */
const retryMs = 150;
const reportForMs = 1_200;
/** Usage is reported in parts no smaller than this share of it. */
const minPart = 1 / 64;

/** The levels with which a bucket began in the local store, and the admission of a call of this bucket. */
interface Seed {
  readonly admission: Admission;
  /** Without usage of an earlier absence that Redis has not seen. */
  readonly levels: ReadonlyMap<MeterName, number>;
  readonly at: number;
}

/** Usage of a bucket that Redis has not seen, and the admission of a call of this bucket, with the bucket's present limits. */
interface Unreported {
  admission: Admission;
  costs: Costs;
}

export interface UsageParts {
  readonly remote: Pick<BucketSessions, 'lastReading' | 'report'> & {
    readonly positions: Pick<BucketSessions['positions'], 'orderAt'>;
  };
  readonly clock: Clock;
  readonly replicas: () => number;
}

type OfBucket = Pick<Admission, 'bucket' | 'setting'>;

export class UnreportedUsage {
  readonly #parts: UsageParts;
  #seeds = new Map<BucketKey, Seed>();
  readonly #unreported = new Map<BucketKey, Unreported>();

  constructor(parts: UsageParts) {
    this.#parts = parts;
  }

  /** This replica's share of a bucket, by the limits that hold as far as is known. */
  shared({ bucket, setting }: OfBucket): BucketSetting {
    const { remote, replicas } = this.#parts;
    const known = remote.lastReading(bucket);
    const meters = limitsInForce(known, setting).map(({ meter, limit, windowMs }) => {
      const counts = setting.meters.find((stated) => stated.meter === meter)?.counts;
      const share = { meter, limit: quotaShare(limit, replicas()), windowMs };
      return counts === undefined ? share : { ...share, counts };
    });
    return { meters, learn: false, probe: known === null ? setting.probe : 0 };
  }

  /** Sets the bucket of this call in `store` to what it was at when Redis became unavailable, once. */
  async seed(store: Limiter, admission: Admission, unavailableSince: number): Promise<void> {
    const { bucket } = admission;
    if (this.#seeds.has(bucket)) return;
    const { remote, clock } = this.#parts;
    const known = remote.lastReading(bucket);
    const setting = this.shared(admission);
    const levels = this.#levels(bucket, setting, known);
    this.#unreported.delete(bucket);
    this.#seeds.set(bucket, { admission, levels: levels.seen, at: clock.monotonic() });
    // A call that comes from now on stands behind every call that came before.
    const position = { kind: 'kept', order: remote.positions.orderAt(0, unavailableSince) } as const;
    const ticket = ticketId(`seed.${admission.ticket}`);
    const common = { ...admission, ...ofSeeds, setting, position };
    const level = await store.admit({ ...common, ticket, costs: levels.costs });
    if (level.kind === 'queued') await store.cancel(bucket, ticket);
    // `unknown`: the seed brought no response of the upstream, so a bucket that needs a probe still needs one.
    if (level.kind === 'granted') await store.settle(level.grant, { kind: 'unknown' }, null);
    // Redis knew that the bucket was closed.
    if (known === null || known.closedMs <= 0) return;
    const free = { ticket: ticketId(`${ticket}.closes`), callClass: 'free', costs: {} };
    const closing = await store.admit({ ...common, ...free });
    if (closing.kind !== 'granted') return;
    const closes = { kind: 'throttled', closeMs: known.closedMs, requeue: false, sleepMs: 0 } as const;
    await store.settle(closing.grant, closes, null);
  }

  /** A report states the limits of its bucket: it uses the present ones, not those of the call with which counting began. */
  reconfigure({ bucket, setting }: OfBucket): void {
    const seed = this.#seeds.get(bucket);
    if (seed !== undefined) this.#seeds.set(bucket, { ...seed, admission: { ...seed.admission, setting } });
    const unreported = this.#unreported.get(bucket);
    if (unreported !== undefined) unreported.admission = { ...unreported.admission, setting };
  }

  /** Redis is available again: reports what was sent from `store`, and usage of earlier absences that is still unreported. */
  report(store: Limiter): Promise<void>[] {
    for (const [bucket, seed] of this.#seeds) {
      const costs = this.#usedSince(store, seed);
      if (Object.keys(costs).length > 0) this.#unreported.set(bucket, { admission: seed.admission, costs });
    }
    this.#seeds = new Map();
    return [...this.#unreported.values()].map(({ admission, costs }) => {
      const one = { admission, costs };
      this.#unreported.set(admission.bucket, one);
      return this.#reportOne(one);
    });
  }

  /** The levels with which a bucket begins: `costs` in all, `seen` without usage that Redis has not seen. */
  #levels(
    bucket: BucketKey,
    { meters }: BucketSetting,
    known: LastReading | null,
  ): { readonly costs: Costs; readonly seen: ReadonlyMap<MeterName, number> } {
    const read = new Map(known?.meters.map(({ meter, level }) => [meter, level]));
    const before = this.#unreported.get(bucket)?.costs ?? {};
    const seen = new Map<MeterName, number>();
    const costs: Record<string, number> = {};
    for (const { meter, limit } of meters) {
      const unreported = before[meter] ?? 0;
      const level = known === null ? 0 : shareOfLevel(read.get(meter), this.#parts.replicas());
      const own = known === null ? 0 : takenOf(meter, known.takenSince);
      costs[meter] = level === null ? limit : clamp(level + own + unreported, limit);
      seen.set(meter, costs[meter] - unreported);
    }
    return { costs, seen };
  }

  /** Usage since the seed: by how much the present level is above what has not drained of the seed yet. */
  #usedSince(store: Limiter, { admission, levels, at }: Seed): Costs {
    const agoMs = this.#parts.clock.monotonic() - at;
    const costs: Record<string, number> = {};
    for (const { meter, level, limit, windowMs } of metersOf(store, admission.bucket)) {
      const leftOfSeed = Math.max(0, (levels.get(meter) ?? 0) - (agoMs * limit) / windowMs);
      if (level > leftOfSeed) costs[meter] = level - leftOfSeed;
    }
    return costs;
  }

  /**
   * The shares of all replicas together may be a little more than the room of the bucket, and calls sent since Redis returned may
   * use some of it: usage that does not fit is halved until a part fits, and the rest is reported when there is room.
   */
  async #reportOne(one: Unreported): Promise<void> {
    const { clock, remote } = this.#parts;
    const { costs } = one;
    const { bucket } = one.admission;
    const position = { kind: 'arrival', at: clock.monotonic() } as const;
    const until = clock.monotonic() + reportForMs;
    let left = 1;
    let part = 1;
    // Another entry under this bucket means that another absence has begun, and has taken this usage over.
    const goesOn = (): boolean => this.#unreported.get(bucket) === one && clock.monotonic() < until;
    for (let tries = 0; left > minPart && goesOn(); tries += 1) {
      part = Math.min(part, left);
      const call = { ...one.admission, ...ofSeeds, position };
      const ticket = ticketId(`seed.${call.ticket}.${tries}`);
      const reported = await remote.report({ ...call, ticket, costs: times(costs, part) });
      if (reported === 'unavailable') return;
      if (reported === 'counted') {
        left -= part;
        one.costs = times(costs, left);
        part *= 2;
      } else if (part > minPart) part /= 2;
      else await new Promise<void>((resolve) => void clock.after(retryMs, resolve));
    }
    if (this.#unreported.get(bucket) === one) this.#unreported.delete(bucket);
  }
}

const clamp = (units: number, limit: number): number => Math.max(0, Math.min(limit, units));

const metersOf = (store: Limiter, bucket: BucketKey): readonly MeterSnapshot[] =>
  store.snapshot().find((one) => one.bucket === bucket)?.meters ?? [];

const times = (costs: Costs, share: number): Record<string, number> =>
  Object.fromEntries(Object.entries(costs).map(([meter, units]) => [meter, units * share]));

/**
 * The admission of costs without a call: granted at once or not at all, in a lane and class of their own. All replicas report in
 * this one lane: with its high weight an earlier report of another replica does not put a report behind waiting calls.
 */
const ofSeeds = {
  lane: laneKey('seed'),
  callClass: 'seed',
  maxInFlight: null,
  perMinute: null,
  ceiling: 'none',
  document: null,
  maxWaitMs: 0,
  weight: 1_000_000,
} as const;
