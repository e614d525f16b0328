/**
 * The scripts of one bucket in TypeScript: `scheduler.policy.ts` and what a store adds to it (time that never steps
 * back, grants kept until their replica names them, messages to other replicas). The parity property holds it to the
 * Lua bit for bit; the simulation of several replicas uses it as its Redis.
 */
import { createBucket, type Bucket } from '../../src/limiter/bucket-state.policy.ts';
import type { Admission, Lesson, Settlement } from '../../src/limiter/limiter.ts';
import { levelAt } from '../../src/limiter/meter.policy.ts';
import * as scheduler from '../../src/limiter/scheduler.policy.ts';
import type { Effects, TimedLesson } from '../../src/limiter/scheduler.policy.ts';
import { leasesPerTick } from '../../src/limiter/script-calls.ts';
import type {
  AdmitReply,
  BucketReply,
  CancelReply,
  ForecastReply,
  LeaseReply,
  ReplicaMessage,
  TickReply,
  ToldGrant,
} from '../../src/limiter/script-replies.ts';

/** A message and the replica it goes to. */
export type Sent = ReplicaMessage & { readonly replica: string };

/** Who asks, and the store's clock, which may step back. Milliseconds. */
export interface Asked {
  readonly replica: string;
  readonly clock: number;
}

const meterNames = ['requests', 'tokens', 'requests_day', 'tokens_day', 'cost', 'images'] as const;

export class ScriptModel {
  readonly key: string;
  /** Told of everything that is published, in order. */
  readonly #publish: (message: Sent) => void;
  /** `null`: the store does not know the bucket. */
  bucket: Bucket | null = null;
  born = 0;
  seen = 0;
  /** Leases no call of their replica has named yet, with that replica. */
  unnamed = new Map<string, string>();
  /** Who pumps next, and when. */
  #promise: { readonly replica: string; readonly at: number } | null = null;
  /** What the last transition did. */
  effects: Effects = { grants: [], nextAt: null };

  constructor(key: string, publish: (message: Sent) => void) {
    this.key = key;
    this.#publish = publish;
  }

  /** Everything is lost, or has expired. */
  lose(): void {
    this.bucket = null;
  }

  admit(admission: Admission, { replica, clock }: Asked): AdmitReply {
    if (this.bucket === null) {
      this.bucket = createBucket();
      this.born = clock;
      this.seen = clock;
      this.unnamed = new Map();
      this.#promise = null;
    }
    const bucket = this.bucket;
    const now = this.#now(clock);
    const { ticket, lane } = admission;
    const result = scheduler.admit(bucket, admission, replica, now);
    const common = this.#tell(result.effects, replica, now, ticket);
    if (result.kind === 'refused') return { ...common, code: result.reason, retryInMs: result.retryInMs };
    const { order, forecastMs, ahead } = result;
    if (result.kind === 'queued') return { ...common, code: 'queued', order, forecastMs, ahead };
    const lease = bucket.tickets.get(ticket)?.lease ?? '';
    const expiresAt = bucket.leases.get(lease)?.expiresAt ?? NaN;
    return { ...common, code: 'granted', order, grant: { ticket, lane, lease, expiresAt } };
  }

  settle(
    token: string,
    settlement: Settlement,
    lesson: Lesson | null,
    { replica, clock }: Asked,
  ): LeaseReply {
    if (this.bucket === null) return { ...nothing(clock), leaseKnown: false };
    const now = this.#now(clock);
    const lease = this.bucket.leases.get(token);
    const held = lease !== undefined && !lease.abandoned;
    const learned = lesson === null ? null : timed(lesson, now);
    const effects = scheduler.settle(this.bucket, token, settlement, learned, now);
    if (held) this.unnamed.delete(token);
    const common = this.#tell(effects, replica, now, null);
    if (held && settlement.kind === 'throttled' && settlement.closeMs > 0) {
      this.#tellClosed(replica, common.closedMs);
    }
    return { ...common, leaseKnown: held };
  }

  learn(token: string, lesson: Lesson, asked: Asked): LeaseReply {
    return this.#named(token, asked, (bucket, now) =>
      scheduler.learn(bucket, token, timed(lesson, now), now),
    );
  }

  charged(token: string, places: number, nextPlaceMs: number, asked: Asked): LeaseReply {
    return this.#named(token, asked, (bucket, now) =>
      scheduler.charged(bucket, token, places, nextPlaceMs, now),
    );
  }

  cancel(ticket: string, { replica, clock }: Asked): CancelReply {
    if (this.bucket === null) return { ...nothing(clock), cancelled: false };
    const cancelled = this.bucket.tickets.get(ticket)?.lease === null;
    const now = this.#now(clock);
    const effects = scheduler.cancel(this.bucket, ticket, now);
    return { ...this.#tell(effects, replica, now, null), cancelled };
  }

  forecast(ticket: string, { clock }: Asked): ForecastReply {
    if (this.bucket === null) return { ...nothing(clock), standing: null };
    const now = this.#now(clock);
    const standing = scheduler.forecast(this.bucket, ticket, now);
    return { ...this.#common(this.bucket, null, now), standing, leads: false, grants: [] };
  }

  tick(renewed: readonly string[], { replica, clock }: Asked): TickReply {
    if (this.bucket === null) {
      return { ...nothing(clock), waitingHere: 0, unnamed: 0, waiting: 0, inFlight: 0, meters: [] };
    }
    const bucket = this.bucket;
    const now = this.#now(clock);
    for (const token of renewed) {
      const lease = bucket.leases.get(token);
      if (lease?.ticket.replica === replica && !lease.abandoned) this.unnamed.delete(token);
    }
    const effects = scheduler.tick(bucket, replica, renewed, now);
    const common = this.#tell(effects, replica, now, null);
    const unnamed = [...this.unnamed].filter(([, of]) => of === replica).map(([token]) => token);
    const fresh = new Set(effects.grants.map((granted) => granted.lease));
    const older = unnamed
      .toSorted()
      .slice(0, leasesPerTick)
      .filter((token) => !fresh.has(token));
    const tickets = [...bucket.tickets.values()];
    return {
      ...common,
      grants: [...common.grants, ...older.map((token) => this.#told(bucket, token))],
      waitingHere: tickets.filter((ticket) => ticket.replica === replica && ticket.lease === null).length,
      unnamed: unnamed.length,
      waiting: tickets.filter((ticket) => ticket.lease === null).length,
      inFlight: bucket.leases.size,
      meters: metersOf(bucket, now),
    };
  }

  #named(
    token: string,
    { replica, clock }: Asked,
    transition: (bucket: Bucket, now: number) => Effects,
  ): LeaseReply {
    if (this.bucket === null) return { ...nothing(clock), leaseKnown: false };
    const leaseKnown = this.bucket.leases.has(token);
    const now = this.#now(clock);
    const effects = transition(this.bucket, now);
    if (leaseKnown) this.unnamed.delete(token);
    return { ...this.#tell(effects, replica, now, null), leaseKnown };
  }

  /** Time as the bucket sees it. */
  #now(clock: number): number {
    this.seen = Math.max(this.seen, clock);
    return this.seen;
  }

  /** What every reply carries, and what goes to others. */
  #tell(effects: Effects, caller: string, now: number, ownTicket: string | null): BucketReply {
    const { bucket } = this;
    if (bucket === null) throw new Error('no bucket');
    this.effects = effects;
    const others = new Map<string, ToldGrant[]>();
    const grants: ToldGrant[] = [];
    for (const { ticket, lane, lease, replica, expiresAt } of effects.grants) {
      this.unnamed.set(lease, replica);
      const told = { ticket, lane, lease, expiresAt };
      if (replica !== caller) others.set(replica, [...(others.get(replica) ?? []), told]);
      else if (ticket !== ownTicket) grants.push(told);
    }
    for (const [replica, told] of others) {
      this.#publish({ replica, kind: 'grants', bucket: this.key, born: this.born, grants: told });
    }
    for (const token of this.unnamed.keys()) if (!bucket.leases.has(token)) this.unnamed.delete(token);
    const leads = this.#leads(bucket, caller, effects.nextAt, now);
    return { ...this.#common(bucket, effects.nextAt, now), grants, leads };
  }

  #common(bucket: Bucket, nextAt: number | null, now: number): Omit<BucketReply, 'grants' | 'leads'> {
    return {
      now,
      nextInMs: nextAt === null ? null : nextAt - now,
      closedMs: Math.max(0, bucket.closedUntil - now),
      born: this.born,
    };
  }

  /** One replica promises to pump; kept unless it is late by more than 30 ms or another time comes 2 ms before it. */
  #leads(bucket: Bucket, replica: string, nextAt: number | null, now: number): boolean {
    if (bucket.waiting === 0 || nextAt === null) this.#promise = null;
    if (nextAt === null || bucket.waiting === 0) return false;
    const kept = this.#promise;
    if (kept !== null && kept.replica !== replica && kept.at <= nextAt + 2 && kept.at + 30 >= now)
      return false;
    this.#promise = { replica, at: nextAt };
    return true;
  }

  #tellClosed(caller: string, closedMs: number): void {
    const tickets = [...(this.bucket?.tickets.values() ?? [])];
    for (const replica of this.bucket?.replicas.names().toReversed() ?? []) {
      if (replica === caller) continue;
      if (!tickets.some((ticket) => ticket.replica === replica && ticket.lease === null)) continue;
      this.#publish({ replica, kind: 'closed', bucket: this.key, closedMs });
    }
  }

  #told(bucket: Bucket, token: string): ToldGrant {
    const lease = bucket.leases.get(token);
    if (lease === undefined) throw new Error('an unnamed grant without a lease');
    return { ticket: lease.ticket.id, lane: lease.ticket.lane, lease: token, expiresAt: lease.expiresAt };
  }
}

/** The store does not know the bucket. */
const nothing = (now: number): BucketReply => ({
  now,
  nextInMs: null,
  closedMs: 0,
  born: null,
  grants: [],
  leads: false,
});

function metersOf(bucket: Bucket, now: number): TickReply['meters'] {
  return meterNames.flatMap((name) => {
    const meter = bucket.meters.get(name);
    if (meter === undefined || meter.limit === null) return [];
    const { limit, windowMs } = meter;
    return [{ meter: name, limit, level: levelAt(meter, now), windowMs }];
  });
}

const timed = (lesson: Lesson, now: number): TimedLesson => ({
  feedback: lesson.feedback,
  sentAt: now - lesson.sentAgoMs,
  headAt: now - lesson.headAgoMs,
});
