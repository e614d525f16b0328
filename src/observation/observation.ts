/**
 * Everything that observes the gateway, put together: telemetry with the activity recorder listening, `/activity`, the live page. Owns the wiring; does not own any figure. The gateway reports to `telemetry` and gives what only it knows through {@link GatewayState}.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { createActivity } from '../activity/activity.ts';
import type { LimitsSource } from '../activity/headrooms.ts';
import { embeddedActivity, createActivityRecorder, type SharedActivity } from '../activity/recorder.ts';
import { createRedisActivity } from '../activity/redis-activity.ts';
import type { GatewayState } from '../activity/shape.ts';
import { bucketSetting } from '../admission/buckets.policy.ts';
import { every, type Clock, type Random } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { workspaceLabel } from '../identity.ts';
import { createPage } from '../page/page.ts';
import { createRecorder } from '../recording/recorder.ts';
import { createTelemetry, type RunningTelemetry, type TelemetryParts } from '../telemetry/telemetry.ts';
import { startTracing } from '../telemetry/tracing.ts';
import { createEventStream, eventOf, heartbeat } from './event-stream.ts';

export type ObservationParts = Omit<TelemetryParts, 'activity' | 'listeners'> & {
  /** What the replicas share of it. Absent: there are no others. Closed with the observation. */
  readonly shared?: SharedActivity;
};

/** What this replica counted is shared with the others so often, milliseconds. */
const shareEveryMs = 5_000;

/** Its settings are read anew with each reload; the label key and where Redis is stay. */
export function createObservation(started: Settings, parts: ObservationParts) {
  const { clock, shared = embeddedActivity } = parts;
  let settings = started;
  /** Given once it exists: before, nobody asks. */
  let gateway: GatewayState;
  /** Labels that were made lately. */
  const labels = new LRUCache<string, string>({
    ...atMost(5_000),
    memoMethod: (workspaceId) => workspaceLabel(started.privacy.labelKey, workspaceId),
  });
  const common = {
    clock,
    shared,
    settings: () => settings,
    gateway: () => gateway,
    labelOf: (workspaceId: string) => labels.memo(workspaceId),
  };
  /** Whoever wants to hear of each ended call. */
  const calls = createEventStream();
  const recorder = createActivityRecorder({ ...common, live: () => telemetry.lanes() });
  const telemetry: RunningTelemetry = createTelemetry(started, {
    ...parts,
    activity: recorder,
    listeners: {
      isAny: () => calls.listeners.size > 0,
      callEnded: (line) => calls.send(eventOf('call', line)),
    },
  });
  const limits: LimitsSource = (name) => {
    const upstream = settings.upstreams.get(name);
    if (upstream === undefined) return null;
    const { maxWaitSeconds, maxQueued } = upstream.limits;
    const stated = bucketSetting(upstream).meters;
    return { ...gateway.inForce(name), stated, maxWaitMs: maxWaitSeconds * 1_000, maxQueued };
  };
  const whenDown = started.redis?.whenDown ?? null;
  const activity = createActivity({ ...common, recorder, telemetry, whenDown, limits });
  /** Whoever wants to write down what arrives, to rehearse it. */
  const recordings = createRecorder({ ...common, buckets: () => gateway.buckets() });
  const onBug = (bug: unknown): void => telemetry.log.bug('observing met a fault of ours', bug);
  const page = createPage({ ...common, activity, telemetry, onBug });
  const headrooms = async () => {
    const found = new Map<string, number>();
    for (const { upstream } of telemetry.live()) {
      const growth = (await activity.headrooms.ofUpstream(upstream))?.growth ?? null;
      if (growth !== null) found.set(upstream, growth);
    }
    return found;
  };
  const share = async (): Promise<void> => {
    calls.send(heartbeat);
    await recorder.publish();
    activity.preferBusiest();
  };
  const stopSharing = every(clock, shareEveryMs, () => void share().catch(onBug));
  return {
    telemetry,
    activity,
    page,
    calls,
    recordings,
    /** Connects the gateway. */
    observe(state: GatewayState): void {
      gateway = state;
      telemetry.observe({ ...gateway, headrooms });
    },
    reload(next: Settings): void {
      settings = next;
    },
    async close(): Promise<void> {
      stopSharing();
      page.close();
      calls.close();
      recordings.close();
      // The last seconds count for the replicas that stay.
      await recorder.publish().catch(onBug);
      await telemetry.close();
      shared.close();
    },
  };
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
export async function startObservation({ settings, clock, random, destination, env }: ObservedService) {
  const replica = random.hex(8);
  const tracing = await startTracing(env, replica);
  const { redis, privacy } = settings;
  const common = { clock, random, destination, tracing, metrics: { processMetrics: true } };
  if (redis === null) return createObservation(settings, common);
  const shared = createRedisActivity({
    settings: redis,
    labelKey: privacy.labelKey,
    clock,
    random,
    replica,
    onError: (kind) => observation.telemetry.count('sluice_redis_errors_total', { kind }),
    onCommand: (command, durationMs) => observation.telemetry.redisCommand(command, durationMs),
  });
  const observation: Observation = createObservation(settings, { ...common, shared });
  return observation;
}

type Observation = ReturnType<typeof createObservation>;
