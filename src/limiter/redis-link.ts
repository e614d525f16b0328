/**
 * The one way to Redis: runs a command with a limit on every wait, repeats it with the same ids while that may help,
 * and knows whether Redis is there or away.
 *
 * Owns: repetition (what runs twice must be idempotent by id), the switch to away within `patienceMs` of the first
 * failure, the way back, counting. Refuses to own: what happens meanwhile (`away-limiter.ts`, `redis-ceilings.ts`).
 * Keeps: an error never counts as a permission. An error reply that nothing here knows (a key of another type, a script
 * that fails) and a reply without sense are logged as a bug and answered like an absence at once: sending again is no
 * help.
 */
import type { Clock } from '../clock.ts';
import type { RedisCommand, RedisErrorKind, Telemetry } from '../telemetry/events.ts';
import { createCommandWindow } from './command-window.ts';
import { MalformedReply } from './malformed-reply.ts';
import type { RedisClient, RedisConnection } from './redis-connection.ts';
import { createWrongReplies } from './wrong-replies.ts';

/** Redis did not carry out the command in time; it may have run, or may still. */
export class RedisAway extends Error {
  constructor() {
    super('Redis is away');
    this.name = 'RedisAway';
  }
}

/** Time without any success after which Redis counts as away. One more command may still be under way then. */
const patienceMs = 500;
const pauseMs = 40;
const probeMs = 150;
/** After a reply that says "wrong", which a probe does not see: doubled while such replies go on. */
const wrongMs = { least: 1_000, most: 30_000 };

/** Replies that say "not now": the same command may succeed in a moment, unlike after those that say "wrong". */
const transient =
  /^(READONLY|LOADING|BUSY|NOREPLICAS|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|OOM|MOVED|ASK|NOAUTH|WRONGPASS|NOPERM|MISCONF|UNBLOCKED|ERR Too many Cluster)/;

export interface RedisLink {
  readonly isUp: boolean;
  /**
   * Sends until one attempt succeeds. Rejects with `RedisAway`, at once while Redis is away. `send` is called for each
   * attempt and reads the reply, too: a `MalformedReply` is none. `onAttempts` tells how many attempts there were.
   */
  run<T>(
    command: RedisCommand,
    send: (client: RedisClient) => Promise<T>,
    options?: {
      readonly once?: boolean;
      readonly onAttempts?: (count: number) => void;
      /** Lane of a newcomer: newcomers wait behind everything else while much is on its way, lanes in turn. */
      readonly lane?: string;
    },
  ): Promise<T>;
  /** Told of both switches, in the turn in which they happen. */
  watch(watcher: { readonly onAway: () => void; readonly onBack: () => void }): void;
  /** Starts with what the first contact showed. */
  start(isUp: boolean): void;
  close(): void;
}

export function createRedisLink(dependencies: {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  /** An attempt that takes longer was kept waiting by this process, not by Redis. Milliseconds. */
  readonly commandTimeoutMs: number;
  /**
   * Whether a reply that says "wrong" makes Redis count as away for everybody. Who refuses calls meanwhile does so for
   * the one command only; who counts them elsewhere has to count all of them there for a while.
   */
  readonly leavesWhenWrong: boolean;
  /** Asked before Redis counts as back: sees that it can be used and does the writing that shows it. */
  readonly check: () => Promise<void>;
}): RedisLink {
  const { connection, clock, telemetry, commandTimeoutMs } = dependencies;
  const watchers: { readonly onAway: () => void; readonly onBack: () => void }[] = [];
  const wrongReplies = createWrongReplies(clock, telemetry.log);
  const window = createCommandWindow();
  let isUp = true;
  let closed = false;
  let failingSince: number | null = null;
  /** Of the time since then, what this process itself was kept from running. */
  let stalledMs = 0;
  let cancelProbe = (): void => {};
  let stayMs = wrongMs.least;
  let backAt = -Infinity;

  const pause = (ms: number): Promise<void> =>
    new Promise((resolve) => {
      clock.after(ms, resolve);
    });

  const attempt = async <T>(
    command: RedisCommand,
    send: (client: RedisClient) => Promise<T>,
  ): Promise<{ readonly value: T } | null> => {
    const sentAt = clock.monotonic();
    let isInTime = true;
    try {
      const value = await send(connection.client);
      telemetry.redisCommand(command, clock.monotonic() - sentAt);
      failingSince = null;
      stalledMs = 0;
      return { value };
    } catch (failure) {
      telemetry.redisError(kindOf(failure));
      if (isWrong(failure)) {
        wrongReplies.tell(command, failure);
        if (dependencies.leavesWhenWrong) leaveAsWrong();
        throw new RedisAway();
      }
      failingSince ??= sentAt;
      stalledMs = Math.max(stalledMs, clock.monotonic() - sentAt - commandTimeoutMs);
      isInTime = false;
      return null;
    } finally {
      window.leave(isInTime);
    }
  };

  const leaveAsWrong = (): void => {
    if (!isUp) return;
    stayMs = clock.monotonic() - backAt > wrongMs.most ? wrongMs.least : Math.min(wrongMs.most, stayMs * 2);
    leave(stayMs);
  };

  const leave = (stay = probeMs): void => {
    if (!isUp || closed) return;
    isUp = false;
    telemetry.log.warn('Redis is away');
    window.dismiss();
    for (const watcher of watchers) watcher.onAway();
    probeLater(stay);
  };

  const probeLater = (ms = probeMs): void => {
    cancelProbe = clock.after(ms, () => {
      if (!connection.isReady()) return probeLater();
      dependencies.check().then(
        () => {
          if (closed) return;
          isUp = true;
          backAt = clock.monotonic();
          failingSince = null;
          stalledMs = 0;
          telemetry.log.info('Redis is back');
          for (const watcher of watchers) watcher.onBack();
        },
        (failure: unknown) => {
          telemetry.redisError(kindOf(failure));
          if (closed) return;
          if (isWrong(failure)) wrongReplies.tell('other', failure);
          probeLater();
        },
      );
    });
  };

  return {
    get isUp() {
      return isUp;
    },
    async run(command, send, { once = false, onAttempts, lane = null } = {}) {
      let since: number | null = null;
      for (let count = 1; isUp && !closed; count += 1) {
        if (!window.tryEnter() && !(await window.wait(lane))) break;
        since ??= clock.monotonic();
        onAttempts?.(count);
        const done = await attempt(command, send);
        if (done !== null) return done.value;
        const now = clock.monotonic();
        // One key's shard may fail while others answer: this command's own time counts as well.
        const failingMs = now - Math.min(failingSince ?? since, since) - stalledMs;
        // A first attempt may have failed because this process was kept from running: the answer was there.
        if (failingMs >= (count === 1 ? 2 * patienceMs : patienceMs)) leave();
        else if (once) break;
        else await pause(pauseMs);
      }
      throw new RedisAway();
    },
    watch: (watcher) => void watchers.push(watcher),
    start(up) {
      if (!up) leave();
    },
    close() {
      closed = true;
      window.dismiss();
      cancelProbe();
      wrongReplies.close();
    },
  };
}

function kindOf(failure: unknown): RedisErrorKind {
  if (isReply(failure) || failure instanceof MalformedReply) return 'reply';
  const message = failure instanceof Error ? failure.message : '';
  if (/timed? ?out/i.test(message)) return 'timeout';
  if (/writeable|closed|ECONN|EPIPE|ENOTFOUND|Socket|retries|Cluster|AbortError|aborted/i.test(message)) {
    return 'connection';
  }
  return 'other';
}

/** Redis itself answered with an error. */
const isReply = (failure: unknown): failure is Error =>
  failure instanceof Error && failure.name === 'ReplyError';

/** An answer that will be the same when asked again. */
const isWrong = (failure: unknown): boolean =>
  failure instanceof MalformedReply || (isReply(failure) && !transient.test(failure.message));
