/**
 * Tells why Redis is away: once when it leaves, once more for each further reason of the same absence, and for as long as it
 * lasts to whoever asks. Owns: which failure counts as the reason. Refuses to own: when Redis counts as away (`health.ts`).
 */
import type { Log } from '../../../telemetry/events.ts';
import { RedisUnusable } from './redis-unusable.ts';
import { redisTrouble, troubleOf, type RedisTrouble } from './trouble.policy.ts';

export interface RedisTroubles {
  /** A connection or a command failed, or the server answers but cannot be used (`RedisUnusable`). */
  note(failure: unknown): void;
  /** A command was answered: earlier failures explain nothing any more. */
  answered(): void;
  /** Redis counts as away from now on. */
  unavailable(): void;
  back(): void;
  /** Why Redis is away; `null` while it is not. */
  now(): RedisTrouble | null;
}

export function createRedisTroubles(
  log: Pick<Log, 'info' | 'warn'>,
  options: { readonly tls: boolean },
): RedisTroubles {
  let latest: RedisTrouble | null = null;
  /** Reasons reported in this outage; `null` = Redis is available. */
  let reported: Set<string> | null = null;

  const report = (message: string, { reason, advice }: RedisTrouble): void => {
    reported?.add(reason);
    log.warn(message, { reason, advice });
  };
  const take = (trouble: RedisTrouble): void => {
    latest = trouble;
    if (reported !== null && !reported.has(trouble.reason)) report('Redis is still away', trouble);
  };

  return {
    note(failure) {
      const trouble = failure instanceof RedisUnusable ? failure.trouble : redisTrouble(failure, options);
      if (trouble !== null) take(trouble);
    },
    answered() {
      if (reported === null) latest = null;
    },
    unavailable() {
      reported = new Set();
      report('Redis is away', latest ?? troubleOf('unknown'));
    },
    back() {
      reported = null;
      latest = null;
      log.info('Redis is back');
    },
    now: () => (reported === null ? null : (latest ?? troubleOf('unknown'))),
  };
}
