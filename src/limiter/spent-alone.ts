/**
 * What this replica sends while it is without Redis: from which level each bucket begins, how much of it is ours, and
 * what Redis has to be told of it afterwards.
 *
 * Owns: the seeds of an absence, the account of what was sent and not told. Refuses to own: tickets and when an absence
 * begins and ends (`away-limiter.ts`).
 * Keeps: nothing sent alone is forgotten when Redis goes away again before it was told.
 */
import type { Costs, MeterName } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Admission, BucketKey, BucketSetting, Limiter, MeterSnapshot } from './limiter.ts';
import type { RedisLimiter } from './redis-limiter.ts';
import { shareOf } from './share-log.ts';

/** What was spent alone is told again while Redis has no room for it, as long as nobody is sent after an absence. */
const spendAgainMs = 150;
const spendForMs = 1_200;
/** What was spent alone is told in parts no smaller than this share of it. */
const smallestPart = 1 / 64;

/** What a bucket was at here when Redis went, and a call of it. */
interface Seed {
  readonly admission: Admission;
  /** Without what Redis has to be told of an earlier absence. */
  readonly levels: ReadonlyMap<MeterName, number>;
  readonly at: number;
}

/** What Redis has not been told of a bucket, and a call of it. */
interface Untold {
  readonly admission: Admission;
  costs: Costs;
}

export interface SpentAlone {
  /** This replica's share of a bucket: of what is learned where something is, else of what is stated. */
  shared(of: Pick<Admission, 'bucket' | 'setting'>): BucketSetting;
  /** Sets the bucket of this call in `store` to what it was at when Redis went (monotonic milliseconds), once. */
  seed(store: Limiter, admission: Admission, awaySince: number): Promise<void>;
  /** Redis is back: tells it what was sent from `store`, and what is left of before. Each rejects with `RedisAway`. */
  tell(store: Limiter): readonly Promise<void>[];
}

export function createSpentAlone({
  remote,
  clock,
  replicas,
}: {
  readonly remote: Pick<RedisLimiter, 'book' | 'orderAt' | 'spend'>;
  readonly clock: Clock;
  readonly replicas: () => number;
}): SpentAlone {
  let seeds = new Map<BucketKey, Seed>();
  const untold = new Map<BucketKey, Untold>();

  const shared = ({ bucket, setting }: Pick<Admission, 'bucket' | 'setting'>): BucketSetting => {
    const known = remote.book(bucket);
    const learned = new Map(known?.meters.map((meter) => [meter.meter, meter]));
    for (const stated of setting.meters) {
      if (!learned.has(stated.meter)) learned.set(stated.meter, { ...stated, level: 0 });
    }
    const meters = [...learned.values()].map(({ meter, limit, windowMs }) => ({
      meter,
      limit: shareOf(limit, replicas()),
      windowMs,
    }));
    return { meters, learn: false, probe: known === null ? setting.probe : 0 };
  };

  /** What went out meanwhile: what the level here is above what was left of the seed. */
  const spentSince = (store: Limiter, { admission, levels, at }: Seed): Costs => {
    const agoMs = clock.monotonic() - at;
    const costs: Record<string, number> = {};
    for (const { meter, level, limit, windowMs } of metersOf(store, admission.bucket)) {
      const leftOfSeed = Math.max(0, (levels.get(meter) ?? 0) - (agoMs * limit) / windowMs);
      if (level > leftOfSeed) costs[meter] = level - leftOfSeed;
    }
    return costs;
  };

  /**
   * All shares together may be a little more than there is room for now, and calls that left meanwhile may hold some of
   * it for a moment: what fits is told at once, by halves, the rest when there is room.
   */
  const tellOne = async (one: Untold): Promise<void> => {
    const { admission, costs } = one;
    const position = { kind: 'arrival', at: clock.monotonic() } as const;
    const call = { ...admission, ...ofSeeds, position };
    const until = clock.monotonic() + spendForMs;
    let left = 1;
    let part = 1;
    // Another absence has taken it over when it is not the same any more.
    const goesOn = (): boolean => untold.get(admission.bucket) === one && clock.monotonic() < until;
    for (let tries = 0; left > smallestPart && goesOn(); tries += 1) {
      part = Math.min(part, left);
      const ticket = `seed.${admission.ticket}.${tries}`;
      if (await remote.spend({ ...call, ticket, costs: times(costs, part) })) {
        left -= part;
        one.costs = times(costs, left);
      } else if (part > smallestPart) part /= 2;
      else {
        await new Promise<void>((resolve) => {
          clock.after(spendAgainMs, resolve);
        });
      }
    }
    if (untold.get(admission.bucket) === one) untold.delete(admission.bucket);
  };

  return {
    shared,

    async seed(store, admission, awaySince) {
      const { bucket } = admission;
      if (seeds.has(bucket)) return;
      const known = remote.book(bucket);
      const setting = shared(admission);
      const told = new Map(known?.meters.map(({ meter, level }) => [meter, level]));
      const before = untold.get(bucket)?.costs ?? {};
      const levels = new Map<MeterName, number>();
      const costs: Record<string, number> = {};
      for (const { meter, limit } of setting.meters) {
        // A bucket that Redis had and has told nothing of yet may be full.
        const everywhere = told.get(meter) ?? (known === null ? 0 : Infinity);
        const untoldUnits = before[meter] ?? 0;
        const level = Math.min(limit, Math.ceil(everywhere / replicas()) + untoldUnits);
        costs[meter] = level;
        levels.set(meter, level - untoldUnits);
      }
      untold.delete(bucket);
      seeds.set(bucket, { admission, levels, at: clock.monotonic() });
      // Who comes from now on stands behind everybody who came before.
      const position = { kind: 'kept', order: remote.orderAt(0, awaySince) } as const;
      const ticket = `seed.${admission.ticket}`;
      const common = { ...admission, ...ofSeeds, setting, position };
      const level = await store.admit({ ...common, ticket, costs });
      if (level.kind === 'queued') await store.cancel(bucket, ticket);
      // Nobody answered it: what is to be probed is still.
      if (level.kind === 'granted') await store.settle(level.grant, { kind: 'unknown' }, null);
      // Redis knew that the bucket was closed.
      if (known === null || known.closedMs <= 0) return;
      const closing = await store.admit({
        ...common,
        ticket: `${ticket}.closes`,
        callClass: 'free',
        costs: {},
      });
      if (closing.kind !== 'granted') return;
      const closes = { kind: 'throttled', closeMs: known.closedMs, requeue: false, sleepMs: 0 } as const;
      await store.settle(closing.grant, closes, null);
    },

    tell(store) {
      for (const [bucket, seed] of seeds) {
        const costs = spentSince(store, seed);
        if (Object.keys(costs).length > 0) untold.set(bucket, { admission: seed.admission, costs });
      }
      seeds = new Map();
      return [...untold.values()].map(({ admission, costs }) => {
        const one = { admission, costs };
        untold.set(admission.bucket, one);
        return tellOne(one);
      });
    },
  };
}

const metersOf = (store: Limiter, bucket: BucketKey): readonly MeterSnapshot[] =>
  store.snapshot().find((one) => one.bucket === bucket)?.meters ?? [];

const times = (costs: Costs, share: number): Record<string, number> =>
  Object.fromEntries(Object.entries(costs).map(([meter, units]) => [meter, units * share]));

/** Costs without a call: granted at once or not at all, in a lane and class of their own. */
const ofSeeds = {
  lane: 'seed',
  callClass: 'seed',
  maxInFlight: null,
  perMinute: null,
  ceiling: 'none',
  document: null,
  maxWaitMs: 0,
  weight: 1,
} as const;
