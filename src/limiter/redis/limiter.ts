/**
 * The limiter over Redis: one session per bucket, ticks once a second, messages of other replicas.
 *
 * Owns: the sessions and how long they are remembered, what concerns all of them (ticks, recovery, the end). Does not
 * own: what happens in one bucket (`bucket-session.ts`), what happens while Redis is unavailable (`failover`).
 */
import { recoveryGraceMs } from './bucket-view.ts';
import { Background } from './background.ts';
import type { BucketCalls } from './bucket-calls.ts';
import type { Unanswered } from './bucket-entry.ts';
import { BucketSession, type LastReading } from './bucket-session.ts';
import { EndedLeases, type SentSettlement } from './ended-leases.ts';
import type {
  Admission,
  AdmissionReply,
  BucketKey,
  BucketSnapshot,
  CeilingEdge,
  Grant,
  Lesson,
  Limiter,
  Reconfiguration,
  Settlement,
  WaitForecast,
  TicketId,
} from '../limiter.ts';
import type { Positioned } from './replica-calls.ts';
import type { Recovery, ReplicaContext } from './replica-context.ts';
import { ReplicaPositions } from './replica-positions.ts';
import { readMessage } from './protocol/message-codec.ts';

const tickMs = 1_000;
const sessionMemoryMs = 3_600_000;
/** Clients name buckets: of more than this many, those not used for a minute are forgotten. */
const manySessions = 1_000;
const manyMemoryMs = 60_000;

export type RedisLimiterParts = Pick<
  ReplicaContext,
  'redis' | 'replica' | 'clock' | 'telemetry' | 'listener' | 'onStranded' | 'leaseMs'
>;

export class RedisLimiter implements Omit<Limiter, 'admit'> {
  readonly positions: ReplicaPositions;
  readonly #context: ReplicaContext;
  readonly #recovery: Recovery = { resumeAt: null, overlapSince: null };
  readonly #sessions = new Map<BucketKey, BucketSession>();
  #cancelTick = (): void => {};
  #isClosed = false;

  constructor(parts: RedisLimiterParts) {
    this.positions = new ReplicaPositions(parts.clock, parts.replica.storeClock, parts.leaseMs);
    this.#context = {
      ...parts,
      positions: this.positions,
      ended: new EndedLeases(),
      background: new Background(parts.telemetry.log),
      recovery: this.#recovery,
    };
  }

  admit(admission: Admission): Promise<AdmissionReply | Unanswered> {
    return this.#session(admission.bucket).entry.admit(admission);
  }

  async settle({ bucket, lease }: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    await this.#sessions.get(bucket)?.settle(lease, settlement, lesson);
  }

  async learn({ bucket, lease }: Grant, lesson: Lesson): Promise<void> {
    await this.#sessions.get(bucket)?.learn(lease, lesson);
  }

  async charged({ bucket, lease }: Grant, edge: CeilingEdge | null): Promise<void> {
    await this.#sessions.get(bucket)?.charged(lease, edge);
  }

  async reconfigure(change: Reconfiguration): Promise<void> {
    await this.#sessions.get(change.bucket)?.reconfigure(change);
  }

  /** Also where this replica has not used the bucket yet: another one may have closed it. */
  async open(bucket: BucketKey, before: number | null): Promise<void> {
    await this.#session(bucket).open(before);
  }

  async move(from: BucketKey, admission: Admission): Promise<void> {
    const position = this.#sessions.get(from)?.entry.take(admission.ticket) ?? null;
    this.reenter(position === null ? this.positions.withPosition(admission) : { ...admission, position });
  }

  async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    this.#sessions.get(bucket)?.entry.cancel(ticket);
  }

  async forecast(bucket: BucketKey, ticket: TicketId): Promise<WaitForecast | null> {
    return (await this.#sessions.get(bucket)?.forecast(ticket)) ?? null;
  }

  snapshot(): readonly BucketSnapshot[] {
    return [...this.#sessions.values()].map((session) => session.snapshot());
  }

  /** The bucket by the last reply of Redis; `null` = this replica does not know that Redis had it. */
  lastReading(bucket: BucketKey): LastReading | null {
    return this.#sessions.get(bucket)?.lastReading() ?? null;
  }

  /** Enters a ticket that has its position already; Redis never refuses it. */
  reenter(admission: Admission): void {
    this.#session(admission.bucket).entry.reenter(admission);
  }

  /** Hands over every waiting ticket, each with its position; the sessions forget them. */
  takeWaiting(): Positioned[] {
    return [...this.#sessions.values()].flatMap((session) => session.entry.takeWaiting());
  }

  /** Cancels in Redis the tickets that left or were handed over while it was unavailable and do not wait here again. */
  cancelDeferred(): void {
    for (const session of this.#sessions.values()) {
      // The reply to a tick names the tickets that Redis granted meanwhile, so that their grants are returned.
      if (session.entry.cancelDeferred()) session.tick();
    }
  }

  /**
   * Counts usage that Redis did not see, as one call that is not sent: `admission.costs`. `no_room`: nothing was counted.
   */
  report(admission: Admission): Promise<'counted' | 'no_room' | 'unavailable'> {
    return this.#session(admission.bucket).report(admission);
  }

  /**
   * Redis is available again. From this turn of the event loop on nothing is sent for `recoveryGraceMs`: other replicas
   * reconnect later, with tickets that stand before those of this replica, and with usage to report.
   */
  beginRecovery(): void {
    const now = this.#context.clock.monotonic();
    const resumeAt = (this.#context.replica.backAt() ?? now) + recoveryGraceMs;
    this.#recovery.resumeAt = Math.max(this.#recovery.resumeAt ?? resumeAt, resumeAt);
  }

  /**
   * Sends what Redis does not know, enters waiting tickets again. `overlap`: calls may be in flight that Redis does not
   * know of; capped lanes wait one lease.
   */
  resume(overlap: boolean): void {
    const { clock, ended, background } = this.#context;
    const now = clock.monotonic();
    if (overlap) this.#recovery.overlapSince = now;
    for (const sent of ended.takeDeferred(now))
      background.run(this.#callsOf(sent).sendSettlement(sent, null));
    for (const session of this.#sessions.values()) session.reenterWaiting();
    this.#tickAll();
  }

  /** Redis lost data, or may have. */
  onLoss(): void {
    for (const session of this.#sessions.values()) session.doubt();
    this.#tickAll();
  }

  /** Messages may have been missed: asks for them. */
  catchUp(): void {
    this.#tickAll();
  }

  /** A message on this replica's channel. */
  hear(text: string): void {
    const message = readMessage(text);
    this.#session(message.bucket).replies.hear(message);
  }

  start(): void {
    this.#cancelTick = this.#context.clock.after(tickMs, () => {
      this.#tickAll();
      this.#readOld();
      this.#retryRejected();
      this.#context.ended.forgetOld(this.#context.clock.monotonic());
      this.#forgetUnused();
      if (!this.#isClosed) this.start();
    });
  }

  async close(): Promise<void> {
    const { background, redis } = this.#context;
    this.#isClosed = true;
    this.#cancelTick();
    for (const session of this.#sessions.values()) session.end();
    await background.drained(() => redis.isUp);
  }

  #session(bucket: BucketKey): BucketSession {
    let session = this.#sessions.get(bucket);
    if (session === undefined) {
      this.#sessions.set(bucket, (session = new BucketSession(bucket, this.#context)));
    }
    return session;
  }

  #callsOf({ lease }: SentSettlement): BucketCalls {
    return this.#session(lease.bucket).calls;
  }

  #tickAll(): void {
    if (!this.#context.redis.isUp) return;
    for (const session of this.#sessions.values()) if (!session.isIdle) session.tick();
  }

  /** Reads the meters of buckets that had only calls between ticks. */
  #readOld(): void {
    if (!this.#context.redis.isUp) return;
    const now = this.#context.clock.monotonic();
    for (const session of this.#sessions.values())
      if (session.isIdle && session.isReadingOld(now)) session.tick();
  }

  #retryRejected(): void {
    const { redis, ended, clock, background } = this.#context;
    if (!redis.isUp) return;
    for (const sent of ended.takeRejected(clock.monotonic())) {
      background.run(this.#callsOf(sent).retrySettlement(sent));
    }
  }

  #forgetUnused(): void {
    const now = this.#context.clock.monotonic();
    const memoryMs = this.#sessions.size > manySessions ? manyMemoryMs : sessionMemoryMs;
    for (const session of this.#sessions.values()) {
      if (session.isUnusedFor(memoryMs, now)) this.#sessions.delete(session.key);
    }
  }
}
