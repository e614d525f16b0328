/**
 * One replica's session with one bucket in Redis. It consists of a queue of events, a view (what Redis last said), the calls, the
 * entry of tickets, the reading of replies, and ticks; each of these knows only those named before it.
 *
 * Owns: building these, leases as callers see them, settings, readings. Does not own: which lane is next (the scripts).
 */
import type { Costs } from '../../call.ts';
import { BucketCalls } from './bucket-calls.ts';
import { BucketEntry } from './bucket-entry.ts';
import { BucketReplies } from './bucket-replies.ts';
import { BucketTicks } from './bucket-ticks.ts';
import { BucketView } from './bucket-view.ts';
import { EventQueue } from './event-queue.ts';
import type {
  Admission,
  BucketKey,
  BucketSetting,
  BucketSnapshot,
  CeilingEdge,
  LeaseToken,
  LaneKey,
  Lesson,
  MeterSnapshot,
  Reconfiguration,
  Settlement,
  WaitForecast,
  TicketId,
} from '../limiter.ts';
import type { Found } from './replica.ts';
import type { ReplicaContext } from './replica-context.ts';

/** Meters of a bucket in use are read so often at least. Milliseconds; as often as the live page takes a sample. */
const readEveryMs = 2_000;
/** Lanes that one event reconfigures at most. */
const lanesPerEvent = 64;

/** A bucket by the last reply of Redis. */
export interface LastReading extends BucketSnapshot {
  /** The operator's setting when the meters were read; `null` = not known. */
  readonly setting: BucketSetting | null;
  /** What this replica's calls took since the meters were read. */
  readonly takenSince: Costs;
}

export class BucketSession {
  readonly key: BucketKey;
  readonly calls: BucketCalls;
  readonly entry: BucketEntry;
  readonly replies: BucketReplies;
  readonly #ticks: BucketTicks;
  readonly #context: ReplicaContext;
  readonly #queue: EventQueue;
  readonly #view: BucketView;

  constructor(key: BucketKey, context: ReplicaContext) {
    const { redis, clock, replica } = context;
    this.key = key;
    this.#context = context;
    const view = new BucketView(clock.monotonic());
    const queue = new EventQueue({
      bucket: key,
      redis,
      clock,
      replica,
      reader: {
        prepare: (...reply) => this.replies.prepare(...reply),
        read: (...reply) => this.replies.read(...reply),
      },
    });
    const calls = new BucketCalls(key, { queue, view }, context);
    const parts = { queue, view, calls, context };
    this.#view = view;
    this.#queue = queue;
    this.calls = calls;
    this.entry = new BucketEntry(parts);
    this.#ticks = new BucketTicks(parts);
    this.replies = new BucketReplies(parts, () => this.pump());
  }

  /** Nothing of this replica is in the bucket. */
  get isIdle(): boolean {
    return this.calls.held.isEmpty;
  }

  /**
   * This replica used the bucket since its meters were read, which is so long ago that gauges should not go on with that reading.
   * Only ticks read meters, and calls shorter than a second are seldom under way at a tick.
   */
  isReadingOld(now: number): boolean {
    const { usedAt, readings } = this.#view;
    const { latest } = readings;
    return latest === null || (usedAt > latest.at && now - latest.at >= readEveryMs);
  }

  /** May be forgotten if nobody used it for this long. */
  isUnusedFor(ms: number, now: number): boolean {
    return this.isIdle && this.calls.held.cancelLater.size === 0 && now - this.#view.usedAt > ms;
  }

  async settle(token: LeaseToken, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    const lease = this.calls.held.leases.get(token);
    const timed = lesson === null ? null : this.#context.positions.timed(lesson);
    if (lease !== undefined) await this.calls.settle(lease, settlement, timed);
  }

  async learn(lease: LeaseToken, lesson: Lesson): Promise<void> {
    if (!this.#isHeld(lease)) return;
    const timed = this.#context.positions.timed(lesson);
    await this.#queue.send<'learn'>({ kind: 'learn', lease, lesson: timed });
  }

  async charged(lease: LeaseToken, edge: CeilingEdge | null): Promise<void> {
    if (this.#isHeld(lease)) await this.#queue.send<'charge'>({ kind: 'charge', lease, edge });
  }

  /**
   * Tickets get the new settings here as well, so that a ticket that has to be entered again brings them; so do arriving calls
   * that are not on their way yet: they go behind the event, and would bring the former settings back.
   */
  async reconfigure({ setting, lanes }: Reconfiguration): Promise<void> {
    const changed = new Map(lanes.map((lane) => [lane.lane, lane]));
    // Also of a lane that is not named: of a workspace that the reload removed. The setting is that of the whole bucket.
    const revised = <Entering extends { readonly lane: LaneKey }>(admission: Entering): Entering => ({
      ...admission,
      ...changed.get(admission.lane),
      setting,
    });
    for (const ticket of this.calls.held.tickets.values()) ticket.admission = revised(ticket.admission);
    this.#queue.revise((event) =>
      event.kind === 'admit' ? { kind: 'admit', admission: revised(event.admission) } : event,
    );
    // Before the event, which lets those behind them go.
    this.calls.kept.releaseUncapped();
    if (!this.#context.redis.isUp) return;
    this.#view.setting = setting;
    for (let from = 0; from < lanes.length; from += lanesPerEvent) {
      const some = lanes.slice(from, from + lanesPerEvent);
      await this.#queue.send<'reconfigure'>({ kind: 'reconfigure', setting, lanes: some });
    }
  }

  async wake(lane: LaneKey): Promise<void> {
    if (this.#context.redis.isUp) await this.#queue.send<'wake'>({ kind: 'wake', lane });
  }

  async open(before: number | null): Promise<void> {
    this.#view.reopen(this.#context.clock.monotonic());
    if (this.#context.redis.isUp) await this.#queue.send<'open'>({ kind: 'open', before });
  }

  async forecast(ticket: TicketId): Promise<WaitForecast | null> {
    const state = this.calls.held.tickets.get(ticket)?.state;
    if (state?.kind !== 'waiting' || !this.#context.redis.isUp) return null;
    const asked = await this.#queue.send<'forecast'>({ kind: 'forecast', ticket });
    return asked.kind === 'applied' ? asked.reply.forecast : null;
  }

  /** Levels as Redis named them last, drained since then; `drainsFrom`: only since that time (`null` = since the reading). */
  snapshot(drainsFrom: number | null = null): BucketSnapshot {
    const now = this.#context.clock.monotonic();
    const { held } = this.calls;
    const { latest } = this.#view.readings;
    return {
      bucket: this.key,
      closedMs: this.#view.closing.msLeft(now),
      waiting: held.countWaiting(),
      inFlight: held.leases.size,
      meters:
        latest === null ? [] : latest.meters.map((meter) => drained(meter, now - (drainsFrom ?? latest.at))),
    };
  }

  /**
   * The bucket as Redis last described it. Its levels drain only from this replica's latest use on: units that drained before may
   * have been used by other replicas since. `null` = Redis did not know the bucket.
   */
  lastReading(): LastReading | null {
    const { createdAt, usedAt, readings } = this.#view;
    if (createdAt === null) return null;
    const { latest, takenSince } = readings;
    return { ...this.snapshot(usedAt), setting: latest?.setting ?? null, takenSince };
  }

  tick(): void {
    this.#context.background.run(this.#ticks.tick());
  }

  pump(): void {
    this.#context.background.run(this.#ticks.pump());
  }

  /** Counts usage that Redis did not see, as one call that is not sent: `admission.costs`. */
  async report(admission: Admission): Promise<'counted' | 'no_room' | 'unavailable'> {
    const entering = this.#context.positions.stored(admission);
    const asked = await this.#queue.send<'admit'>({ kind: 'admit', admission: entering });
    if (asked.kind === 'unavailable') return 'unavailable';
    if (asked.reply.kind !== 'granted') return 'no_room';
    const ended = await this.#queue.send<'settle'>({
      kind: 'settle',
      lease: asked.reply.lease,
      settlement: { kind: 'unknown' },
      lesson: null,
    });
    return ended.kind === 'unavailable' ? 'unavailable' : 'counted';
  }

  /** Redis is available again: enters waiting tickets. */
  reenterWaiting(): void {
    for (const ticket of this.calls.held.waiting()) this.calls.reenter(ticket);
    this.replies.schedulePump();
  }

  /** Does Redis have what this replica has in the bucket? See {@link BucketTicks.check}. */
  check(): Promise<Found | null> {
    return this.#ticks.check();
  }

  /** Redis lost data. */
  doubt(): void {
    this.calls.held.needsResync = true;
  }

  /** The process ends: calls in flight are of unknown fate, nobody waits any more. */
  end(): void {
    this.replies.close();
    const { leases } = this.calls.held;
    for (const { lease, state } of leases.values()) {
      this.#end(lease, { kind: state.kind === 'quarantined' ? 'dropped' : 'unknown' });
    }
    for (const { admission } of this.calls.held.waiting()) this.entry.cancel(admission.ticket);
    this.#queue.flush();
  }

  #end(lease: LeaseToken, settlement: Settlement): void {
    this.#context.background.run(this.settle(lease, settlement, null));
  }

  #isHeld(lease: LeaseToken): boolean {
    return this.#context.redis.isUp && this.calls.held.leases.has(lease);
  }
}

const drained = (meter: MeterSnapshot, sinceMs: number): MeterSnapshot => ({
  ...meter,
  level: Math.max(0, meter.level - (sinceMs * meter.limit) / meter.windowMs),
});
