/**
 * The one way to Redis: runs a command with a limit on every wait, repeats it with the same ids while that may help, and
 * knows whether Redis is available, and why not.
 *
 * Owns: repetition (a command that runs twice must be idempotent by id), the switch to "unavailable" within `patienceMs`
 * of the first failure, the way back, counting. Does not own: what the replica does meanwhile (`failover`).
 * Invariant: a failure never counts as a permission. An error reply that this file does not know (a key of another type, a
 * script that fails) and a reply that cannot be read are logged as a bug and count as no reply at once, because sending
 * again is no help.
 */
import type { Clock } from '../clock.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import type { RedisClient, RedisConnection } from './connection.ts';
import { MalformedReply } from './scripts.ts';
import { redisTrouble, troubleOf, type RedisTrouble } from './trouble.policy.ts';

/** Time without any success after which Redis counts as unavailable. One more command may still be under way then. */
const patienceMs = 500;
const pauseMs = 40;
const probeMs = 150;
/** How long Redis is left alone after a permanent error, which a probe does not see. */
const cooldownMs = 30_000;
/** Each wrong reply may be one call of a client: the log names one in so many milliseconds. */
const wrongReplyEveryMs = 30_000;

const unknownTrouble = troubleOf('unknown');
const failed = Symbol('failed');

export interface AvailabilityWatcher {
  readonly onUnavailable: () => void;
  readonly onAvailable: () => void;
}

export interface HealthParts {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  /** An attempt that takes longer was kept waiting by this process, not by Redis. Milliseconds. */
  readonly commandTimeoutMs: number;
  /**
   * True when a permanent error makes Redis unavailable for all commands of the replica, not only for the one that failed. A
   * replica that counts calls itself meanwhile (`whenDown: local`) needs that, because it has to count all of them; one that
   * refuses calls meanwhile (`deny`) refuses only the call of the failed command.
   */
  readonly tripsOnPermanentError: boolean;
  /** Runs before Redis counts as available again: sees that it can be used, and does the writing that shows it. */
  readonly check: () => Promise<void>;
  /** Awaited when commands get through again, before the watchers hear of it. Never rejects. */
  readonly beforeResume?: () => Promise<unknown>;
}

export class RedisHealth {
  readonly #parts: HealthParts;
  readonly #watchers = new Set<AvailabilityWatcher>();
  /** When a wrong reply was last logged, monotonic milliseconds. */
  #wrongAt = -Infinity;
  /** `resuming`: commands get through again, and the watchers have not heard of it yet. */
  #state: 'up' | 'down' | 'resuming' | 'closed' = 'up';
  #failingSince: number | null = null;
  /** How much of that time this process itself was stalled. Milliseconds. */
  #stalledMs = 0;
  #cancelProbe = (): void => {};
  #latestTrouble = unknownTrouble;

  constructor(parts: HealthParts) {
    this.#parts = parts;
  }

  get isUp(): boolean {
    return this.#state === 'up';
  }

  get #takesCommands(): boolean {
    return this.#state === 'up' || this.#state === 'resuming';
  }

  /**
   * Sends until one attempt succeeds. `null` = Redis did not carry out the command in time, or is unavailable; the command may have run,
   * or may run yet. `send` is called for each attempt and reads the reply, too: an attempt whose reply is a `MalformedReply` has failed.
   * `once`: it is sent once only.
   */
  async run<T>(
    command: RedisCommand,
    send: (client: RedisClient) => Promise<T>,
    { once = false }: { readonly once?: boolean } = {},
  ): Promise<T | null> {
    const { clock } = this.#parts;
    let since: number | null = null;
    for (let attempts = 1; this.#takesCommands; attempts += 1) {
      since ??= clock.monotonic();
      const done = await this.#attempt(command, send);
      if (done !== failed) return done;
      const now = clock.monotonic();
      // One key's shard may fail while others answer: this command's own time counts as well.
      const failingMs = now - Math.min(this.#failingSince ?? since, since) - this.#stalledMs;
      // A first attempt may have failed because this process was kept from running: the reply was there.
      if (failingMs >= (attempts === 1 ? 2 * patienceMs : patienceMs)) this.#goDown(probeMs);
      else if (once) break;
      else await new Promise<void>((resolve) => void clock.after(pauseMs, resolve));
    }
    return null;
  }

  /** A connection or a command failed, or the server answers but cannot be used (`RedisUnusable`). */
  note(failure: unknown): void {
    this.#latestTrouble = redisTrouble(failure) ?? this.#latestTrouble;
  }

  /** Why Redis is unavailable; `null` while it is available. */
  trouble(): RedisTrouble | null {
    return this.#state === 'down' ? this.#latestTrouble : null;
  }

  /** Calls the watcher at both switches, in the turn of the event loop in which they happen. Returns the function that ends that. */
  watch(watcher: AvailabilityWatcher): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** The first contact has failed. */
  startsAway(): void {
    this.#goDown(probeMs);
  }

  close(): void {
    this.#state = 'closed';
    this.#cancelProbe();
  }

  /** `failed`: another attempt may help. */
  async #attempt<T>(
    command: RedisCommand,
    send: (client: RedisClient) => Promise<T>,
  ): Promise<T | null | typeof failed> {
    const { connection, clock, telemetry, commandTimeoutMs, tripsOnPermanentError } = this.#parts;
    const sentAt = clock.monotonic();
    try {
      const value = await send(connection.client);
      telemetry.redisCommand(command, clock.monotonic() - sentAt);
      this.#noteSuccess();
      return value;
    } catch (failure) {
      telemetry.count('sluice_redis_errors_total', { kind: kindOf(failure) });
      this.note(failure);
      if (isPermanent(failure)) {
        this.#reportWrong(command, failure);
        if (tripsOnPermanentError) this.#goDown(cooldownMs);
        return null;
      }
      this.#failingSince ??= sentAt;
      this.#stalledMs = Math.max(this.#stalledMs, clock.monotonic() - sentAt - commandTimeoutMs);
      return failed;
    }
  }

  #reportWrong(command: RedisCommand, failure: unknown): void {
    const now = this.#parts.clock.monotonic();
    if (now - this.#wrongAt < wrongReplyEveryMs) return;
    this.#wrongAt = now;
    this.#parts.telemetry.log.bug('Redis answered a command wrongly', failure, { command });
  }

  #noteSuccess(): void {
    this.#failingSince = null;
    this.#stalledMs = 0;
    if (this.#takesCommands) this.#latestTrouble = unknownTrouble;
  }

  #goDown(probeInMs: number): void {
    if (!this.#takesCommands) return;
    const wasUp = this.isUp;
    this.#state = 'down';
    const { reason, advice } = this.#latestTrouble;
    this.#parts.telemetry.log.warn('Redis is away', { reason, advice });
    if (wasUp) for (const watcher of this.#watchers) watcher.onUnavailable();
    this.#probeIn(probeInMs);
  }

  #probeIn(ms: number): void {
    const { clock, connection, check, telemetry } = this.#parts;
    this.#cancelProbe = clock.after(ms, () => {
      if (!connection.isReady()) return this.#probeIn(probeMs);
      check().then(
        () => void this.#goUp(),
        (failure: unknown) => {
          telemetry.count('sluice_redis_errors_total', { kind: kindOf(failure) });
          this.note(failure);
          if (this.#state === 'closed') return;
          if (isPermanent(failure)) this.#reportWrong('other', failure);
          this.#probeIn(probeMs);
        },
      );
    });
  }

  async #goUp(): Promise<void> {
    if (this.#state === 'closed') return;
    this.#state = 'resuming';
    this.#noteSuccess();
    this.#parts.telemetry.log.info('Redis is back');
    await this.#parts.beforeResume?.();
    // It may have gone again meanwhile.
    if (this.#state !== 'resuming') return;
    this.#state = 'up';
    for (const watcher of this.#watchers) watcher.onAvailable();
  }
}

// What a failed command says: which kind of failure it is, and whether sending the command again may help

/** Replies that say "not now": the same command may succeed in a moment. */
const transient =
  /^(READONLY|LOADING|BUSY|NOREPLICAS|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|OOM|MOVED|ASK|NOAUTH|WRONGPASS|NOPERM|MISCONF|UNBLOCKED|ERR Too many Cluster)/;

export function kindOf(failure: unknown): RedisErrorKind {
  if (isErrorReply(failure) || failure instanceof MalformedReply) return 'reply';
  const message = failure instanceof Error ? failure.message : '';
  if (/timed? ?out/i.test(message)) return 'timeout';
  if (/writeable|closed|ECONN|EPIPE|ENOTFOUND|Socket|retries|Cluster|AbortError|aborted/i.test(message)) {
    return 'connection';
  }
  return 'other';
}

/** Redis itself answered with an error. */
const isErrorReply = (failure: unknown): failure is Error =>
  failure instanceof Error && failure.name === 'ReplyError';

/** True when the command would fail in the same way if it were sent again. */
const isPermanent = (failure: unknown): boolean =>
  failure instanceof MalformedReply || (isErrorReply(failure) && !transient.test(failure.message));
