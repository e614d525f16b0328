/**
 * Checks a Redis in use once a minute: a setting that makes Redis unusable at the next start may be changed while it runs.
 * Owns: reporting that, once per mistake. Does not stop the use of such a Redis: the data in it are still right.
 */
import type { Clock } from '../../clock.ts';
import type { Log } from '../../telemetry/events.ts';
import type { RedisConnection } from '../../redis/connection.ts';
import { serverFacts } from '../../redis/server-info.policy.ts';

const checkEveryMs = 60_000;

/** Returns the function that stops the checks. */
export function watchServer(
  connection: Pick<RedisConnection, 'info' | 'isReady'>,
  { clock, log }: { readonly clock: Pick<Clock, 'after'>; readonly log: Pick<Log, 'error'> },
): () => void {
  let reported: string | null = null;
  let cancel = (): void => {};
  const check = async (): Promise<void> => {
    const { fault } = serverFacts(await connection.info());
    if (fault !== null && fault.reason !== reported)
      log.error('Redis is set so that it must not be used', { reason: fault.reason, advice: fault.advice });
    reported = fault?.reason ?? null;
  };
  const later = (): void => {
    cancel = clock.after(checkEveryMs, () => {
      // An outage is reported by the part that meets it.
      if (connection.isReady()) check().catch(() => {});
      later();
    });
  };
  later();
  return () => cancel();
}
