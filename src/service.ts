/**
 * A running Sluice: the gateway between its two servers, from listening to the last response.
 *
 * Owns: what is started and ended in which order. Does not own: the flow of a call (`pipeline.ts`), signals and files (`cli/`).
 * Invariant: a call that was accepted gets its response or one retryable refusal, also while the process ends.
 */
import type { AddressInfo } from 'node:net';
import { windowOf } from './activity/activity.ts';
import { withStartedValues } from './config/schema.ts';
import type { Settings } from './config/settings.ts';
import type { Resolve } from './dispatch/agents.ts';
import { OwnListeners } from './dispatch/agents.ts';
import { Refusal } from './errors.ts';
import { Gateway } from './gateway.ts';
import { addControlRoutes } from './ingress/control-routes.ts';
import { createAdminServer, type AdminServer, type Readiness } from './ingress/admin-server.ts';
import { DataServer } from './ingress/data-server.ts';
import type { LoadWatch } from './ingress/overload.ts';
import { heartbeat } from './observation/event-stream.ts';
import type { Observation } from './observation/observation.ts';
import { startObservation, type ObservedService } from './observation/observation.ts';
import type { ProcessPressure } from './telemetry/events.ts';
import type { RunningTelemetry } from './telemetry/telemetry.ts';

export interface ServiceParts extends ObservedService {
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
  /** Looks at the load of the process, so that calls are shed for it. */
  readonly load?: LoadWatch;
}

export interface DrainRequest {
  /** Cuts the drain short. */
  readonly signal?: AbortSignal;
  /** No load balancer has to notice first that this replica takes no more calls: `server.drainDelaySeconds` does not hold. */
  readonly isAlone?: boolean;
}

export interface Service {
  readonly dataAddress: AddressInfo;
  readonly adminAddress: AddressInfo;
  readonly gateway: Gateway;
  readonly telemetry: RunningTelemetry;
  /** Takes over new settings, but for those that only a restart can change; calls see them at once. */
  reload(settings: Settings): void;
  /** Ends without losing a response. Resolves with the number of connections that were cut. */
  drain(options?: DrainRequest): Promise<number>;
  /** Ends at once. */
  close(): Promise<void>;
}

/** Everything that runs, in the order in which it was started. */
interface Running {
  readonly observation: Observation;
  readonly gateway: Gateway;
  readonly data: DataServer;
  readonly admin: AdminServer;
}

/** So long before the end of a drain the calls that still wait are answered, milliseconds. */
const lastResponsesMs = 500;

/** Builds everything and listens on both ports. */
export async function startService(parts: ServiceParts): Promise<Service> {
  const { settings, clock } = parts;
  let draining = false;
  const observation = await startObservation(parts);
  const { telemetry } = observation;
  const own = new OwnListeners();
  const { recordings: recorder } = observation;
  const gateway = new Gateway({ ...parts, telemetry, recorder, isOwn: own.isOwn });
  const { admission, breakers, credentials, pressure, repeats, stores } = gateway.parts;
  const running: Running = {
    observation,
    gateway,
    data: dataServer(parts, gateway, observation),
    admin: adminServer(parts, { observation, gateway }, () => ({
      isDraining: draining,
      trouble: stores.trouble(),
      contact: stores.contact(),
    })),
  };
  observation.observe({
    process: () => processPressure(running),
    buckets: () => pressure.buckets(),
    ceilingsUsed: () => pressure.ceilingsUsed(),
    breakers: (upstream) => breakers.observed(upstream),
    pauseOf: (upstream) => gateway.controls.pauseOf(upstream),
    credentials: () => credentials.observed(),
    ceilings: (workspaceId, upstream) => gateway.ceilings(workspaceId, upstream),
    inForce: (upstream) => pressure.inForce(upstream),
  });
  const close = async (): Promise<void> => {
    await running.data.close();
    await endBehind(running);
  };
  const listening = await gateway
    .ready()
    .then(() => listenOnBoth(running))
    .catch(async (failure: unknown) => {
      await close();
      throw failure;
    });
  own.listen(listening.dataAddress, listening.adminAddress);
  return {
    ...listening,
    gateway,
    telemetry,
    reload(next) {
      const usable = withStartedValues(settings, next);
      gateway.reload(usable);
      observation.reload(usable);
    },
    async drain({ signal, isAlone = false } = {}) {
      draining = true;
      const startedAt = clock.monotonic();
      const { drainSeconds, drainDelaySeconds } = settings.server;
      const limitMs = drainSeconds * 1000;
      const lastMs = Math.max(0, limitMs - lastResponsesMs);
      const delayMs = isAlone ? 0 : Math.min(drainDelaySeconds * 1000, lastMs);
      const cancelRefusals = clock.after(delayMs, () => admission.drain(Math.max(0, limitMs - delayMs)));
      // A forecast may have been wrong, or not known: a call that still waits is refused while there is time to.
      const cancelLast = clock.after(lastMs, () => admission.drain(0));
      const options = signal === undefined ? { delayMs, limitMs } : { delayMs, limitMs, signal };
      const { cut } = await running.data.drain(options);
      cancelRefusals();
      cancelLast();
      if (signal?.aborted !== true)
        await repeats.settled(Math.max(0, startedAt + limitMs - clock.monotonic()));
      await endBehind(running);
      return cut;
    },
    close,
  };
}

function dataServer(
  { settings, clock, random, load }: ServiceParts,
  gateway: Gateway,
  { activity, telemetry }: Observation,
): DataServer {
  return new DataServer({
    settings: settings.server,
    clock,
    random,
    handle: (call) => gateway.handle(call),
    async activity(call) {
      const { workspace } = gateway.identify(call);
      const windowMs = windowOf(queryOf(call.rawUrl));
      if (windowMs === null) throw new Refusal('request_invalid', { detail: windowForm, param: 'window' });
      return activity.ofWorkspace(workspace.id, windowMs);
    },
    credentialFields: () => gateway.credentialFields(),
    onRequestRefused: (refused) => telemetry.requestRefused(refused),
    onOverload: (bound) => telemetry.overloaded(bound),
    onShedding: (cause) => telemetry.shedding(cause),
    load: load ?? null,
    onBug: bugLog(telemetry),
  });
}

function adminServer(
  { settings }: ServiceParts,
  {
    observation: { activity, calls, page, recordings, telemetry },
    gateway,
  }: Pick<Running, 'observation' | 'gateway'>,
  readiness: () => Readiness,
): AdminServer {
  return createAdminServer({
    host: settings.server.adminHost,
    port: settings.server.adminPort,
    adminNames: settings.server.adminNames,
    adminToken: settings.server.adminToken,
    readiness,
    metrics: (format) => telemetry.metrics(format),
    async activity(rawUrl) {
      const windowMs = windowOf(queryOf(rawUrl));
      return windowMs === null ? null : activity.ofAll(windowMs);
    },
    page: page.index,
    routes: [
      (app) => page.addRoutes(app),
      (app) => app.get('/calls', (request, response) => calls.open(request, response, heartbeat)),
      (app) => app.get('/recording', (request, response) => recordings.open(request, response)),
      (app) =>
        addControlRoutes(app, gateway.controls, ({ verb, upstream, seconds, result }) =>
          // Whatever came of it: pausing an upstream is felt by everybody who calls it.
          telemetry.log.info('a command was given at the admin port', { verb, upstream, seconds, result }),
        ),
    ],
    onBug: bugLog(telemetry),
  });
}

/** Data port first: whoever sees the admin port open may call. */
async function listenOnBoth({
  data,
  admin,
}: Running): Promise<Pick<Service, 'dataAddress' | 'adminAddress'>> {
  const dataAddress = await data.listen();
  return { dataAddress, adminAddress: await admin.listen() };
}

/** Ends everything behind the data port. */
async function endBehind({ admin, gateway, observation }: Running): Promise<void> {
  await admin.close();
  await gateway.close();
  await observation.close();
}

function processPressure({ data, gateway }: Running): ProcessPressure {
  const { keptBytes, underWayBytes } = gateway.parts.repeats.memory();
  const stats = data.stats();
  return { ...stats, heldBytes: stats.heldBytes + underWayBytes, keptBytes };
}

const bugLog =
  ({ log }: RunningTelemetry) =>
  (bug: unknown): void =>
    log.bug('a call met a fault of ours', bug);

const windowForm = 'window is like 90s, 15m or 1h.';

/** The raw query of a request target, without `?`. */
const queryOf = (rawUrl: string): string => rawUrl.slice(rawUrl.indexOf('?') + 1 || rawUrl.length);
