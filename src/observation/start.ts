/**
 * Starts what observes a service: tracing first, because its last export is logged by the telemetry that starts after it,
 * then the sharing of activity over Redis, then everything that `observation.ts` puts together.
 */
import { RedisActivity } from '../activity/redis-activity.ts';
import type { Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import type { Log } from '../telemetry/events.ts';
import { silentLog } from '../telemetry/events.ts';
import type { TelemetryParts } from '../telemetry/telemetry.ts';
import { startTracing } from '../telemetry/traces.ts';
import { Observation } from './observation.ts';

export interface ObservationParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go. */
  readonly destination: TelemetryParts['destination'];
  /** Environment, for the standard `OTEL_*` variables only. */
  readonly env: Readonly<Record<string, string | undefined>>;
}

export async function startObservation(parts: ObservationParts): Promise<Observation> {
  const { settings, clock, random, destination, env } = parts;
  const replica = random.hex(8);
  let log: Log = silentLog;
  const tracing = await startTracing(
    env,
    replica,
    lateLog(() => log),
  );
  const metrics = { processMetrics: true };
  const { redis } = settings;
  const shared: RedisActivity | null =
    redis === null
      ? null
      : new RedisActivity({
          settings: redis,
          clock,
          random,
          replica,
          onError: (kind) => observation.telemetry.redisError(kind),
          onCommand: (command, durationMs) => observation.telemetry.redisCommand(command, durationMs),
        });
  const observed = { clock, random, destination, tracing, metrics };
  const observation = new Observation(settings, shared === null ? observed : { ...observed, shared });
  log = observation.telemetry.log;
  return observation;
}

/** A log that can be given to other parts before the log exists to which it writes. */
const lateLog = (log: () => Log): Log => ({
  debug: (message, fields) => log().debug(message, fields),
  info: (message, fields) => log().info(message, fields),
  warn: (message, fields) => log().warn(message, fields),
  error: (message, fields) => log().error(message, fields),
  bug: (message, cause, fields) => log().bug(message, cause, fields),
});
