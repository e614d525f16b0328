/**
 * `apply` on Redis in TypeScript: `apply.policy.ts` and what a store adds to it (time that never steps back, grants kept
 * until their replica names them, messages to other replicas, who pumps next). The parity property holds it to the Lua
 * bit for bit; the simulation of several replicas uses it as its Redis.
 */
import { bucketKey, leaseToken, replicaId } from '../../src/ids.ts';
import { apply, type BatchResult } from '../../src/limiter/policy/apply.policy.ts';
import type { BucketEvent, EventKind, EventReply } from '../../src/limiter/policy/bucket-events.ts';
import { closedMs, createBucket, type Bucket } from '../../src/limiter/policy/bucket-state.policy.ts';
import { leasesPerTick } from '../../src/limiter/redis/protocol/event-codec.ts';
import { maxPerPump, type Effects, type Granted } from '../../src/limiter/policy/pump.policy.ts';
import type { BatchReply, BucketReply } from '../../src/limiter/redis/protocol/reply-codec.ts';
import type { ReplicaMessage, GrantReply } from '../../src/limiter/redis/protocol/message-codec.ts';

/** A message and the replica it goes to. */
export type Sent = ReplicaMessage & { readonly replica: string };

/** Who asks, and the store's clock, which may step back. Milliseconds. */
export interface Asked {
  readonly replica: string;
  readonly clock: number;
}

/** What became of one event, for whoever judges it: `null` = it was left out. */
export interface Done {
  readonly event: BucketEvent;
  readonly reply: EventReply;
  readonly grants: readonly Granted[];
}

export class ScriptModel {
  readonly key: string;
  /** Hears everything that is published, in order. */
  readonly #publish: (message: Sent) => void;
  /** `null`: the store does not know the bucket. */
  bucket: Bucket | null = null;
  createdAt = 0;
  seen = 0;
  /** Leases no event of their replica has named yet, with that replica. */
  unnamed = new Map<string, string>();
  /** Who pumps next, and when. */
  #promise: { readonly replica: string; readonly at: number } | null = null;
  /** What the last run did, event by event, and what the last event did. */
  done: readonly Done[] = [];
  effects: Effects = { grants: [], nextAt: null };

  constructor(key: string, publish: (message: Sent) => void) {
    this.key = key;
    this.#publish = publish;
  }

  /** Everything is lost, or has expired. */
  lose(): void {
    this.bucket = null;
  }

  /** `watch` hears of each event as soon as it is applied. */
  apply(
    events: readonly BucketEvent[],
    { replica, clock }: Asked,
    watch: (done: Done) => void = () => {},
  ): BatchReply {
    const run = { grants: [] as Granted[], nextAt: null as number | null, pumped: false, closes: false };
    const done: Done[] = [];
    let unnamed = 0;
    for (const event of events) {
      if (run.grants.length >= maxPerPump) break;
      if (this.bucket === null && event.kind === 'admit') this.#create(event.admission.setting.probe, clock);
      const applied = this.bucket === null ? null : this.#one(this.bucket, event, replica, clock);
      const reply = applied?.replies[0] ?? (event.kind === 'admit' ? null : replyUnknown(event.kind));
      if (reply === null) throw new Error('an admission without a reply');
      done.push({ event, reply, grants: applied?.grants ?? [] });
      this.done = done;
      if (applied !== null) {
        run.grants.push(...applied.grants);
        if (applied.pumped) run.nextAt = applied.nextAt;
        run.pumped ||= applied.pumped;
        run.closes ||= applied.closes;
        if (event.kind === 'tick') unnamed = this.#unnamedOf(replica).length;
        if (applied.pumped) this.effects = applied;
      }
      watch({ event, reply, grants: applied?.grants ?? [] });
    }
    const replies = done.map(({ reply }) => reply);
    if (this.bucket === null) return { bucket: nothing(clock), replies };
    const now = this.#now(clock);
    const own = this.#report(this.bucket, run, { replica, now }, done);
    return { bucket: { ...own, unnamed }, replies };
  }

  #create(probe: number, clock: number): void {
    this.bucket = createBucket(probe, clock);
    this.createdAt = clock;
    this.seen = clock;
    this.unnamed = new Map();
    this.#promise = null;
  }

  #one(bucket: Bucket, event: BucketEvent, replica: string, clock: number): BatchResult {
    const applied = apply(bucket, { replica: replicaId(replica), events: [event] }, this.#now(clock));
    for (const token of applied.named) this.unnamed.delete(token);
    for (const granted of applied.grants) this.unnamed.set(granted.lease, granted.replica);
    for (const token of this.unnamed.keys())
      if (!bucket.leases.has(leaseToken(token))) this.unnamed.delete(token);
    return applied;
  }

  #unnamedOf(replica: string): string[] {
    return [...this.unnamed].filter(([, of]) => of === replica).map(([token]) => token);
  }

  /** Time as the bucket sees it. */
  #now(clock: number): number {
    this.seen = Math.max(this.seen, clock);
    return this.seen;
  }

  /** What every reply carries, and what goes to others. */
  #report(
    bucket: Bucket,
    run: { readonly grants: readonly Granted[]; readonly nextAt: number | null; readonly closes: boolean },
    { replica, now }: { readonly replica: string; readonly now: number },
    done: readonly Done[],
  ): Omit<BucketReply, 'unnamed'> {
    const inReplies = new Set(done.flatMap(({ reply }) => (reply.kind === 'granted' ? [reply.lease] : [])));
    const others = new Map<string, GrantReply[]>();
    const grants: GrantReply[] = [];
    for (const { ticket, lane, lease, replica: of, expiresAt } of run.grants) {
      const grant = { ticket, lane, lease, expiresAt };
      if (of !== replica) others.set(of, [...(others.get(of) ?? []), grant]);
      else if (!inReplies.has(lease)) grants.push(grant);
    }
    for (const [of, granted] of others) {
      this.#publish({
        replica: of,
        kind: 'grants',
        bucket: bucketKey(this.key),
        createdAt: this.createdAt,
        grants: granted,
      });
    }
    if (done.some(({ event }) => event.kind === 'tick')) {
      const fresh = new Set(run.grants.map(({ lease }) => lease));
      const first = this.#unnamedOf(replica).toSorted().slice(0, leasesPerTick);
      const older = first.filter(
        (token) => !fresh.has(leaseToken(token)) && !inReplies.has(leaseToken(token)),
      );
      grants.push(...older.map((token) => this.#grantOf(bucket, token)));
    }
    if (run.closes) this.#reportClosed(replica, closedMs(bucket, now));
    return {
      now,
      nextInMs: run.nextAt === null ? null : run.nextAt - now,
      closedMs: closedMs(bucket, now),
      createdAt: this.createdAt,
      isPumpLeader: this.#isPumpLeader(bucket, replica, run, now),
      grants,
    };
  }

  /** One replica promises to pump; kept unless it is late by more than 30 ms or another time comes 2 ms before it. */
  #isPumpLeader(
    bucket: Bucket,
    replica: string,
    { nextAt, pumped }: { readonly nextAt: number | null; readonly pumped?: boolean },
    now: number,
  ): boolean {
    if (bucket.waiting === 0 || (pumped === true && nextAt === null)) this.#promise = null;
    if (nextAt === null || bucket.waiting === 0) return false;
    const kept = this.#promise;
    if (kept !== null && kept.replica !== replica && kept.at <= nextAt + 2 && kept.at + 30 >= now)
      return false;
    this.#promise = { replica, at: nextAt };
    return true;
  }

  #reportClosed(caller: string, forMs: number): void {
    const tickets = [...(this.bucket?.tickets.values() ?? [])];
    for (const replica of this.bucket?.replicas.names().toReversed() ?? []) {
      if (replica === caller) continue;
      if (!tickets.some((ticket) => ticket.replica === replica && ticket.lease === null)) continue;
      this.#publish({ replica, kind: 'closed', bucket: bucketKey(this.key), closedMs: forMs });
    }
  }

  #grantOf(bucket: Bucket, token: string): GrantReply {
    const lease = bucket.leases.get(leaseToken(token));
    if (lease === undefined) throw new Error('an unnamed grant without a lease');
    return {
      ticket: lease.ticket.id,
      lane: lease.ticket.lane,
      lease: leaseToken(token),
      expiresAt: lease.expiresAt,
    };
  }
}

/** The store does not know the bucket. */
const nothing = (now: number): BucketReply => ({
  now,
  nextInMs: null,
  closedMs: 0,
  createdAt: null,
  grants: [],
  isPumpLeader: false,
  unnamed: 0,
});

/** What a store answers for a bucket that it does not know; an `admit` creates it. */
function replyUnknown(kind: Exclude<EventKind, 'admit'>): EventReply {
  switch (kind) {
    case 'settle':
    case 'learn':
    case 'charge':
      return { kind: 'lease', known: false };
    case 'cancel':
      return { kind: 'cancel' };
    case 'forecast':
      return { kind: 'forecast', forecast: null };
    case 'tick':
      return { kind: 'tick', waitingHere: 0, meters: [], missing: [] };
    case 'reconfigure':
      return { kind: 'reconfigure' };
    case 'wake':
      return { kind: 'wake' };
    case 'open':
      return { kind: 'open' };
  }
}
