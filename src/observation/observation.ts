/**
 * Everything that observes the gateway, put together: telemetry with the activity recorder listening, `/activity`, the live page. Owns the wiring; does not own any figure. The gateway reports to `telemetry` and gives what only it knows through {@link ObservationSource}.
 */
import { LRUCache } from 'lru-cache';
import { preferBusiest } from '../activity/busiest.ts';
import { Headrooms, type HeadroomSource } from '../activity/headrooms.ts';
import type { InForce } from '../activity/in-force.ts';
import { Recorder } from '../activity/recorder.ts';
import { embeddedActivity, type SharedActivity } from '../activity/shared.ts';
import type { CeilingsNow, Labelled } from '../activity/shape.ts';
import { createActivity, type Activity, type ActivitySource } from '../activity/snapshot.ts';
import { Upstreams, type UpstreamSource } from '../activity/upstreams.ts';
import { bucketSetting, callSettings } from '../admission/buckets.policy.ts';
import { RedisActivity } from '../activity/redis-activity.ts';
import type { CancelTimer, Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { digest, workspaceLabel } from '../identity.ts';
import { Page } from '../page/page.ts';
import { Recorder as CallRecorder } from '../recording/recorder.ts';
import { RunningTelemetry, type TelemetryParts } from '../telemetry/telemetry.ts';
import { idleProcess, silentLog, type Log, type PressureSource } from '../telemetry/events.ts';
import { startTracing } from '../telemetry/traces.ts';
import { createEventStream, eventOf, heartbeat } from './event-stream.ts';
import { noCeilings } from './pressure.ts';

/** What only the gateway knows; given once it exists. */
export interface ObservationSource extends Omit<PressureSource, 'headrooms'> {
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
  /** The limits that hold calls to an upstream, as this replica's calls met them. */
  inForce(upstream: string): Pick<InForce, 'lanes' | 'buckets'>;
}

export type ObservationParts = Omit<TelemetryParts, 'sinks' | 'listeners'> & {
  /** What the replicas share of it. Absent: there are no others. Closed with the observation. */
  readonly shared?: SharedActivity;
};

const nothingKnown: ObservationSource = {
  process: () => idleProcess,
  buckets: () => [],
  ceilingsUsed: () => [],
  breakers: () => [],
  pausedMs: () => 0,
  credentials: () => [],
  ceilings: () => Promise.resolve(noCeilings),
  inForce: () => ({ lanes: [], buckets: [] }),
};

/** Time between the end of a round of sharing and the beginning of the next one, milliseconds. */
const shareEveryMs = 5_000;

export class Observation {
  readonly telemetry: RunningTelemetry;
  readonly activity: Activity;
  readonly page: Page;
  /** Whoever wants to hear of each ended call. */
  readonly calls = createEventStream();
  /** Whoever wants to write down what arrives, to rehearse it. */
  readonly recordings: CallRecorder;
  readonly #shared: SharedActivity;
  readonly #recorder: Recorder;
  readonly #headrooms: Headrooms;
  /** Labels that were made lately. */
  readonly #labels = new LRUCache<string, string>({ max: 5_000 });
  #nextRound: CancelTimer | null = null;
  #isClosed = false;
  readonly #clock: Clock;
  #settings: Settings;
  #source = nothingKnown;

  constructor(settings: Settings, parts: ObservationParts) {
    const { clock } = parts;
    this.#clock = clock;
    this.#settings = settings;
    this.#shared = parts.shared ?? embeddedActivity;
    this.#recorder = this.#createRecorder(clock);
    this.telemetry = new RunningTelemetry(settings, {
      ...parts,
      sinks: [this.#recorder],
      listeners: this.#listeners(),
    });
    this.recordings = new CallRecorder({
      clock,
      settings: () => this.#settings,
      labelOf: (workspaceId) => this.#labelOf(workspaceId),
      buckets: () => this.#source.buckets(),
    });
    this.#headrooms = new Headrooms(this.#recorder, this.#headroomSource(), clock);
    const upstreams = new Upstreams({
      recorder: this.#recorder,
      headrooms: this.#headrooms,
      source: this.#upstreamSource(),
      clock,
    });
    this.activity = this.#createActivity(clock, upstreams);
    this.page = new Page({
      source: {
        upstreams: () => upstreams.read(),
        activity: () => this.activity.ofAll(3_600_000),
        limiterHealth: () => this.telemetry.limiterHealth(),
        configuration: () => this.telemetry.configuration(),
        replicas: () => this.#shared.replicas(),
        credentials: () => this.#source.credentials(),
        process: () => this.#source.process(),
      },
      clock,
      onBug: (bug) => this.#onBug(bug),
    });
    this.#shareLater();
  }

  /** Connects the gateway. */
  observe(source: ObservationSource): void {
    this.#source = source;
    this.telemetry.observe({ ...source, headrooms: () => this.#knownHeadrooms() });
  }

  reload(settings: Settings): void {
    this.#settings = settings;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#nextRound?.();
    this.page.close();
    this.calls.close();
    this.recordings.close();
    // The last seconds count for the replicas that stay.
    await this.#recorder.publish().catch((bug: unknown) => this.#onBug(bug));
    await this.telemetry.close();
    this.#shared.close();
  }

  #onBug(bug: unknown): void {
    this.telemetry.log.bug('observing met a fault of ours', bug);
  }

  /** Rounds of sharing follow each other, never two at once; a round that fails is followed by the next one all the same. */
  #shareLater(): void {
    if (this.#isClosed) return;
    this.#nextRound = this.#clock.after(shareEveryMs, () => {
      void this.#share()
        .catch((bug: unknown) => this.#onBug(bug))
        .finally(() => this.#shareLater());
    });
  }

  /** Shares what this replica counted with the others. */
  async #share(): Promise<void> {
    this.calls.send(heartbeat);
    await this.#recorder.publish();
    await this.#preferBusiest();
  }

  #preferBusiest(): Promise<Labelled> {
    return preferBusiest({
      shared: this.#shared,
      recorder: this.#recorder,
      labels: this.telemetry.labels,
      labelOf: (workspaceId) => this.#labelOf(workspaceId),
      isConfigured: (workspaceId) => this.#settings.workspaces.has(workspaceId),
    });
  }

  #labelOf(workspaceId: string): string {
    let label = this.#labels.get(workspaceId);
    if (label === undefined) {
      label = workspaceLabel(this.#settings.privacy.labelKey, workspaceId);
      this.#labels.set(workspaceId, label);
    }
    return label;
  }

  #createRecorder(clock: Clock): Recorder {
    const { labelKey } = this.#settings.privacy;
    return new Recorder({
      clock,
      shared: this.#shared,
      keyOf: (label, upstream) => digest(labelKey, 'activity', upstream, label),
      labelOf: (workspaceId) => this.#labelOf(workspaceId),
      isShown: (workspaceId) => this.telemetry.labels.holds(workspaceId),
      live: () => this.telemetry.lanes(),
    });
  }

  #createActivity(clock: Clock, upstreams: Upstreams): Activity {
    const source: ActivitySource = {
      upstreamsOf: (workspaceId) => this.#settings.workspaces.get(workspaceId)?.upstreams ?? [],
      now: async (workspaceId, upstream) => ({
        ...(await this.#source.ceilings(workspaceId, upstream)),
        ...(await this.#recorder.calls(workspaceId, upstream)),
      }),
      labelOf: (workspaceId) => this.telemetry.labels.peek(workspaceId),
      labelled: () => this.#preferBusiest(),
      upstreams: () => this.#settings.upstreams.keys(),
      replicas: () => this.#shared.replicas(),
    };
    return createActivity({
      recorder: this.#recorder,
      source,
      headrooms: this.#headrooms,
      upstreams,
      clock,
    });
  }

  async #knownHeadrooms(): Promise<ReadonlyMap<string, number>> {
    const found = new Map<string, number>();
    for (const { upstream } of this.telemetry.live()) {
      const growth = (await this.#headrooms.ofUpstream(upstream))?.growth ?? null;
      if (growth !== null) found.set(upstream, growth);
    }
    return found;
  }

  #headroomSource(): HeadroomSource {
    return {
      inForce: (upstream) => this.#inForce(upstream),
      configured: ({ workspaceId, upstream: name }) => {
        const workspace = this.#settings.workspaces.get(workspaceId);
        const upstream = this.#settings.upstreams.get(name);
        return workspace === undefined || upstream === undefined ? null : callSettings(workspace, upstream);
      },
    };
  }

  /** The limits in force, and where no call has met any, those of the configuration. */
  #inForce(name: string): InForce | null {
    const upstream = this.#settings.upstreams.get(name);
    if (upstream === undefined) return null;
    const { maxWaitSeconds, maxQueued } = upstream.limits;
    return {
      ...this.#source.inForce(name),
      stated: bucketSetting(upstream).meters,
      maxWaitMs: maxWaitSeconds * 1_000,
      maxQueued,
    };
  }

  #upstreamSource(): UpstreamSource {
    return {
      inForce: (upstream) => this.#inForce(upstream),
      live: () => this.telemetry.live(),
      breakers: (upstream) => this.#source.breakers(upstream),
      pausedMs: (upstream) => this.#source.pausedMs(upstream),
      credentials: () => this.#source.credentials(),
      process: () => this.#source.process(),
      limiterHealth: () => this.telemetry.limiterHealth(),
      configuration: () => this.telemetry.configuration(),
      replicas: () => this.#shared.replicas(),
      labelOf: (workspaceId) => this.telemetry.labels.peek(workspaceId),
    };
  }

  #listeners(): NonNullable<TelemetryParts['listeners']> {
    const { calls } = this;
    return {
      get size() {
        return calls.size;
      },
      callEnded: (line) => calls.send(eventOf('call', line)),
    };
  }
}

/** What observing a service needs of it. */
export interface ObservedService {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  /** Where log lines go. */
  readonly destination: TelemetryParts['destination'];
  /** Environment, for the standard `OTEL_*` variables only. */
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** Starts what observes a service: tracing first, because its last export is logged by the telemetry that starts after it. */
export async function startObservation(parts: ObservedService): Promise<Observation> {
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
