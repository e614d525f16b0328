/**
 * Says in the log that Redis answers wrongly: at once for the first reply to a command, then once per `intervalMs` with
 * how many more there were. Each such reply may be one call of a client; the log is no place to count them.
 */
import type { Clock } from '../clock.ts';
import type { Log, RedisCommand } from '../telemetry/events.ts';

const intervalMs = 30_000;

export interface WrongReplies {
  report(command: RedisCommand, failure: unknown): void;
  close(): void;
}

export function createWrongReplies(clock: Clock, log: Pick<Log, 'bug'>): WrongReplies {
  const unreported = new Map<RedisCommand, { count: number; failure: unknown; cancel: () => void }>();

  const watch = (command: RedisCommand): void => {
    const cancel = clock.after(intervalMs, () => {
      const { count, failure } = unreported.get(command) ?? { count: 0, failure: null };
      unreported.delete(command);
      if (count === 0) return;
      log.bug('Redis went on answering a command wrongly', failure, { command, count });
      watch(command);
    });
    unreported.set(command, { count: 0, failure: null, cancel });
  };

  return {
    report(command, failure) {
      const known = unreported.get(command);
      if (known === undefined) {
        log.bug('Redis answered a command wrongly', failure, { command });
        return watch(command);
      }
      known.count += 1;
      known.failure = failure;
    },
    close() {
      for (const { cancel } of unreported.values()) cancel();
      unreported.clear();
    },
  };
}
