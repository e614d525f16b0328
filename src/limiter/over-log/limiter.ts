/**
 * The limiter over logs: one log for each upstream credential in use, each with a shard here.
 *
 * Owns: which log a bucket is in, when a log is joined and left. Does not own: what happens in one (`shard.ts`).
 */
import type { CancelTimer, Clock } from '../../clock.ts';
import {
  type BucketKey,
  type CeilingKey,
  type LaneKey,
  type LogKey,
  logOf,
  replicaId,
  type TicketId,
  isBackground,
  type CallerKey,
} from '../../ids.ts';
import type { Log } from '../../log/log.ts';
import { MemoryLog } from '../../log/memory-log.ts';
import {
  type Admission,
  type AdmissionReply,
  type BucketSnapshot,
  type CallerNow,
  type CeilingEdge,
  defaultLeaseMs,
  type Grant,
  type KeptSlots,
  type LaneCeiling,
  type Lesson,
  type LimiterListener,
  type Reconfiguration,
  type Reserved,
  type Reserving,
  type Settlement,
  type WaitForecast,
  type MeterSnapshot,
} from '../limiter.ts';
import { type Bucket, closedMs, maxInFlightOf } from '../policy/bucket-state.policy.ts';
import { forecast, forecastFirst } from '../policy/forecast.policy.ts';
import { ceilingOf } from '../policy/lanes.policy.ts';
import { Shard, type ShardParts } from './shard.ts';
import { type LogEvent, reservedIn } from './fold.ts';
import { levelAt } from '../policy/meter.policy.ts';
import { dueReservations } from '../policy/reservations.policy.ts';

/** A log that nobody has used for so long is left, if it is kept elsewhere; its next call joins it in one round trip. Milliseconds. */
const idleMs = 60_000;

export interface SharedLimiterParts extends Omit<ShardParts, 'log'> {
  readonly openLog: (key: LogKey) => Log<LogEvent>;
  /** False: a log that is left is gone. It is left when it has forgotten its last bucket. Default true. */
  readonly isKeptElsewhere?: boolean;
}

/** What the rest of the gateway asks of the limiter. */
export type Limiter = Pick<SharedLimiter, keyof SharedLimiter>;

export class SharedLimiter {
  readonly #parts: SharedLimiterParts;
  readonly #shards = new Map<LogKey, Shard>();
  /** The buckets that this replica has used, while it follows their logs. */
  readonly #buckets = new Set<BucketKey>();
  #cancelSweep: CancelTimer | null = null;
  #isClosed = false;

  constructor(parts: SharedLimiterParts) {
    this.#parts = parts;
  }

  /** Enters the ticket into its lane. A ticket is entered once. */
  admit(admission: Admission): Promise<AdmissionReply> {
    return this.#of(admission.bucket).admit(admission);
  }

  /** The call was refused: its client will come back. `null` = nothing is kept for it. */
  reserve(admission: Admission, reserving: Reserving): Promise<Reserved | null> {
    return this.#of(admission.bucket).reserve(admission, reserving);
  }

  /** Ends a lease, once; late or repeated settlements are ignored. */
  async settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    await this.#known(grant.bucket)?.settle(grant, settlement, lesson);
  }

  /** Learns from a response whose call is still in flight (streams). */
  async learn(grant: Grant, lesson: Lesson): Promise<void> {
    await this.#known(grant.bucket)?.learn(grant, lesson);
  }

  /**
   * The granted call took a slot of a ceiling that is nearly used; `null` = it is not nearly used any more. Reported only
   * at the edge and when leaving it, so that no later call slips into the last slot before an earlier one.
   */
  async slotTaken(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    await this.#known(grant.bucket)?.slotTaken(grant, edge);
  }

  /** Configuration changed: waiting calls of these lanes go on under the new settings at once. Unknown lanes are passed over. */
  async reconfigure(change: Reconfiguration): Promise<void> {
    await this.#known(change.bucket)?.reconfigure(change);
  }

  /** A slot of the lane's ceiling is back: calls of the lane that wait for one ask again. An unknown lane is passed over. */
  async wake(bucket: BucketKey, lane: LaneKey): Promise<void> {
    await this.#known(bucket)?.wake(bucket, lane);
  }

  /**
   * Reopens what a response closed up to `agoMs` milliseconds ago. Also where this replica has not used the bucket yet: another one may
   * have closed it.
   */
  async open(bucket: BucketKey, agoMs: number): Promise<void> {
    await this.#of(bucket).open(bucket, agoMs);
  }

  /**
   * Moves a ticket that waits in the bucket `from` to the bucket of `admission`, with the position that it had in `from`; the
   * ticket is never refused there. A grant of `from` that is under way is returned.
   */
  async move(from: BucketKey, admission: Admission): Promise<void> {
    const position = this.#known(from)?.withdraw(from, admission.ticket) ?? null;
    // Orders of two logs, whose times may differ, do not compare: in another log the call stands by its arrival.
    const isKept = position !== null && logOf(from) === logOf(admission.bucket);
    this.#of(admission.bucket).reenter(isKept ? { ...admission, position } : admission);
  }

  /** A waiting ticket leaves. */
  async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    await this.#known(bucket)?.cancel(bucket, ticket);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelSweep?.();
    await Promise.all(this.#shards.values().map((shard) => shard.close()));
  }

  // What this replica knows

  /** How many reservations of a ceiling are kept. */
  reserved(ceiling: CeilingKey): number {
    let count = 0;
    for (const { copy } of this.#shards.values()) count += reservedIn(copy.state, ceiling, copy.log.now());
    return count;
  }

  /** The callers of a lane that have calls there now; calls that name none are left out. */
  callers(key: BucketKey, laneKey: LaneKey): readonly CallerNow[] {
    const callers = new Map<CallerKey, { caller: CallerKey; waiting: number; inFlight: number }>();
    this.#look(key, ({ tickets }) => {
      for (const { caller, lane, lease } of tickets.values()) {
        if (caller === undefined || lane !== laneKey) continue;
        const counted = callers.get(caller) ?? { caller, waiting: 0, inFlight: 0 };
        counted[lease === null ? 'waiting' : 'inFlight'] += 1;
        callers.set(caller, counted);
      }
    });
    return [...callers.values()];
  }

  /**
   * What the call has to leave of its ceiling; `null` = nothing. A call that came back for a reservation leaves nothing, and in its own
   * bucket the reservations of later calls do not concern it.
   */
  keptSlots(own: BucketKey, ceiling: CeilingKey, ticketId: TicketId): KeptSlots | null {
    const copy = this.#known(own)?.copy;
    if (copy === undefined || copy.state.reserving.size === 0) return null;
    const { buckets, reserving } = copy.state;
    const now = copy.log.now();
    const ticket = buckets.get(own)?.tickets.get(ticketId);
    if (ticket?.reservation !== undefined) return null;
    let count = 0;
    let until = Infinity;
    for (const key of reserving) {
      const bucket = buckets.get(key);
      for (const kept of bucket === undefined ? [] : dueReservations(bucket, now + freeBeforeMs)) {
        if (kept.ceiling !== ceiling || (key === own && ticket !== undefined && kept.order > ticket.order))
          continue;
        if (isBackground(kept.lane) && ticket !== undefined && !isBackground(ticket.lane)) continue;
        count += 1;
        // Somebody who has come back for it leaves soon.
        until = Math.min(until, kept.ticket === null ? kept.until : now + askAgainMs);
      }
    }
    return count === 0 ? null : { count, forMs: Math.max(1, until - now) };
  }

  /**
   * Current expected wait of a ticket that already waits; `null` if it does not wait. `serviceMs`: how long calls are known to take, beside
   * what those of the bucket have taken.
   */
  async forecast(key: BucketKey, ticket: TicketId, serviceMs = 0): Promise<WaitForecast | null> {
    return this.#look(key, (bucket, now) => forecast(bucket, ticket, now, serviceMs));
  }

  /** Whether a response of the bucket has stated how many requests its upstream allows, or how many cost points. */
  statesLimit(key: BucketKey): boolean {
    const isStated = ({ meters }: Bucket): boolean =>
      meters
        .values()
        .some(({ name, reported }) => reported !== null && (name.startsWith('requests') || name === 'cost'));
    return this.#look(key, isStated) ?? false;
  }

  /**
   * What holds the first waiting ticket of a lane for longest: for how long it is held, milliseconds, about, and why. `null` = none
   * waits.
   */
  forecastFirst(key: BucketKey, lane: LaneKey): Omit<WaitForecast, 'ahead'> | null {
    return this.#look(key, (bucket, now) => forecastFirst(bucket, lane, now));
  }

  /** What replicas have reported of the ceiling of a lane; `null` = it has many slots. */
  laneCeiling(key: BucketKey, lane: LaneKey): LaneCeiling | null {
    return this.#look(key, ({ lanes }, now) => {
      const known = lanes.get(lane);
      return known === undefined ? null : ceilingOf(known, now);
    });
  }

  /** State of the buckets this replica has touched. What waits and what is in flight are calls of this replica. */
  snapshot(): readonly BucketSnapshot[] {
    return [...this.#shards.values()].flatMap((shard) => {
      const { state, log } = shard.copy;
      const own = shard.counts();
      return [...state.buckets].flatMap(([key, bucket]) => {
        const counts = own.get(key) ?? { waiting: 0, inFlight: 0 };
        return this.#buckets.has(key) ? { ...snapshotOf(key, bucket, log.now()), ...counts } : [];
      });
    });
  }

  #look<T>(key: BucketKey, at: (bucket: Bucket, now: number) => T): T | null {
    const { state, log } = this.#known(key)?.copy ?? {};
    const bucket = state?.buckets.get(key);
    return bucket === undefined || log === undefined ? null : at(bucket, log.now());
  }

  #known(bucket: BucketKey): Shard | undefined {
    return this.#shards.get(logOf(bucket));
  }

  #of(bucket: BucketKey): Shard {
    this.#sweepLater();
    this.#buckets.add(bucket);
    const key = logOf(bucket);
    let shard = this.#shards.get(key);
    if (shard === undefined) {
      shard = new Shard({ ...this.#parts, log: this.#parts.openLog(key) });
      this.#shards.set(key, shard);
      shard.begin();
    }
    return shard;
  }

  #sweepLater(): void {
    if (!this.#isClosed) this.#cancelSweep ??= this.#parts.clock.after(idleMs, () => this.#sweep());
  }

  /** Leaves logs that nobody uses, and forgets buckets that they have forgotten. */
  #sweep(): void {
    this.#cancelSweep = null;
    const { clock, isKeptElsewhere = true, onFailure } = this.#parts;
    const since = clock.monotonic() - idleMs;
    for (const [key, shard] of this.#shards) {
      const { unusedSince, copy } = shard;
      if (unusedSince === null || unusedSince > since) continue;
      // Time has gone on: what is of no use any more is forgotten.
      if (!isKeptElsewhere) copy.say({ kind: 'tick' });
      if (!isKeptElsewhere && copy.state.buckets.size > 0) continue;
      this.#shards.delete(key);
      shard.close().catch(onFailure);
    }
    for (const bucket of this.#buckets)
      if (this.#look(bucket, () => true) === null) this.#buckets.delete(bucket);
    if (this.#shards.size > 0) this.#sweepLater();
  }
}

// The limiter of one process: the same, over logs in memory that nobody else follows

const replica = replicaId('embedded');

/** Without `onFailure`, a failure of the scheduler is thrown. */
export type EmbeddedLimiterOptions = Partial<Pick<SharedLimiterParts, 'onLeaseLost' | 'onFailure'>> & {
  /** How long a lease lives, milliseconds. */
  readonly leaseMs?: number | undefined;
};

export const createEmbeddedLimiter = (
  clock: Clock,
  listener: LimiterListener,
  { leaseMs = defaultLeaseMs, onFailure = fail, onLeaseLost = () => {} }: EmbeddedLimiterOptions = {},
): SharedLimiter =>
  new SharedLimiter({
    clock,
    listener,
    leaseMs,
    replica,
    onFailure,
    replicas: () => 1,
    openLog: () => new MemoryLog<LogEvent>({ clock, replica }),
    isKeptElsewhere: false,
    // What follows is for a log that may be away, or that others follow.
    guard: null,
    whenDown: () => 'deny',
    restoreSends: () => Promise.resolve(),
    onLeaseLost,
  });

function fail(failure: unknown): never {
  throw failure;
}

/** Meters of which no limit is known are left out. */
const snapshotOf = (
  key: BucketKey,
  bucket: Bucket,
  now: number,
): Omit<BucketSnapshot, 'waiting' | 'inFlight'> => ({
  bucket: key,
  closedMs: closedMs(bucket, now),
  reserved: bucket.reservations.size,
  maxInFlightTotal: maxInFlightOf(bucket, now),
  meters: [...bucket.meters.values()].flatMap((meter): MeterSnapshot[] => {
    const { name, limit, windowMs, log, reported } = meter;
    if (limit === null) return [];
    const shown = { meter: name, limit, level: levelAt(meter, now), windowMs, isReported: reported !== null };
    return [log === null ? shown : { ...shown, counts: log.counts }];
  }),
});

/** Slots of those who are about to leave are asked for again after so long. Milliseconds. */
const askAgainMs = 1_000;
/** A slot comes free earlier than its time is told, by the way of the refusal through the log: it is left free from then on. Milliseconds. */
const freeBeforeMs = 250;
