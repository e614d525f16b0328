/**
 * Builds the repeats of one process; with Redis, their responses are shared with the other replicas.
 *
 * Owns: which part reports which fact to telemetry. Does not own: what a repeat gets (`repeats.ts`).
 */
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { RedisRepeats } from './redis-repeats.ts';
import { Repeats } from './repeats.ts';
import { SharedRepeats } from './shared-repeats.ts';

export interface StartParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Pick<Telemetry, 'replayed' | 'joined' | 'madeAgain' | 'redisError' | 'log'>;
  /** As configured now. */
  readonly settings: () => Settings;
}

export function startRepeats({ clock, random, telemetry, settings }: StartParts): Repeats {
  const { redis, privacy } = settings();
  const idempotency = () => settings().idempotency;
  const replica = random.hex(8);
  return new Repeats({
    clock,
    settings: idempotency,
    replica,
    onReplayed: (upstream) => telemetry.replayed(upstream),
    onJoined: (upstream) => telemetry.joined(upstream),
    shared:
      redis === null
        ? null
        : (keptResponses) =>
            new SharedRepeats({
              clock,
              labelKey: privacy.labelKey,
              redis: new RedisRepeats({
                settings: redis,
                clock,
                random,
                onError: () => telemetry.redisError('other'),
              }),
              replica,
              settings: idempotency,
              onMadeAgain: (upstream) => telemetry.madeAgain(upstream),
              onUnreadable: once((upstream) =>
                telemetry.log.warn(
                  'a kept response in Redis cannot be opened: use one privacy.labelKey for all replicas, and nothing else in their Redis',
                  { upstream },
                ),
              ),
              keptResponses,
            }),
  });
}

/** Passes on the first report only. */
function once(report: (upstream: string) => void): (upstream: string) => void {
  let isReported = false;
  return (upstream) => {
    if (!isReported) report(upstream);
    isReported = true;
  };
}
