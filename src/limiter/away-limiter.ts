/**
 * The limiter that a replica uses: Redis while it is there, else what the operator chose. `local`: this replica goes on
 * alone with its share of every limit. `deny`: newcomers are refused, waiting calls wait on.
 *
 * Owns: which store a call is in, moving waiting calls over and back with their places, the mode that metrics show.
 * Refuses to own: noticing that Redis is away (`redis-link.ts`), shares of buckets and what is sent from them
 * (`spent-alone.ts`), shares of ceilings (`redis-ceilings.ts`).
 * Keeps: no call is let through unseen; no waiting call is lost in a switch; a capped lane waits one lease length after
 * each switch, because calls of the other store may still be under way. Beyond that `local` cannot keep replicas from
 * overlapping: each such grant is counted (`unavailable`).
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import {
  grantUnderWay,
  type Admission,
  type AdmissionReply,
  type BucketKey,
  type Grant,
  type Lesson,
  type Limiter,
  type LimiterListener,
  type Settlement,
} from './limiter.ts';
import { createMemoryLimiter } from './memory-limiter.ts';
import type { Positioned } from './redis-asking.ts';
import type { RedisLimiter } from './redis-limiter.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import { createSpentAlone } from './spent-alone.ts';

const retryAwayMs = 1_000;
/** Absences shorter than this leave the leases in Redis alive. */
const shortMs = 10_000;

interface LocalTicket {
  admission: Positioned;
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
  readonly remote: (onStranded: (admission: Positioned) => boolean) => RedisLimiter;
  /** Awaited before waiting calls go back to Redis. */
  readonly beforeResume: () => Promise<void>;
}): Limiter {
  const { link, clock, telemetry, listener, whenDown, replicas } = dependencies;
  const tickets = new Map<string, LocalTicket>();
  /** Grants of this store, each with the absence (its limiter) that it belongs to. */
  const localLeases = new Map<Grant, Limiter>();
  let awaySince = -Infinity;
  /** Everything is on Redis: the last absence was ended, not only interrupted. */
  let isWhole = true;
  let closed = false;

  const remote = dependencies.remote((admission) => {
    if (whenDown === 'deny' || link.isUp) return false;
    background(enterLocally(admission));
    return true;
  });

  const spent = createSpentAlone({ remote, clock, replicas });

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

  const enterLocally = async (admission: Positioned): Promise<AdmissionReply> => {
    const ticket: LocalTicket = { admission, waiting: true, held: null };
    tickets.set(admission.ticket, ticket);
    await spent.seed(local, admission, awaySince);
    // Its caller may have left meanwhile, or Redis may be back.
    if (tickets.get(admission.ticket) !== ticket) return grantUnderWay;
    const reply = await local.admit({ ...admission, setting: spent.shared(admission) });
    if (reply.kind === 'refused') tickets.delete(admission.ticket);
    if (reply.kind !== 'granted') return reply;
    if (tickets.get(admission.ticket) !== ticket) {
      localLeases.set(reply.grant, local);
      await settleLocally(reply.grant, { kind: 'dropped' }, null);
      return grantUnderWay;
    }
    onLocalGrant(reply.grant, local);
    return grantUnderWay;
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
    for (const telling of spent.tell(local)) background(telling);
    remote.resume(whenDown === 'local' || clock.monotonic() - awaySince > shortMs);
    const waiting = [...tickets.values()]
      .filter(({ waiting: waits, held }) => waits || held !== null)
      .sort((a, b) => a.admission.position.order - b.admission.position.order);
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

  const withPosition = (admission: Admission): Positioned => {
    const { position, urgency } = admission;
    if (position.kind === 'kept') return { ...admission, position };
    return { ...admission, position: { kind: 'kept', order: remote.orderAt(urgency, position.at) } };
  };

  link.watch({ onAway: moveAway, onBack: () => background(moveBack()) });

  const isLocal = (grant: Grant): boolean => localLeases.has(grant);

  return {
    async admit(admission): Promise<AdmissionReply> {
      if (link.isUp) {
        try {
          return await remote.admit(admission);
        } catch (failure) {
          if (!(failure instanceof RedisAway)) throw failure;
        }
      }
      if (whenDown === 'deny' || closed) {
        return { kind: 'refused', reason: 'limiter_unavailable', retryInMs: retryAwayMs };
      }
      // It stands at its arrival, among those that waited in Redis, whose positions are times of Redis' clock.
      const reply = await enterLocally(withPosition(admission));
      const refusal = admission.position.kind === 'kept' ? null : refusalOf(admission, reply);
      if (refusal === null) return reply;
      await leave(admission.bucket, admission.ticket);
      return refusal;
    },

    settle: (grant, settlement, lesson) =>
      isLocal(grant) ? settleLocally(grant, settlement, lesson) : remote.settle(grant, settlement, lesson),

    learn: async (grant, lesson) => (isLocal(grant) ? undefined : remote.learn(grant, lesson)),

    charged: (grant, edge) => (localLeases.get(grant) ?? remote).charged(grant, edge),

    async reconfigure(change) {
      const lanes = new Map(change.lanes.map((lane) => [lane.lane, lane]));
      for (const ticket of tickets.values()) {
        const lane = lanes.get(ticket.admission.lane);
        if (ticket.admission.bucket !== change.bucket || lane === undefined) continue;
        ticket.admission = { ...ticket.admission, ...lane, setting: change.setting };
      }
      const setting = spent.shared(change);
      await Promise.all([remote.reconfigure(change), local.reconfigure({ ...change, setting })]);
    },

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

/** The same for a call that does not wait here any more. */
function alone(settlement: Settlement): Settlement {
  if (settlement.kind === 'returned') return { kind: 'dropped' };
  return settlement.kind === 'throttled' ? { ...settlement, requeue: false } : settlement;
}

/** Why a newcomer that stands like this is refused all the same; `null` = it is not. */
function refusalOf({ maxQueued, maxWaitMs }: Admission, reply: AdmissionReply): AdmissionReply | null {
  if (reply.kind !== 'queued') return null;
  const { ahead, forecastMs: retryInMs, heldBy } = reply;
  if (ahead >= maxQueued && (ahead > 0 || retryInMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', heldBy: 'queue', retryInMs, ahead };
  }
  if (retryInMs <= maxWaitMs) return null;
  return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs, ahead };
}
