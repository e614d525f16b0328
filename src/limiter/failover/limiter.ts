/**
 * The limiter that a replica uses: Redis while it is available, else what the operator chose. `local`: this replica goes on
 * alone with its share of every limit. `deny`: arriving calls are refused, waiting calls wait on.
 *
 * Owns: which store a call is in, moving waiting calls over and back with their positions, the mode that metrics show.
 * Does not own: noticing that Redis is unavailable (`health.ts`), calls that are served here (`local-calls.ts`).
 * Invariants: no call is let through unseen; no waiting call is lost in a switch; a capped lane waits one lease length after
 * each switch behind which calls of the other store may still be under way. Beyond that `local` cannot keep replicas from
 * overlapping: each such grant is counted (`unavailable`).
 */
import type { Clock } from '../../clock.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import { Background } from '../redis/background.ts';
import type {
  Admission,
  AdmissionReply,
  BucketKey,
  BucketSnapshot,
  CeilingEdge,
  Grant,
  LaneKey,
  Lesson,
  Limiter,
  LimiterListener,
  Reconfiguration,
  Settlement,
  WaitForecast,
  TicketId,
} from '../limiter.ts';
import { LocalCalls } from './local-calls.ts';
import type { RedisHealth } from '../../redis/health.ts';
import type { BucketSessions } from '../redis/bucket-sessions.ts';
import type { Positioned } from '../redis/replica-calls.ts';
import { UnreportedUsage } from './unreported-usage.ts';
import { retryUnavailableMs, type WhenDown } from './when-down.ts';

/**
 * An absence of Redis shorter than this part of a lease needs no pause of capped lanes afterwards: the leases in Redis are still
 * alive, and no replica has sent a call of a capped lane without Redis: each waits one lease before it does, and all replicas
 * notice an absence within less time than the rest of a lease.
 */
const shortPart = 2 / 3;

/** Where waiting calls are. */
type Phase =
  | { readonly kind: 'redis' }
  /**
   * `since`: when the absence began, monotonic milliseconds; a short return of Redis does not end it. The phase lasts until
   * waiting calls go back to Redis, which may have been available for a moment by then.
   */
  | { readonly kind: 'unavailable'; readonly since: number }
  | { readonly kind: 'closed' };

export interface FailoverLimiterParts {
  readonly redis: RedisHealth;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly whenDown: WhenDown;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  readonly replicas: () => number;
  /** Builds the Redis side; `onStranded` takes tickets that go back to their lane while Redis is unavailable. */
  readonly createRemote: (onStranded: (admission: Positioned) => boolean) => BucketSessions;
  /** Awaited before waiting calls go back to Redis. */
  readonly beforeResume: () => Promise<unknown>;
}

export class FailoverLimiter implements Limiter {
  readonly remote: BucketSessions;
  readonly #parts: FailoverLimiterParts;
  readonly #local: LocalCalls;
  readonly #background: Background;
  #phase: Phase = { kind: 'redis' };

  constructor(parts: FailoverLimiterParts) {
    const { redis, clock, replicas, telemetry, listener, leaseMs } = parts;
    const background = new Background(telemetry.log);
    this.#parts = parts;
    this.#background = background;
    this.remote = parts.createRemote((admission) => this.#takeStranded(admission));
    const usage = new UnreportedUsage({ remote: this.remote, clock, replicas });
    this.#local = new LocalCalls({ clock, telemetry, listener, replicas, usage, leaseMs, background });
    redis.watch({
      onUnavailable: () => this.#failOver(),
      onAvailable: () => {
        this.remote.beginRecovery();
        background.run(this.#failBack());
      },
    });
  }

  async admit(asked: Admission): Promise<AdmissionReply> {
    const { redis, whenDown } = this.#parts;
    let admission = asked;
    if (redis.isUp) {
      const reply = await this.remote.of(admission.bucket).entry.admit(admission);
      if (reply.kind !== 'unavailable') return reply;
      ({ admission } = reply);
    }
    if (whenDown === 'deny' || this.#phase.kind === 'closed') {
      return { kind: 'refused', reason: 'limiter_unavailable', retryInMs: retryUnavailableMs };
    }
    // The call's arrival is converted to Redis' clock: the calls that waited in Redis have positions on that clock.
    const reply = await this.#local.enter(this.remote.positions.withPosition(admission));
    const refusal = admission.position.kind === 'kept' ? null : localRefusalOf(admission, reply);
    if (refusal === null) return reply;
    await this.cancel(admission.bucket, admission.ticket);
    return refusal;
  }

  async settle(grant: Grant, settlement: Settlement, lesson: Lesson | null): Promise<void> {
    if (!this.#local.hasGranted(grant))
      return this.remote.known(grant.bucket)?.settle(grant.lease, settlement, lesson);
    const { redis } = this.#parts;
    const homeless = await this.#local.settle(grant, { settlement, lesson }, redis.isUp);
    if (homeless === null) return;
    if (redis.isUp) this.remote.reenter(homeless);
    else await this.#local.enter(homeless);
  }

  async learn(grant: Grant, lesson: Lesson): Promise<void> {
    if (!this.#local.hasGranted(grant)) await this.remote.known(grant.bucket)?.learn(grant.lease, lesson);
  }

  async charged(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    if (this.#local.hasGranted(grant)) return this.#local.charged(grant, edge);
    await this.remote.known(grant.bucket)?.charged(grant.lease, edge);
  }

  async reconfigure(change: Reconfiguration): Promise<void> {
    const session = this.remote.known(change.bucket);
    await Promise.all([session?.reconfigure(change), this.#local.reconfigure(change)]);
  }

  async wake(bucket: BucketKey, lane: LaneKey): Promise<void> {
    await Promise.all([this.remote.known(bucket)?.wake(lane), this.#local.wake(bucket, lane)]);
  }

  /**
   * `before` is a time on Redis' clock, which means nothing to the local store: that one opens whatever is closed now. Redis opens
   * the bucket also where this replica has not used it yet: another one may have closed it.
   */
  async open(bucket: BucketKey, before: number | null): Promise<void> {
    await Promise.all([this.remote.of(bucket).open(before), this.#local.open(bucket)]);
  }

  async move(from: BucketKey, admission: Admission): Promise<void> {
    const { ticket } = admission;
    if (!this.#local.hasTicket(ticket)) return this.remote.move(from, admission);
    const position = this.#local.positionOf(ticket);
    await this.#local.cancel(from, ticket);
    const arrived = this.remote.positions.withPosition(admission);
    await this.#local.enter(position === null ? arrived : { ...admission, position });
  }

  async cancel(bucket: BucketKey, ticket: TicketId): Promise<void> {
    if (this.#local.hasTicket(ticket)) await this.#local.cancel(bucket, ticket);
    else this.remote.known(bucket)?.entry.cancel(ticket);
  }

  async forecast(bucket: BucketKey, ticket: TicketId): Promise<WaitForecast | null> {
    if (this.#local.hasTicket(ticket)) return this.#local.forecast(bucket, ticket);
    return (await this.remote.known(bucket)?.forecast(ticket)) ?? null;
  }

  snapshot(): readonly BucketSnapshot[] {
    const { isUp } = this.#parts.redis;
    const byKey = new Map(this.remote.snapshot().map((one) => [one.bucket, one]));
    if (isUp && this.#local.isEmpty) return [...byKey.values()];
    for (const local of this.#local.snapshot()) {
      const known = byKey.get(local.bucket);
      const waiting = local.waiting + (known?.waiting ?? 0);
      byKey.set(local.bucket, { ...(isUp && known !== undefined ? known : local), waiting });
    }
    return [...byKey.values()];
  }

  async close(): Promise<void> {
    this.#phase = { kind: 'closed' };
    await this.#local.close();
    await this.remote.close();
  }

  /** Redis became unavailable. */
  #failOver(): void {
    const { clock, telemetry, whenDown } = this.#parts;
    telemetry.limiterMode(whenDown);
    this.#local.begin(this.#phase.kind === 'redis');
    const since = this.#phase.kind === 'unavailable' ? this.#phase.since : clock.monotonic();
    this.#phase = { kind: 'unavailable', since };
    if (whenDown === 'deny') return;
    for (const admission of this.remote.takeWaiting()) this.#background.run(this.#local.enter(admission));
  }

  /** Redis is available again: usage is reported, then every waiting call goes back, in order. */
  async #failBack(): Promise<void> {
    const { redis, clock, telemetry, leaseMs, beforeResume } = this.#parts;
    await beforeResume();
    if (!redis.isUp || this.#phase.kind !== 'unavailable') return;
    const absentMs = clock.monotonic() - this.#phase.since;
    this.#phase = { kind: 'redis' };
    telemetry.limiterMode('redis');
    for (const reporting of this.#local.reportUsage()) this.#background.run(reporting);
    this.remote.resume(absentMs > shortPart * leaseMs);
    for (const admission of this.#local.takeWaiting()) this.remote.reenter(admission);
    this.remote.cancelDeferred();
  }

  /** A ticket that should go back to its lane in Redis while Redis is unavailable waits in the local store: true = it does. */
  #takeStranded(admission: Positioned): boolean {
    const { redis, whenDown } = this.#parts;
    if (whenDown === 'deny' || redis.isUp) return false;
    this.#background.run(this.#local.enter(admission));
    return true;
  }
}

/** The refusal of an arriving call that the local store queued, where its lane is full or its wait too long; `null` = it may wait. */
function localRefusalOf({ maxQueued, maxWaitMs }: Admission, reply: AdmissionReply): AdmissionReply | null {
  if (reply.kind !== 'queued') return null;
  const { ahead, forecastMs: retryInMs, heldBy } = reply;
  if (ahead >= maxQueued && (ahead > 0 || retryInMs > 0)) {
    return { kind: 'refused', reason: 'queue_full', heldBy: 'queue', retryInMs, ahead };
  }
  if (retryInMs <= maxWaitMs) return null;
  return { kind: 'refused', reason: 'wait_too_long', heldBy, retryInMs, ahead };
}
