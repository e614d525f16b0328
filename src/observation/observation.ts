/**
 * Everything that observes the gateway, put together: telemetry with the activity recorder and the page's timeline
 * listening, `/activity`, the live page. Owns the wiring; refuses to own any figure, and the pace of sharing
 * (`sharing.ts`). The gateway reports to `telemetry` and gives what only it knows through {@link ObservationSource}.
 */
import { read } from '../activity/cell.ts';
import { Busiest } from '../activity/busiest.ts';
import { configuredLimits, sharesQuota } from '../activity/limits.policy.ts';
import { Recorder } from '../activity/recorder.ts';
import { embeddedActivity, type SharedActivity } from '../activity/shared.ts';
import type { CeilingsNow } from '../activity/shape.ts';
import { createActivity, type Activity } from '../activity/snapshot.ts';
import type { Settings } from '../config/settings.ts';
import { digest, workspaceLabel } from '../identity.ts';
import { createPage, type Page } from '../page/page.ts';
import { Timeline } from '../page/timeline.ts';
import { createTelemetry, type RunningTelemetry, type TelemetryParts } from '../telemetry/telemetry.ts';
import { idleProcess, type PressureSource } from '../telemetry/events.ts';
import { noCeilings } from './pressure.ts';
import { Sharing } from './sharing.ts';

/** What only the gateway knows; given once it exists. */
export interface ObservationSource extends PressureSource {
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
}

export interface Observation {
  readonly telemetry: RunningTelemetry;
  readonly activity: Activity;
  readonly page: Page;
  /** Connects the gateway. */
  observe(source: ObservationSource): void;
  reconfigure(settings: Settings): void;
  close(): Promise<void>;
}

export function createObservation(
  first: Settings,
  parts: Omit<TelemetryParts, 'sinks'> & { readonly shared?: SharedActivity },
): Observation {
  const { clock } = parts;
  const shared = parts.shared ?? embeddedActivity;
  const { labelKey } = first.privacy;
  let settings = first;
  let source: ObservationSource = {
    process: () => idleProcess,
    buckets: () => [],
    breakers: () => [],
    credentials: () => [],
    ceilings: () => Promise.resolve(noCeilings),
  };
  const timeline = new Timeline(clock);
  const recorder = new Recorder({
    clock,
    shared,
    keyOf: (workspaceId, upstream) => digest(labelKey, 'activity', upstream, workspaceId),
    labelOf: (workspaceId) => busiest.labelOf(workspaceId),
    isShown: (workspaceId) => telemetry.isLabelled(workspaceId),
    live: () => telemetry.lanes(),
    sharesQuota(workspaceId, upstreamName) {
      const workspace = settings.workspaces.get(workspaceId);
      const upstream = settings.upstreams.get(upstreamName);
      return workspace !== undefined && upstream !== undefined && sharesQuota(workspace, upstream);
    },
  });
  const telemetry = createTelemetry(settings, { ...parts, sinks: [recorder, timeline] });
  const busiest = new Busiest({
    clock,
    shared,
    recorder,
    labels: telemetry,
    labelOf: (workspaceId) => workspaceLabel(labelKey, workspaceId),
    workspaces: () => settings.workspaces,
  });
  const activity = createActivity(
    recorder,
    {
      limits(workspaceId) {
        const workspace = settings.workspaces.get(workspaceId);
        return workspace === undefined ? [] : configuredLimits(workspace, settings.upstreams);
      },
      async now(workspaceId, upstream) {
        return {
          ...(await source.ceilings(workspaceId, upstream)),
          ...(await recorder.calls(workspaceId, upstream)),
        };
      },
      labelOf: (workspaceId) => telemetry.labelOf(workspaceId),
      async labelled() {
        await busiest.prefer();
        return telemetry.labelled();
      },
      upstreams: () => settings.upstreams.keys(),
      replicas: () => shared.replicas(),
    },
    clock,
  );
  const onBug = (bug: unknown): void => telemetry.log.bug('observing met a fault of ours', bug);
  const page = createPage({
    source: {
      live: () => telemetry.live(),
      buckets: () => source.buckets(),
      breakers: (upstream) => source.breakers(upstream),
      limiterHealth: () => telemetry.limiterHealth(),
      replicas: () => shared.replicas(),
      activity: (windowMs) => activity.ofAll(windowMs),
      callsTo: (upstream) => recorder.callsTo(upstream),
      async countsOf(upstream) {
        const cell = await recorder.total(upstream, { minutes: 1 });
        return { shed: read(cell, 'shed'), absorbed: read(cell, 'absorbed') };
      },
      credentials: () => source.credentials(),
      process: () => source.process(),
    },
    timeline,
    clock,
    onBug,
  });

  const share = async (): Promise<void> => {
    await recorder.publish();
    await busiest.prefer();
  };
  const sharing = new Sharing({ clock, share, onBug });
  sharing.start();

  return {
    telemetry,
    activity,
    page,
    observe(given) {
      source = given;
      telemetry.observe(given);
    },
    reconfigure(next) {
      settings = next;
      busiest.reconfigured();
      telemetry.reconfigure(next);
    },
    async close() {
      sharing.stop();
      page.close();
      // The last seconds count for the replicas that stay.
      await recorder.publish().catch(onBug);
      await telemetry.close();
    },
  };
}
