/**
 * A running Sluice: the gateway between its two servers, from listening to the last response.
 *
 * Owns: what is started and ended in which order. Does not own: the flow of a call (`pipeline.ts`), signals and files (`cli/`).
 * Invariant: a call that was accepted gets its response or one retryable refusal, also while the process ends.
 */
import { windowOf } from './activity/activity.ts';
import { withStartedValues } from './config/settings.ts';
import type { Settings } from './config/settings.ts';
import type { Resolve } from './dispatch/agents.ts';
import { Refusal } from './errors.ts';
import { createGateway } from './gateway.ts';
import { createAdminServer } from './ingress/admin-server.ts';
import { DataServer } from './ingress/data-server.ts';
import type { LoadWatch } from './ingress/overload.ts';
import { heartbeat } from './observation/event-stream.ts';
import { startObservation, type ObservedService } from './observation/observation.ts';

export interface ServiceParts extends ObservedService {
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
  /** Looks at the load of the process, so that calls are shed for it. */
  readonly load?: LoadWatch;
}

/** A running Sluice. */
export type Service = Awaited<ReturnType<typeof startService>>;

/** So long before the end of a drain the calls that still wait are answered, milliseconds. */
const lastResponsesMs = 500;

/** So often it is said that connections are refused, milliseconds. */
const cutWarningEveryMs = 60_000;

/** Builds everything and listens on both ports. */
export async function startService(parts: ServiceParts) {
  const { settings, clock, random } = parts;
  const { server } = settings;
  let isDraining = false;
  let silentUntil = -Infinity;
  const observation = await startObservation(parts);
  const { activity, calls, page, recordings, telemetry } = observation;
  const gateway = createGateway({ ...parts, telemetry, recorder: recordings });
  const { admission, breakers, controls, credentials, pressure, repeats, stores } = gateway.parts;
  const onBug = (bug: unknown): void => telemetry.log.bug('a call met a fault of ours', bug);
  const data = new DataServer({
    settings: server,
    clock,
    random,
    handle: gateway.pipeline.handle,
    async activity(call) {
      const { workspace } = gateway.pipeline.identify(call);
      const windowMs = windowOf(queryOf(call.rawUrl));
      if (windowMs !== null) return activity.ofWorkspace(workspace.id, windowMs);
      throw new Refusal('request_invalid', { detail: 'window is like 90s, 15m or 1h.', param: 'window' });
    },
    credentialFields: gateway.credentialFields,
    onRequestRefused: (refused) => telemetry.requestRefused(refused),
    onOverload(bound) {
      telemetry.count('sluice_overload_total', { bound });
      // Calls have their lines. A connection that is cut has none.
      if (bound !== 'connections' || clock.monotonic() < silentUntil) return;
      silentUntil = clock.monotonic() + cutWarningEveryMs;
      telemetry.log.warn('connections of clients are refused or cut: add replicas, or raise the bound', {
        bound,
      });
    },
    onShedding(bound) {
      if (bound === null) telemetry.log.info('new calls are let in again');
      else telemetry.log.warn('new calls are refused in part: the process is overloaded', { bound });
    },
    load: parts.load ?? null,
    onBug,
  });
  const admin = createAdminServer({
    settings: server,
    readiness: () => ({ isDraining, trouble: stores.trouble(), contact: stores.contact() }),
    metrics: (format) => telemetry.metrics(format),
    async activity(rawUrl) {
      const windowMs = windowOf(queryOf(rawUrl));
      return windowMs === null ? null : activity.ofAll(windowMs);
    },
    addRoutes(app) {
      page.addRoutes(app);
      app.get('/calls', (request, response) => calls.open(request, response, heartbeat));
      app.get('/recording', (request, response) => recordings.open(request, response));
    },
    controls,
    // Whatever came of it: pausing an upstream is felt by everybody who calls it.
    onCommand: (command) => telemetry.log.info('a command was given at the admin port', { ...command }),
    onBug,
  });
  observation.observe({
    ...pressure,
    pauseOf: controls.pauseOf,
    process() {
      const { keptBytes, underWayBytes } = repeats.memory();
      const stats = data.stats();
      return { ...stats, heldBytes: stats.heldBytes + underWayBytes, keptBytes };
    },
    breakers: (upstream) => breakers.observed(upstream),
    credentials: () => credentials.observed(),
    ceilings: (workspaceId, upstream) => gateway.ceilings(workspaceId, upstream),
  });
  const endBehindDataPort = async (): Promise<void> => {
    await admin.close();
    await gateway.close();
    await observation.close();
  };
  /** Ends at once. */
  const close = async (): Promise<void> => {
    await data.close();
    await endBehindDataPort();
  };
  const listen = async () => {
    await gateway.ready();
    // Data port first: whoever sees the admin port open may call.
    const dataAddress = await data.listen();
    return { dataAddress, adminAddress: await admin.listen() };
  };
  const listening = await listen().catch(async (failure: unknown) => {
    await close();
    throw failure;
  });
  return {
    ...listening,
    gateway,
    telemetry,
    /** Takes over new settings, but for those that only a restart can change; calls see them at once. */
    reload(next: Settings): void {
      const usable = withStartedValues(settings, next);
      gateway.reload(usable);
      observation.reload(usable);
    },
    /**
     * Ends without losing a response. Resolves with the number of connections that were cut.
     * @param signal cuts the drain short
     * @param isAlone no load balancer has to notice first that this replica takes no more calls: `server.drainDelaySeconds` does not hold
     */
    async drain({
      signal,
      isAlone = false,
    }: { readonly signal?: AbortSignal; readonly isAlone?: boolean } = {}) {
      isDraining = true;
      const startedAt = clock.monotonic();
      const limitMs = server.drainSeconds * 1000;
      const lastMs = Math.max(0, limitMs - lastResponsesMs);
      const delayMs = isAlone ? 0 : Math.min(server.drainDelaySeconds * 1000, lastMs);
      const cancelRefusals = clock.after(delayMs, () => admission.drain(Math.max(0, limitMs - delayMs)));
      // A forecast may have been wrong, or not known: a call that still waits is refused while there is time to.
      const cancelLast = clock.after(lastMs, () => admission.drain(0));
      const cut = await data.drain(delayMs, limitMs, signal);
      cancelRefusals();
      cancelLast();
      if (signal?.aborted !== true)
        await repeats.settled(Math.max(0, startedAt + limitMs - clock.monotonic()));
      await endBehindDataPort();
      return cut;
    },
    close,
  };
}

/** The raw query of a request target, without `?`. */
const queryOf = (rawUrl: string): string => rawUrl.slice(rawUrl.indexOf('?') + 1 || rawUrl.length);
