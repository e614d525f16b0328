/**
 * A running Sluice: the gateway between its two servers, from listening to the last answer.
 *
 * Owns: what is started and ended in which order. Refuses to own: the journey (`gateway.ts`), signals and files (`cli/`).
 * Invariant: a call that was accepted gets its answer or one retryable refusal, also while the process ends.
 */
import type { AddressInfo } from 'node:net';
import type { Clock, Random } from './clock.ts';
import type { Settings } from './config/settings.ts';
import { RedisActivity } from './activity/redis-activity.ts';
import { windowOf } from './activity/window.policy.ts';
import { Refusal } from './errors.ts';
import { createObservation } from './page/observation.ts';
import type { Resolve } from './dispatch/agents.ts';
import { createGateway, type Gateway } from './gateway.ts';
import { createAdminServer } from './ingress/admin-server.ts';
import { createDataServer } from './ingress/data-server.ts';
import type { Log } from './telemetry/events.ts';
import { silentLog } from './telemetry/noop.ts';
import type { RunningTelemetry, TelemetryPorts } from './telemetry/telemetry.ts';
import { startTracing } from './telemetry/traces.ts';

export interface ServiceParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go. */
  readonly destination: TelemetryPorts['destination'];
  /** Environment, for the standard `OTEL_*` variables only. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
}

export interface Service {
  readonly dataAddress: AddressInfo;
  readonly adminAddress: AddressInfo;
  readonly gateway: Gateway;
  readonly telemetry: RunningTelemetry;
  reconfigure(settings: Settings): void;
  /** Ends without losing an answer; `signal` cuts it short. Resolves with the number of connections that were cut. */
  drain(signal?: AbortSignal): Promise<number>;
  /** Ends at once. */
  close(): Promise<void>;
}

/** Builds everything and listens on both ports. */
export async function startService({
  settings,
  clock,
  random,
  destination,
  env,
  resolve,
}: ServiceParts): Promise<Service> {
  const instance = random.hex(8);
  let log: Log = silentLog;
  const tracing = await startTracing(
    env,
    instance,
    lateLog(() => log),
  );
  const metrics = { processMetrics: true, exemplars: tracing !== null };
  const shared =
    settings.redis === null
      ? null
      : new RedisActivity({
          settings: settings.redis,
          clock,
          random,
          replica: instance,
          onError: (kind) => observation.telemetry.redisError(kind),
          onCommand: (command, durationMs) => observation.telemetry.redisCommand(command, durationMs),
        });
  const observation = createObservation(settings, {
    clock,
    random,
    destination,
    tracing,
    metrics,
    ...(shared === null ? {} : { shared }),
  });
  log = observation.telemetry.log;
  const { telemetry, activity, page } = observation;
  const gateway = createGateway({
    settings,
    clock,
    random,
    telemetry,
    ...(resolve === undefined ? {} : { resolve }),
  });
  let draining = false;
  const onBug = (bug: unknown): void => telemetry.log.bug('a call met a fault of ours', bug);

  const data = createDataServer({
    settings: settings.server,
    clock,
    random,
    handle: gateway.handle,
    async activity(call) {
      const { workspace } = await gateway.identify(call);
      const windowMs = windowOf(queryOf(call.rawUrl));
      if (windowMs === null) throw new Refusal('request_invalid', { detail: windowForm, param: 'window' });
      return activity.ofWorkspace(workspace.id, windowMs);
    },
    credentialFields: gateway.credentialFields,
    onEarlyRefusal: telemetry.refusedEarly,
    onBug,
  });
  observation.observe({
    heldBytes: () => data.stats().heldBytes,
    buckets: gateway.buckets,
    ceilings: gateway.ceilings,
  });
  const admin = createAdminServer({
    host: settings.server.adminHost,
    port: settings.server.adminPort,
    isReady: () => !draining,
    metrics: telemetry.metrics,
    async activity(rawUrl) {
      const windowMs = windowOf(queryOf(rawUrl));
      return windowMs === null ? null : activity.ofAll(windowMs);
    },
    page: page.index,
    routes: [(app) => page.addRoutes(app)],
    onBug,
  });

  const end = async (): Promise<void> => {
    await admin.close();
    await gateway.close();
    await observation.close();
    shared?.close();
  };
  const close = async (): Promise<void> => {
    await data.close();
    await end();
  };

  const listening = await gateway
    .ready()
    .then(() => listenOnBoth(data, admin))
    .catch(async (failure: unknown) => {
      await close();
      throw failure;
    });

  return {
    ...listening,
    gateway,
    telemetry,
    reconfigure(next) {
      observation.reconfigure(next);
      gateway.reconfigure(next);
    },
    async drain(signal) {
      draining = true;
      const { drainSeconds, drainDelaySeconds } = settings.server;
      const budgetMs = Math.max(0, drainSeconds - drainDelaySeconds) * 1000;
      const cancelRefusals = clock.after(drainDelaySeconds * 1000, () => gateway.drain(budgetMs));
      const limitMs = drainSeconds * 1000;
      const { cut } = await data.drain({
        delayMs: drainDelaySeconds * 1000,
        limitMs,
        ...(signal === undefined ? {} : { signal }),
      });
      cancelRefusals();
      await end();
      return cut;
    },
    close,
  };
}

/** A log that is there before the one it writes to: tracing starts first, and tells of its last export. */
const lateLog = (log: () => Log): Log => ({
  debug: (message, fields) => log().debug(message, fields),
  info: (message, fields) => log().info(message, fields),
  warn: (message, fields) => log().warn(message, fields),
  error: (message, fields) => log().error(message, fields),
  bug: (message, cause, fields) => log().bug(message, cause, fields),
});

const windowForm = 'window is like 90s, 15m or 1h.';

/** The raw query of a request target, without `?`. */
const queryOf = (rawUrl: string): string => rawUrl.slice(rawUrl.indexOf('?') + 1 || rawUrl.length);

async function listenOnBoth(
  data: { listen(): Promise<AddressInfo> },
  admin: { listen(): Promise<AddressInfo> },
): Promise<Pick<Service, 'dataAddress' | 'adminAddress'>> {
  const dataAddress = await data.listen();
  return { dataAddress, adminAddress: await admin.listen() };
}
