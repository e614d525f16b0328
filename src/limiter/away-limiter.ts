/**
 * The limiter that a replica uses: Redis while it is there, else what the operator chose. `local`: this replica goes on
 * alone with its share of every limit. `deny`: newcomers are refused, waiting calls wait on.
 *
 * Owns: which store a call is in, moving waiting calls over and back with their places, the mode that metrics show.
 * Refuses to own: noticing that Redis is away (`redis-link.ts`), shares of ceilings (`redis-ceilings.ts`).
 * Keeps: no call is let through unseen; no waiting call is lost in a switch; a capped lane waits one lease length after
 * each switch, because calls of the other store may still be under way. Beyond that `local` cannot keep replicas from
 * overlapping: each such grant is counted (`unavailable`).
 */
import type { MeterName } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import type {
  Admission,
  AdmissionReply,
  BucketKey,
  BucketSetting,
  Grant,
  Lesson,
  Limiter,
  LimiterListener,
  MeterSnapshot,
  Settlement,
} from './limiter.ts';
import { createMemoryLimiter } from './memory-limiter.ts';
import { withCosts, type RedisLimiter } from './redis-limiter.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import { shareOf } from './share-log.ts';

const retryAwayMs = 1_000;
/** What was spent alone is told again while Redis has no room for it, as long as nobody is sent after an absence. */
const spendAgainMs = 150;
const spendForMs = 1_200;
/** What was spent alone is told in parts no smaller than this share of it. */
const smallestPart = 1 / 64;
/** Absences shorter than this leave the leases in Redis alive. */
const shortMs = 10_000;

/** What a bucket was at here when Redis went, and a call of it. */
interface Seed {
  readonly admission: Admission;
  readonly levels: ReadonlyMap<MeterName, number>;
  readonly at: number;
}

type Levels = ReadonlyMap<MeterName, MeterSnapshot>;

const times = (costs: Readonly<Record<string, number>>, share: number): Record<string, number> =>
  Object.fromEntries(Object.entries(costs).map(([meter, units]) => [meter, units * share]));

interface LocalTicket {
  admission: Admission;
  waiting: boolean;
  /** A grant kept from its call until calls of the other store have ended. */
  held: { readonly grant: Grant; readonly cancel: () => void } | null;
}

export function createAwayLimiter(dependencies: {
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly whenDown: 'local' | 'deny';
  readonly replicas: () => number;
  /** Builds the Redis side; `onStranded` takes tickets that go back to their line while Redis is away. */
  readonly remote: (onStranded: (admission: Admission) => boolean) => RedisLimiter;
  /** Awaited before waiting calls go back to Redis. */
  readonly beforeResume: () => Promise<void>;
}): Limiter {
  const { link, clock, telemetry, listener, whenDown, replicas } = dependencies;
  const tickets = new Map<string, LocalTicket>();
  /** Grants of this store, each with the absence (its limiter) that it belongs to. */
  const localLeases = new Map<Grant, Limiter>();
  let seeds = new Map<BucketKey, Seed>();
  let awaySince = -Infinity;
  /** Everything is on Redis: the last absence was ended, not only interrupted. */
  let isWhole = true;
  let closed = false;

  const remote = dependencies.remote((admission) => {
    if (whenDown === 'deny' || link.isUp) return false;
    background(enterLocally(admission));
    return true;
  });

  const onLocalGrant = (grant: Grant, store: Limiter): void => {
    const ticket = tickets.get(grant.ticket);
    localLeases.set(grant, store);
    if (ticket === undefined) return background(settleLocally(grant, { kind: 'dropped' }, null));
    ticket.waiting = false;
    const { maxInFlight, leaseMs } = ticket.admission;
    if (maxInFlight === null) return listener.onGrant(grant);
    const waitMs = awaySince + leaseMs - clock.monotonic();
    const hand = (handed: Grant): void => {
      if (replicas() > 1) telemetry.leaseLost('unavailable');
      listener.onGrant(handed);
    };
    if (waitMs <= 0) return hand(grant);
    const cancel = clock.after(waitMs, () => {
      ticket.held = null;
      // Held for a whole lease, which the store has renewed meanwhile: its holder's time begins now.
      const fresh = { ...grant, expiresAt: clock.monotonic() + leaseMs };
      localLeases.delete(grant);
      localLeases.set(fresh, store);
      hand(fresh);
    });
    ticket.held = { grant, cancel };
  };

  /** Each absence begins anew, from what Redis last knew. */
  const beginAlone = (): Limiter => {
    const store: Limiter = createMemoryLimiter(clock, {
      onGrant: (grant) => onLocalGrant(grant, store),
      onClosed: (bucket, closedMs) => listener.onClosed(bucket, closedMs),
    });
    return store;
  };
  let local = beginAlone();

  const background = (work: Promise<unknown>): void => {
    work.catch((failure: unknown) => {
      if (!(failure instanceof RedisAway)) telemetry.log.bug('a limiter operation failed', failure);
    });
  };

  /** This replica's share of a bucket: of what is learned where something is, else of what is stated. */
  const shared = ({ bucket, setting }: Admission): BucketSetting => {
    const learned = new Map(remote.book(bucket)?.meters.map((meter) => [meter.meter, meter]));
    for (const stated of setting.meters) {
      if (!learned.has(stated.meter)) learned.set(stated.meter, { ...stated, level: 0 });
    }
    const meters = [...learned.values()].map(({ meter, limit, windowMs }) => ({
      meter,
      limit: shareOf(limit, replicas()),
      windowMs,
    }));
    return { meters, learn: false, probe: 0 };
  };

  const levelsHere = (bucket: BucketKey): Levels =>
    new Map(
      local
        .snapshot()
        .find((one) => one.bucket === bucket)
        ?.meters.map((meter) => [meter.meter, meter]),
    );

  /** What the bucket was at when Redis went: its level counts against every share, its closing for everybody. */
  const seed = async (admission: Admission): Promise<void> => {
    const { bucket } = admission;
    if (seeds.has(bucket)) return;
    const known = remote.book(bucket);
    const setting = shared(admission);
    const told = new Map(known?.meters.map(({ meter, level }) => [meter, level]));
    const levels = new Map<MeterName, number>();
    const costs: Record<string, number> = {};
    for (const { meter, limit } of setting.meters) {
      // A bucket that Redis had and has told nothing of yet may be full.
      const everywhere = told.get(meter) ?? (known === null ? 0 : Infinity);
      const level = Math.min(limit, Math.ceil(everywhere / replicas()));
      levels.set(meter, level);
      costs[meter] = level;
    }
    seeds.set(bucket, { admission, levels, at: clock.monotonic() });
    // Who comes from now on stands behind everybody who came before.
    const order = remote.placeAt(0, awaySince);
    const ticket = `seed.${admission.ticket}`;
    const common = { ...admission, ...ofSeeds, setting, order };
    const level = await local.admit({ ...common, ticket, costs });
    if (level.kind === 'queued') await local.cancel(bucket, ticket);
    if (level.kind === 'granted') await local.settle(level.grant, { kind: 'succeeded', spent: null }, null);
    if (known === null || known.closedMs <= 0) return;
    const closing = await local.admit({
      ...common,
      ticket: `${ticket}.closes`,
      callClass: 'free',
      costs: {},
    });
    if (closing.kind !== 'granted') return;
    const closes = { kind: 'throttled', closeMs: known.closedMs, requeue: false, sleepMs: 0 } as const;
    await local.settle(closing.grant, closes, null);
  };

  /** What went out here meanwhile counts in Redis: what the level here is above what was left of the seed. */
  const tellSpent = async ({ admission, levels, at }: Seed): Promise<void> => {
    const agoMs = clock.monotonic() - at;
    const costs: Record<string, number> = {};
    for (const [meter, { level, limit, windowMs }] of levelsHere(admission.bucket)) {
      const leftOfSeed = Math.max(0, (levels.get(meter) ?? 0) - (agoMs * limit) / windowMs);
      if (level > leftOfSeed) costs[meter] = level - leftOfSeed;
    }
    if (Object.keys(costs).length === 0) return;
    const call = { ...admission, ...ofSeeds, order: null };
    // All shares together may be a little more than there is room for now, and calls that left meanwhile may hold some of
    // it for a moment: what fits is told at once, by halves, the rest when there is room.
    const until = clock.monotonic() + spendForMs;
    let untold = 1;
    let part = 1;
    for (let tries = 0; untold > smallestPart && clock.monotonic() < until; tries += 1) {
      part = Math.min(part, untold);
      const ticket = `seed.${admission.ticket}.${tries}`;
      if (await remote.spend({ ...call, ticket, costs: times(costs, part) })) untold -= part;
      else if (part > smallestPart) part /= 2;
      else {
        await new Promise<void>((resolve) => {
          clock.after(spendAgainMs, resolve);
        });
      }
    }
  };

  const enterLocally = async (
    admission: Admission,
    order = remote.placeAt(admission.urgency, clock.monotonic()),
  ): Promise<AdmissionReply> => {
    const ticket: LocalTicket = { admission: { ...admission, order }, waiting: true, held: null };
    tickets.set(admission.ticket, ticket);
    await seed(admission);
    // Its caller may have left meanwhile, or Redis may be back.
    if (tickets.get(admission.ticket) !== ticket) return { kind: 'queued', forecastMs: 0, ahead: 0 };
    const reply = await local.admit({ ...admission, setting: shared(admission) });
    if (reply.kind === 'refused') tickets.delete(admission.ticket);
    if (reply.kind !== 'granted') return reply;
    if (tickets.get(admission.ticket) !== ticket) {
      localLeases.set(reply.grant, local);
      await settleLocally(reply.grant, { kind: 'dropped' }, null);
      return { kind: 'queued', forecastMs: 0, ahead: 0 };
    }
    onLocalGrant(reply.grant, local);
    return { kind: 'queued', forecastMs: 0, ahead: 0 };
  };

  const settleLocally = async (
    grant: Grant,
    settlement: Settlement,
    lesson: Lesson | null,
  ): Promise<void> => {
    const store = localLeases.get(grant) ?? local;
    localLeases.delete(grant);
    const ticket = tickets.get(grant.ticket);
    const goesBack =
      settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);
    // What the upstream tells of its meters is everybody's, not this replica's share; its refusal counts here.
    const heard = lesson === null ? null : { ...lesson, feedback: { ...lesson.feedback, meters: [] } };
    if (!goesBack || ticket === undefined) {
      tickets.delete(grant.ticket);
      return store.settle(grant, ticket === undefined ? alone(settlement) : settlement, heard);
    }
    ticket.admission = withCosts(ticket.admission, settlement);
    if (!link.isUp && store === local) {
      ticket.waiting = true;
      return store.settle(grant, settlement, heard);
    }
    tickets.delete(grant.ticket);
    await store.settle(grant, alone(settlement), heard);
    if (link.isUp) remote.reenter(ticket.admission);
    else await enterLocally(ticket.admission);
  };

  const moveAway = (): void => {
    awaySince = clock.monotonic();
    telemetry.limiterMode(whenDown);
    if (isWhole) {
      seeds = new Map();
      background(local.close());
      local = beginAlone();
    }
    isWhole = false;
    if (whenDown === 'deny') return;
    for (const admission of remote.takeWaiting()) background(enterLocally(admission));
  };

  const moveBack = async (): Promise<void> => {
    await dependencies.beforeResume();
    if (!link.isUp || closed) return;
    isWhole = true;
    telemetry.limiterMode('redis');
    for (const kept of seeds.values()) background(tellSpent(kept));
    remote.resume(whenDown === 'local' || clock.monotonic() - awaySince > shortMs);
    const waiting = [...tickets.values()]
      .filter(({ waiting: waits, held }) => waits || held !== null)
      .sort((a, b) => (a.admission.order ?? 0) - (b.admission.order ?? 0));
    for (const { admission, held } of waiting) {
      tickets.delete(admission.ticket);
      if (held === null) background(local.cancel(admission.bucket, admission.ticket));
      else background(takeBack(held));
      remote.reenter(admission);
    }
    remote.forgetMoved();
  };

  const takeBack = ({ grant, cancel }: NonNullable<LocalTicket['held']>): Promise<void> => {
    cancel();
    return settleLocally(grant, { kind: 'dropped' }, null);
  };

  const leave = async (bucket: BucketKey, id: string): Promise<void> => {
    const ticket = tickets.get(id);
    if (ticket === undefined) return remote.cancel(bucket, id);
    tickets.delete(id);
    if (ticket.waiting) return local.cancel(bucket, id);
    if (ticket.held !== null) await takeBack(ticket.held);
  };

  link.watch({ onAway: moveAway, onBack: () => background(moveBack()) });

  const isLocal = (grant: Grant): boolean => localLeases.has(grant);

  return {
    async admit(admission): Promise<AdmissionReply> {
      const order = admission.order ?? remote.placeAt(admission.urgency, clock.monotonic());
      const isLate = link.isUp;
      if (isLate) {
        try {
          return await remote.admit(admission);
        } catch (failure) {
          if (!(failure instanceof RedisAway)) throw failure;
        }
      }
      if (whenDown === 'deny' || closed) {
        return { kind: 'refused', reason: 'limiter_unavailable', retryInMs: retryAwayMs };
      }
      if (!isLate) return enterLocally(admission, order);
      // It was tried with Redis: it stands at its arrival, before those who came to this store directly.
      const reply = await enterLocally({ ...admission, order }, order);
      if (reply.kind !== 'queued' || reply.forecastMs <= admission.maxWaitMs) return reply;
      await leave(admission.bucket, admission.ticket);
      return { kind: 'refused', reason: 'wait_too_long', retryInMs: reply.forecastMs };
    },

    settle: (grant, settlement, lesson) =>
      isLocal(grant) ? settleLocally(grant, settlement, lesson) : remote.settle(grant, settlement, lesson),

    learn: async (grant, lesson) => (isLocal(grant) ? undefined : remote.learn(grant, lesson)),

    charged: (grant, places, nextPlaceMs) =>
      (localLeases.get(grant) ?? remote).charged(grant, places, nextPlaceMs),

    cancel: leave,

    forecast: (bucket, ticket) => (tickets.has(ticket) ? local : remote).forecast(bucket, ticket),

    snapshot() {
      const byKey = new Map(remote.snapshot().map((one) => [one.bucket, one]));
      if (link.isUp && tickets.size === 0) return [...byKey.values()];
      for (const one of local.snapshot()) {
        const shared_ = byKey.get(one.bucket);
        const waiting = one.waiting + (shared_?.waiting ?? 0);
        byKey.set(one.bucket, { ...(link.isUp && shared_ !== undefined ? shared_ : one), waiting });
      }
      return [...byKey.values()];
    },

    async close() {
      closed = true;
      for (const { held } of tickets.values()) held?.cancel();
      await local.close();
      await remote.close();
    },
  };
}

/** Costs without a call: granted at once or not at all, in a lane and class of their own. */
const ofSeeds = { lane: 'seed', callClass: 'seed', maxInFlight: null, maxWaitMs: 0, weight: 1 } as const;

/** The same for a call that does not wait here any more. */
function alone(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}
