/**
 * Says in the log that Redis answers wrongly: at once for the first reply to a command, then once per `intervalMs` with
 * how many more there were. Each such reply may be one call of a client; the log is no place to count them.
 */
import type { Clock } from '../../../clock.ts';
import type { Log, RedisCommand } from '../../../telemetry/events.ts';

const intervalMs = 30_000;

export interface WrongReplies {
  tell(command: RedisCommand, failure: unknown): void;
  close(): void;
}

export function createWrongReplies(clock: Clock, log: Pick<Log, 'bug'>): WrongReplies {
  const untold = new Map<RedisCommand, { count: number; failure: unknown; cancel: () => void }>();

  const watch = (command: RedisCommand): void => {
    const cancel = clock.after(intervalMs, () => {
      const { count, failure } = untold.get(command) ?? { count: 0, failure: null };
      untold.delete(command);
      if (count === 0) return;
      log.bug('Redis went on answering a command wrongly', failure, { command, count });
      watch(command);
    });
    untold.set(command, { count: 0, failure: null, cancel });
  };

  return {
    tell(command, failure) {
      const known = untold.get(command);
      if (known === undefined) {
        log.bug('Redis answered a command wrongly', failure, { command });
        return watch(command);
      }
      known.count += 1;
      known.failure = failure;
    },
    close() {
      for (const { cancel } of untold.values()) cancel();
      untold.clear();
    },
  };
}
