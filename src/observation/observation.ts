/**
 * Everything that observes the gateway, put together: telemetry with the activity recorder listening, `/activity`, the live page. Owns the wiring; does not own any figure. The gateway reports to `telemetry` and gives what only it knows through {@link GatewayState}.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { Activity } from '../activity/activity.ts';
import type { LimitsSource } from '../activity/headrooms.ts';
import { embeddedActivity, Recorder, type SharedActivity } from '../activity/recorder.ts';
import { RedisActivity } from '../activity/redis-activity.ts';
import type { GatewayState } from '../activity/shape.ts';
import { bucketSetting } from '../admission/buckets.policy.ts';
import type { CancelTimer, Clock, Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { workspaceLabel } from '../identity.ts';
import { Page } from '../page/page.ts';
import { Recorder as CallRecorder } from '../recording/recorder.ts';
import { nothingKnown } from '../telemetry/events.ts';
import { RunningTelemetry, type TelemetryParts } from '../telemetry/telemetry.ts';
import { startTracing } from '../telemetry/tracing.ts';
import { createEventStream, eventOf, heartbeat } from './event-stream.ts';
import { noCeilings } from './pressure.ts';

export type ObservationParts = Omit<TelemetryParts, 'activity' | 'listeners'> & {
  /** What the replicas share of it. Absent: there are no others. Closed with the observation. */
  readonly shared?: SharedActivity;
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
  readonly #clock: Clock;
  /** Labels that were made lately. */
  readonly #labels = new LRUCache<string, string>(atMost(5_000));
  #nextRound: CancelTimer | null = null;
  #isClosed = false;
  #settings: Settings;
  #gateway: GatewayState = {
    ...nothingKnown,
    ceilings: () => Promise.resolve(noCeilings),
    inForce: () => ({ lanes: [], buckets: [] }),
  };

  constructor(settings: Settings, parts: ObservationParts) {
    const { clock, shared = embeddedActivity } = parts;
    this.#clock = clock;
    this.#settings = settings;
    this.#shared = shared;
    const common = {
      clock,
      shared,
      settings: () => this.#settings,
      gateway: () => this.#gateway,
      labelOf: (workspaceId: string) => this.#labelOf(workspaceId),
    };
    const recorder = new Recorder({ ...common, live: () => this.telemetry.lanes() });
    this.#recorder = recorder;
    const telemetry = new RunningTelemetry(settings, {
      ...parts,
      activity: recorder,
      listeners: {
        isAny: () => this.calls.listeners.size > 0,
        callEnded: (line) => this.calls.send(eventOf('call', line)),
      },
    });
    this.telemetry = telemetry;
    this.recordings = new CallRecorder({ ...common, buckets: () => this.#gateway.buckets() });
    const whenDown = settings.redis?.whenDown ?? null;
    this.activity = new Activity({ ...common, recorder, telemetry, whenDown, limits: this.#limits() });
    const { activity } = this;
    this.page = new Page({ ...common, activity, telemetry, onBug: (bug) => this.#onBug(bug) });
    this.#shareLater();
  }

  /** Connects the gateway. */
  observe(gateway: GatewayState): void {
    this.#gateway = gateway;
    this.telemetry.observe({ ...gateway, headrooms: () => this.#knownHeadrooms() });
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
    this.activity.preferBusiest();
  }

  #labelOf(workspaceId: string): string {
    let label = this.#labels.get(workspaceId);
    if (label === undefined) {
      label = workspaceLabel(this.#settings.privacy.labelKey, workspaceId);
      this.#labels.set(workspaceId, label);
    }
    return label;
  }

  async #knownHeadrooms(): Promise<ReadonlyMap<string, number>> {
    const found = new Map<string, number>();
    for (const { upstream } of this.telemetry.live()) {
      const growth = (await this.activity.headrooms.ofUpstream(upstream))?.growth ?? null;
      if (growth !== null) found.set(upstream, growth);
    }
    return found;
  }

  #limits(): LimitsSource {
    return (name) => {
      const upstream = this.#settings.upstreams.get(name);
      if (upstream === undefined) return null;
      const { maxWaitSeconds, maxQueued } = upstream.limits;
      const stated = bucketSetting(upstream).meters;
      return { ...this.#gateway.inForce(name), stated, maxWaitMs: maxWaitSeconds * 1_000, maxQueued };
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

/** Starts what observes a service: tracing first, because telemetry is made with it. */
export async function startObservation(parts: ObservedService): Promise<Observation> {
  const { settings, clock, random, destination, env } = parts;
  const replica = random.hex(8);
  const tracing = await startTracing(env, replica);
  const { redis, privacy } = settings;
  const common = { clock, random, destination, tracing, metrics: { processMetrics: true } };
  if (redis === null) return new Observation(settings, common);
  const shared = new RedisActivity({
    settings: redis,
    labelKey: privacy.labelKey,
    clock,
    random,
    replica,
    onError: (kind) => observation.telemetry.count('sluice_redis_errors_total', { kind }),
    onCommand: (command, durationMs) => observation.telemetry.redisCommand(command, durationMs),
  });
  const observation: Observation = new Observation(settings, { ...common, shared });
  return observation;
}
