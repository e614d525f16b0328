/**
 * Everything that observes a gateway, and instead of the gateway what a test says of buckets, ceilings, pauses, breakers and Redis; the
 * live page over it. Pressure is made by telling calls, so that every state of the page can be reached on purpose.
 */
import express from 'express';
import type { InForce, LaneInForce } from '../../src/activity/shape.ts';
import { embeddedActivity, nobody, type SharedActivity } from '../../src/activity/recorder.ts';
import type { BucketSnapshot, MeterSnapshot } from '../../src/bucket.ts';
import type { Clock } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import type { HeldBy } from '../../src/errors.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { bucketKey } from '../../src/ids.ts';
import { createObservation } from '../../src/observation/observation.ts';
import { noCeilings } from '../../src/observation/pressure.ts';
import { type ObservedBreaker, type ProcessPressure } from '../../src/telemetry/events.ts';
import {
  bucketSnapshot,
  callAt,
  fixedRandom,
  idleProcess,
  memoryLines,
  nothingKnown,
} from '../telemetry/drive.ts';
import { listening } from '../support/listening.ts';
import { workspaceSettings } from '../support/upstream-settings.ts';

export interface Played {
  readonly workspace: string;
  readonly upstream: string;
  readonly end?: 'ok' | 'shed' | 'failed' | 'refused for good' | 'wait' | 'flight' | 'throttled';
  readonly heldBy?: HeldBy | undefined;
  readonly waitedMs?: number;
  readonly times?: number;
}

const labelKey = 'a label key for tests only';
export const labelOf = (workspaceId: string): string => workspaceLabel(labelKey, workspaceId);

/** `observed`: upstreams whose limits hold no call. */
export const drivenSettings = (
  upstreams: readonly string[],
  workspaces: readonly string[],
  observed: readonly string[] = [],
): Settings => ({
  ...parseSettings(
    `privacy: { labelKey: "${labelKey}" }
log: { level: silent }
upstreams:
${upstreams.map((name) => `  ${name}: { origins: ["https://${name}.canary.example"], credential: "Bearer canary"${observed.includes(name) ? ', mode: observe' : ''} }`).join('\n')}
workspaces: {}
`,
    { path: 'test.yaml', env: {} },
  ),
  workspaces: new Map(workspaces.map((id) => [id, workspaceSettings(id, upstreams)])),
});

export function drivenObservation(
  settings: Settings,
  clock: Clock,
  shared: SharedActivity = embeddedActivity,
) {
  /** What the gateway would say; a test sets what it needs. */
  const state = {
    process: { ...idleProcess, connections: 12, openCalls: 5 } as ProcessPressure,
    pauses: new Map<string, { readonly ms: number; readonly since: number }>(),
    breakers: new Map<string, ObservedBreaker>(),
    buckets: new Map<string, readonly BucketSnapshot[]>(),
    lanes: new Map<string, readonly LaneInForce[]>(),
    credentials: [] as { upstream: string; expiresInMs: number }[],
    ceilings: noCeilings,
  };
  const parts = { clock, random: fixedRandom(0.5), destination: memoryLines(), shared };
  const observation = createObservation(settings, parts);
  const { telemetry } = observation;
  const inForce = (upstream: string): Pick<InForce, 'lanes' | 'buckets'> => ({
    lanes: state.lanes.get(upstream) ?? [],
    buckets: state.buckets.get(upstream) ?? [],
  });
  observation.observe({
    ...nothingKnown,
    process: () => state.process,
    buckets: () =>
      [...state.buckets].flatMap(([upstream, all]) => all.map((snapshot) => ({ upstream, snapshot }))),
    breakers: (upstream) => [state.breakers.get(upstream)].filter((each) => each !== undefined),
    pauseOf: (upstream) => state.pauses.get(upstream) ?? null,
    credentials: () => state.credentials,
    ceilings: () => Promise.resolve(state.ceilings),
    inForce,
  });
  let played = 0;
  /** Plays a call up to its `end`. One that waits has waited for `waitedMs`. */
  function play({ times = 1, ...given }: Played): void {
    for (let n = 0; n < times; n++) playOnce(given);
  }
  function playOnce({ workspace, upstream, end = 'ok', heldBy = 'requests', waitedMs = 0 }: Played): void {
    const to = settings.upstreams.get(upstream);
    if (to === undefined) throw new Error(`no upstream ${upstream}`);
    const receivedAt = clock.monotonic() - (end === 'wait' ? waitedMs : 0);
    const call = telemetry.begin(callAt(clock, { id: `played-${++played}`, receivedAt }));
    call.workspaceId = workspace;
    call.routed(to);
    call.admitting({ requests: 1 });
    const admission = { waitedMs, attempts: 1, absorbed: 0, held: [] };
    if (end === 'wait') return call.queued();
    if (end === 'shed')
      return call.ended({ outcome: 'shed', status: 429, code: 'wait_too_long', heldBy, admission });
    if (end === 'refused for good')
      return call.ended({
        outcome: 'rejected',
        status: 429,
        code: 'upstream_refused',
        heldBy: 'closed',
        admission,
      });
    call.queued();
    call.sent();
    if (end === 'flight') return;
    if (end === 'throttled') {
      call.answered(429, { kind: 'rate', waitMs: 42_000, meter: null });
      call.absorbed();
      return call.queued();
    }
    if (end === 'failed') {
      call.attemptFailed('upstream_unreachable', 'refused');
      return call.ended({ outcome: 'failed', status: 502, code: 'upstream_unreachable', admission });
    }
    call.answered(200, null);
    call.ended({ outcome: 'ok', status: 200, code: null, admission });
  }
  return { observation, telemetry, state, play, close: () => observation.close() };
}

/** Starts the page of one of three replicas on a free loopback port. */
export async function drivenPage(
  clock: Clock,
  upstreams: readonly string[] = ['openai', 'shop', 'github'],
  observed: readonly string[] = [],
) {
  const workspaces = Array.from({ length: 100 }, (_, n) => `canary-${n}`);
  const others = () => Promise.resolve({ ...nobody, replicas: 2 });
  const settings = drivenSettings(upstreams, workspaces, observed);
  const driven = drivenObservation(settings, clock, { ...embeddedActivity, others });
  const { observation, telemetry } = driven;
  const { page } = observation;
  telemetry.limiterMode('redis');
  telemetry.redisCommand('append', 0.4);
  const app = express();
  page.addRoutes(app);
  const server = await listening((request, response) => {
    // Also below a path, as behind a reverse proxy.
    request.url = (request.url ?? '').replace(/^\/below(?=\/)/, '');
    app(request, response);
  });
  return {
    url: `${server.url}/`,
    ...driven,
    async close() {
      await observation.close();
      await server.close();
    },
  };
}

export type DrivenPage = Awaited<ReturnType<typeof drivenPage>>;

/** A bucket of an upstream with one meter of requests a minute, so full; `closedMs` is for how long it is closed. */
export const bucketOf = (
  upstream: string,
  { limit = 500, used = 0.5, closedMs = 0, more = [] as readonly MeterSnapshot[], isReported = true } = {},
): BucketSnapshot => {
  const meter = { meter: 'requests', limit, level: limit * used, windowMs: 60_000, isReported } as const;
  return bucketSnapshot({ bucket: bucketKey(upstream), closedMs, meters: [meter, ...more] });
};

/** A workspace's lane of an upstream; `used`: the share of its ceiling. */
export const laneOf = (
  workspaceId: string,
  upstream: string,
  { perMinute = null as number | null, perDay = null as number | null, used = 0, usedOfDay = 0 } = {},
): LaneInForce => ({
  workspaceId,
  bucket: bucketKey(upstream),
  calls: 100,
  weight: 1,
  maxInFlight: null,
  perMinute,
  perDay,
  used: { minute: used, day: usedOfDay },
});
