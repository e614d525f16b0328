/**
 * The live page over driven facts: real recorder, real telemetry, a plain HTTP server with the page's routes. Pressure
 * is made by calling the facts, so that every state of the page can be reached on purpose.
 */
import { idleProcess, type ProcessPressure } from '../../src/telemetry/events.ts';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { bucketKey, laneKey } from '../../src/ids.ts';
import { Recorder } from '../../src/activity/recorder.ts';
import { embeddedActivity } from '../../src/activity/shared.ts';
import { createActivity } from '../../src/activity/snapshot.ts';
import { systemClock, type Clock } from '../../src/clock.ts';
import type { BucketSnapshot } from '../../src/limiter/limiter.ts';
import { Page } from '../../src/page/page.ts';
import type { WholeCounts } from '../../src/page/state.ts';
import { Timeline } from '../../src/page/timeline.ts';
import { digest, workspaceLabel } from '../../src/identity.ts';
import { RunningTelemetry } from '../../src/telemetry/telemetry.ts';
import { callAt, fixedRandom, lm, memoryLines, shop } from '../telemetry/drive.ts';

export interface CallScript {
  readonly workspace: string;
  readonly upstream: 'lm' | 'shop';
  readonly end?: 'ok' | 'shed' | 'throttled' | 'wait' | 'flight';
  readonly absorbed?: number;
}

/** Starts the page on a free loopback port. `clock` is the pace of samples and waits. */
export async function drivenPage(clock: Clock = systemClock) {
  const recorder = new Recorder({
    clock,
    keyOf: (workspaceId, upstream) => digest('key', 'activity', workspaceId, upstream),
    labelOf: (workspaceId) => workspaceLabel('key', workspaceId),
    shared: embeddedActivity,
    live: () => telemetry.lanes(),
  });
  const timeline = new Timeline(clock);
  const telemetry = new RunningTelemetry(
    {
      privacy: { labelKey: 'key' },
      log: { level: 'warn', sampleSuccesses: 0 },
      upstreams: new Map([lm, shop].map((each) => [each.name, each])),
    },
    { clock, random: fixedRandom(0.5), destination: memoryLines(), sinks: [recorder, timeline] },
  );
  telemetry.limiterMode('redis');
  const buckets: { upstream: string; snapshot: BucketSnapshot }[] = [];
  const pressure: { process: ProcessPressure; whole: WholeCounts } = {
    process: { ...idleProcess, connections: 12, openCalls: 5 },
    whole: { shed: 0, absorbed: 0 },
  };
  const known = {
    process: () => pressure.process,
    buckets: () => buckets,
    breakers: () => [],
    pausedMs: () => 0,
    ceilingsUsed: () => [],
    credentials: () => [],
  };
  telemetry.observe(known);
  const activity = createActivity(
    recorder,
    {
      limits: () => [
        { upstream: 'lm', requestsPerMinute: 500, requestsPerDay: 10_000, maxWaitMs: 45_000, bucket: null },
        {
          upstream: 'shop',
          requestsPerMinute: 120,
          requestsPerDay: null,
          maxWaitMs: 45_000,
          bucket: { shared: true, capacity: 40, perSecond: 2 },
        },
      ],
      now: () =>
        Promise.resolve({
          perMinute: null,
          perDay: null,
          waiting: 0,
          inFlight: 0,
          nextSlotMs: null,
          refusing: null,
        }),
      labelOf: (id) => telemetry.labels.peek(id),
      labelled: () => Promise.resolve({ workspaceIds: [...telemetry.labels.holders()], elsewhere: [] }),
      upstreams: () => [lm.name, shop.name],
      replicas: () => Promise.resolve(3),
    },
    clock,
  );
  const bugs: unknown[] = [];
  const page = new Page({
    source: {
      ...known,
      live: () => telemetry.live(),
      limiterHealth: () => telemetry.limiterHealth(),
      replicas: () => Promise.resolve(3),
      activity: (windowMs) => activity.ofAll(windowMs),
      callsTo: (upstream) => recorder.callsTo(upstream),
      countsOf: () => Promise.resolve(pressure.whole),
      credentials: () => [{ upstream: 'lm', expiresInMs: 1_500_000 }],
    },
    timeline,
    clock,
    onBug: (bug) => bugs.push(bug),
  });
  const routes = new Map<string, (request: IncomingMessage, response: ServerResponse) => void>([
    ['/', page.index],
  ]);
  page.addRoutes({ get: (path, handler) => routes.set(path, handler) });
  const server = createServer((request, response) => {
    const path = request.url ?? '';
    if (path === '/metrics') {
      void telemetry
        .metrics()
        .then(({ body, contentType }) => response.writeHead(200, { 'Content-Type': contentType }).end(body));
      return;
    }
    const route = routes.get(path);
    if (route === undefined) response.writeHead(404).end();
    else route(request, response);
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));

  let played = 0;
  /** Plays a call up to its `end`; returns how to finish one that still waits or is in flight. */
  function play({ workspace, upstream, end = 'ok', absorbed = 0 }: CallScript, ageMs = 0): () => void {
    const call = telemetry.begin(
      callAt(clock, { id: `played-${++played}`, receivedAt: clock.monotonic() - ageMs }),
    );
    call.workspaceId = workspace;
    call.routed(upstream === 'lm' ? lm : shop);
    call.admitting(laneKey('lane'));
    for (let n = 0; n < absorbed; n++) {
      call.sent();
      call.answered(429, { kind: 'rate', waitMs: 1_000, meter: null });
      call.absorbed();
    }
    if (end === 'shed') {
      call.ended({ outcome: 'shed', status: 429, code: 'wait_too_long', heldBy: 'ceiling_minute' });
      return () => {};
    }
    if (end === 'wait') call.queued();
    else call.sent();
    const finish = () => {
      call.sent();
      call.answered(end === 'throttled' ? 429 : 200, null);
      const admission = { waitedMs: ageMs, attempts: absorbed + 1, absorbed, held: [] };
      if (end === 'throttled') call.ended({ outcome: 'throttled', status: 429, code: null, admission });
      else call.ended({ outcome: 'ok', status: 200, code: null, admission });
    };
    if (end === 'ok' || end === 'throttled') finish();
    return finish;
  }

  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    telemetry,
    buckets,
    /** What the process and all replicas together report; set it to what a test needs. */
    pressure,
    bugs,
    play,
    async close() {
      page.close();
      server.closeAllConnections();
      await new Promise<void>((done) => server.close(() => done()));
    },
  };
}

export const bucketOf = (
  upstream: 'lm' | 'shop',
  used: number,
  closedMs = 0,
): { upstream: string; snapshot: BucketSnapshot } => ({
  upstream,
  snapshot: {
    bucket: bucketKey(upstream),
    closedMs,
    waiting: 0,
    inFlight: 0,
    meters:
      upstream === 'lm'
        ? [
            { meter: 'requests', limit: 500, level: 500 * used, windowMs: 60_000 },
            { meter: 'tokens', limit: 30_000, level: 30_000 * used * 0.8, windowMs: 60_000 },
            { meter: 'requests_day', limit: 10_000, level: 3_100, windowMs: 86_400_000 },
          ]
        : [
            { meter: 'requests', limit: 40, level: 40 * used, windowMs: 20_000 },
            { meter: 'cost', limit: 2_000, level: 640, windowMs: 20_000 },
          ],
  },
});
