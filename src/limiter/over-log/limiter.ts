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
} from '../limiter.ts';
import { Shard, type ShardParts } from './shard.ts';
import type { LogEvent } from './state.ts';

/** A log that nobody has used for so long is left, if it is kept elsewhere; its next call joins it in one round trip. Milliseconds. */
const defaultIdleMs = 60_000;

export interface SharedLimiterParts extends Omit<ShardParts, 'log'> {
  readonly openLog: (key: LogKey) => Log<LogEvent>;
  /** As {@link defaultIdleMs}. */
  readonly idleMs?: number;
  /**
   * False: a log that is left is gone. It is left when it has forgotten its last bucket, and only while others are used: until then it
   * costs nothing. Default true.
   */
  readonly isKeptElsewhere?: boolean;
}

/** What the rest of the gateway asks of the limiter. */
export type Limiter = Pick<SharedLimiter, keyof SharedLimiter>;

export class SharedLimiter {
  readonly #parts: SharedLimiterParts;
  readonly #idleMs: number;
  readonly #shards = new Map<LogKey, Shard>();
  /** The buckets that this replica has used, while it follows their logs. */
  readonly #buckets = new Set<BucketKey>();
  #cancelSweep: CancelTimer | null = null;
  /** Monotonic milliseconds. */
  #sweptAt: number;
  #isClosed = false;

  constructor(parts: SharedLimiterParts) {
    this.#parts = parts;
    this.#idleMs = parts.idleMs ?? defaultIdleMs;
    this.#sweptAt = parts.clock.monotonic();
  }

  /** Enters the ticket into its lane. Idempotent by ticket. */
  admit(admission: Admission): Promise<AdmissionReply> {
    return this.#of(admission.bucket).admit(admission);
  }

  /** The call was refused: its client will come back. `null` = nothing is kept for it. */
  reserve(admission: Admission, reserving: Reserving): Promise<Reserved | null> {
    return this.#of(admission.bucket).reserve(admission, reserving);
  }

  /** How many reservations of a ceiling are kept, as far as this replica knows. */
  reserved(ceiling: CeilingKey): number {
    let count = 0;
    for (const shard of this.#shards.values()) count += shard.reserved(ceiling);
    return count;
  }

  /** The callers of a lane that have calls there now, as far as this replica knows. */
  callers(bucket: BucketKey, lane: LaneKey): readonly CallerNow[] {
    return this.#known(bucket)?.callers(bucket, lane) ?? [];
  }

  /** What the call has to leave of its ceiling; `null` = nothing. A call that came back for a reservation leaves nothing. */
  keptSlots(bucket: BucketKey, ceiling: CeilingKey, ticket: TicketId): KeptSlots | null {
    return this.#known(bucket)?.keptSlots(bucket, ceiling, ticket) ?? null;
  }

  /** Ends a lease, once; late or repeated settlements are ignored. */
  settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    return this.#known(grant.bucket)?.settle(grant, settlement, lesson) ?? Promise.resolve();
  }

  /** Learns from a response whose call is still in flight (streams). */
  learn(grant: Grant, lesson: Lesson): Promise<void> {
    return this.#known(grant.bucket)?.learn(grant, lesson) ?? Promise.resolve();
  }

  /**
   * The granted call took a slot of a ceiling that is nearly used; `null` = it is not nearly used any more. Reported only
   * at the edge and when leaving it, so that no later call slips into the last slot before an earlier one.
   */
  slotTaken(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    return this.#known(grant.bucket)?.slotTaken(grant, edge) ?? Promise.resolve();
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
    const position = this.#known(from)?.take(from, admission.ticket) ?? null;
    // Orders of two logs, whose times may differ, do not compare: in another log the call stands by its arrival.
    const isKept = position !== null && logOf(from) === logOf(admission.bucket);
    this.#of(admission.bucket).reenter(isKept ? { ...admission, position } : admission);
  }

  /** A waiting ticket leaves. */
  async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    await this.#known(bucket)?.cancel(bucket, ticket);
  }

  /**
   * Current expected wait of a ticket that already waits; `null` if it does not wait. `serviceMs`: how long calls are known to take, beside
   * what those of the bucket have taken.
   */
  async forecast(bucket: BucketKey, ticket: TicketId, serviceMs = 0): Promise<WaitForecast | null> {
    return this.#known(bucket)?.forecast(bucket, ticket, serviceMs) ?? null;
  }

  /** Whether a response of the bucket has stated how many requests its upstream allows, or how many cost points. */
  statesLimit(bucket: BucketKey): boolean {
    return this.#known(bucket)?.statesLimit(bucket) ?? false;
  }

  /**
   * What holds the first waiting ticket of a lane for longest, from what this replica knows: for how long it is held, milliseconds, about,
   * and why. `null` = none waits.
   */
  forecastFirst(bucket: BucketKey, lane: LaneKey): Omit<WaitForecast, 'ahead'> | null {
    return this.#known(bucket)?.forecastFirst(bucket, lane) ?? null;
  }

  /** What replicas have reported of the ceiling of a lane, as far as this one has heard; `null` = it has many slots. */
  laneCeiling(bucket: BucketKey, lane: LaneKey): LaneCeiling | null {
    return this.#known(bucket)?.laneCeiling(bucket, lane) ?? null;
  }

  /** State of the buckets this replica has touched, for gauges and activity. */
  snapshot(): readonly BucketSnapshot[] {
    return [...this.#shards.values()].flatMap((shard) => shard.snapshot(this.#buckets));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelSweep?.();
    await Promise.all([...this.#shards.values()].map((shard) => shard.close()));
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
    const { clock, isKeptElsewhere = true } = this.#parts;
    if (this.#isClosed) return;
    if (isKeptElsewhere) this.#cancelSweep ??= clock.after(this.#idleMs, () => this.#sweep());
    else if (clock.monotonic() - this.#sweptAt > this.#idleMs) this.#sweep();
  }

  /** Leaves logs that nobody uses, and forgets buckets that they have forgotten. */
  #sweep(): void {
    this.#cancelSweep = null;
    const { clock, isKeptElsewhere = true } = this.#parts;
    this.#sweptAt = clock.monotonic();
    const since = this.#sweptAt - this.#idleMs;
    for (const [key, shard] of this.#shards) {
      const { unusedSince } = shard;
      if (unusedSince === null || unusedSince > since) continue;
      if (!isKeptElsewhere) shard.tick();
      if (!isKeptElsewhere && !shard.isEmpty) continue;
      this.#shards.delete(key);
      shard.close().catch(this.#parts.onFailure);
    }
    for (const bucket of this.#buckets) {
      if (this.#known(bucket)?.hasBucket(bucket) !== true) this.#buckets.delete(bucket);
    }
    if (isKeptElsewhere && this.#shards.size > 0) this.#sweepLater();
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
