/**
 * The limiter over Redis is a session per bucket; these are all of them, with their ticks once a second and messages of other
 * replicas.
 *
 * Owns: the sessions and how long they are remembered, what concerns all of them (ticks, recovery, the end). Does not
 * own: what happens in one bucket (`bucket-session.ts`), what happens while Redis is unavailable (`failover`).
 */
import { recoveryGraceMs } from './bucket-view.ts';
import { Background } from './background.ts';
import type { BucketCalls } from './bucket-calls.ts';
import { BucketSession, type LastReading } from './bucket-session.ts';
import { EndedLeases, type SentSettlement } from './ended-leases.ts';
import type { Admission, BucketKey, BucketSnapshot } from '../limiter.ts';
import type { Positioned } from './replica-calls.ts';
import type { Found } from './replica.ts';
import type { Recovery, ReplicaContext } from './replica-context.ts';
import { ReplicaPositions } from './replica-positions.ts';
import { readMessage } from './protocol/message-codec.ts';

const tickMs = 1_000;
const sessionMemoryMs = 3_600_000;
/** Clients name buckets: of more than this many, those not used for a minute are forgotten. */
const manySessions = 1_000;
const manyMemoryMs = 60_000;

export type BucketSessionsParts = Pick<
  ReplicaContext,
  'redis' | 'replica' | 'clock' | 'telemetry' | 'listener' | 'onStranded' | 'leaseMs'
>;

export class BucketSessions {
  readonly positions: ReplicaPositions;
  readonly #context: ReplicaContext;
  readonly #recovery: Recovery = { resumeAt: null, overlapSince: null };
  readonly #sessions = new Map<BucketKey, BucketSession>();
  #cancelTick = (): void => {};
  #isClosed = false;

  constructor(parts: BucketSessionsParts) {
    this.positions = new ReplicaPositions(parts.clock, parts.replica.storeClock, parts.leaseMs);
    this.#context = {
      ...parts,
      positions: this.positions,
      ended: new EndedLeases(),
      background: new Background(parts.telemetry.log),
      recovery: this.#recovery,
    };
  }

  /** The session with this bucket; begins with the first use. */
  of(bucket: BucketKey): BucketSession {
    let session = this.#sessions.get(bucket);
    if (session === undefined) {
      this.#sessions.set(bucket, (session = new BucketSession(bucket, this.#context)));
    }
    return session;
  }

  /** The session with a bucket that this replica has used; `null` = it has not, or long ago. */
  known(bucket: BucketKey): BucketSession | null {
    return this.#sessions.get(bucket) ?? null;
  }

  /** Moves a ticket to the bucket of `admission`, with the position that it had in `from`; it is never refused there. */
  move(from: BucketKey, admission: Admission): void {
    const position = this.#sessions.get(from)?.entry.take(admission.ticket) ?? null;
    this.reenter(position === null ? this.positions.withPosition(admission) : { ...admission, position });
  }

  snapshot(): readonly BucketSnapshot[] {
    return [...this.#sessions.values()].map((session) => session.snapshot());
  }

  /** The bucket by the last reply of Redis; `null` = this replica does not know that Redis had it. */
  lastReading(bucket: BucketKey): LastReading | null {
    return this.known(bucket)?.lastReading() ?? null;
  }

  /** Counts usage that Redis did not see; see {@link BucketSession.report}. */
  report(admission: Admission): ReturnType<BucketSession['report']> {
    return this.of(admission.bucket).report(admission);
  }

  /** Enters a ticket that has its position already; Redis never refuses it. */
  reenter(admission: Admission): void {
    this.of(admission.bucket).entry.reenter(admission);
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

  /** Does Redis have everything that this replica has in it? Enters waiting tickets again. `null` = it is not known. */
  async check(): Promise<Found | null> {
    const inUse = [...this.#sessions.values()].filter(({ isIdle }) => !isIdle);
    const found = await Promise.all(inUse.map((session) => session.check()));
    if (found.includes('missing')) return 'missing';
    return found.includes(null) ? null : 'whole';
  }

  /** Redis lost data. */
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
    this.of(message.bucket).replies.hear(message);
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

  #callsOf({ lease }: SentSettlement): BucketCalls {
    return this.of(lease.bucket).calls;
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
