/**
 * Autoscaling from end to end: calls queue at a slow upstream quota, Prometheus scrapes the gateway's own gauges, the
 * HorizontalPodAutoscaler follows them up, and down again while calls are held, and no call is lost or sent twice. The
 * figure goes through a stand-in of prometheus-adapter that uses the chart's rule.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ControlPlane } from '../cluster/control-plane.ts';
import { serveCustomMetrics } from '../cluster/custom-metrics.ts';
import { until } from '../cluster/processes.ts';
import { watchPods } from '../cluster/watch.ts';
import type { Report } from '../report.ts';
import { SteadyLoad } from './load.ts';
import { adapterFigures, startPrometheus } from './prometheus.ts';
import { Shop } from './shop.ts';

const MIN = 2;
const MAX = 4;
/** Calls held and in flight that a pod aims at. */
const TARGET = 40;
/** What the upstream allows in a minute, and what is sent while the queue grows. */
const QUOTA = 600;
const BURST = 30;
/** In flight at any time while pods leave: calls of four seconds, five in a second. */
const TRICKLE = 5;
const UPSTREAM_MS = 4000;
/**
 * Longest wait of a call, and what a pod that leaves needs to lose none: that wait and the longest response (NOTES of the chart).
 */
const WAIT_SECONDS = 120;
const DRAIN_SECONDS = WAIT_SECONDS + 20;

const values = {
  autoscaling: {
    hpa: true,
    minReplicas: MIN,
    maxReplicas: MAX,
    callsPerPod: TARGET,
    scaleDownWindowSeconds: 15,
    scaleDownPeriodSeconds: 15,
  },
  config: {
    server: { drainSeconds: DRAIN_SECONDS },
    upstreams: {
      api: {
        kind: 'generic',
        origins: ['http://upstream'],
        allowPrivateAddresses: true,
        limits: { requestsPerMinute: QUOTA, maxWaitSeconds: WAIT_SECONDS, learn: false },
      },
    },
  },
};

export async function checkAutoscaling(
  plane: ControlPlane,
  report: Report,
  { version, chart }: { version: string; chart: string },
): Promise<void> {
  const shop = new Shop(plane, report, { namespace: 'scaled', chart });
  const label = `${version}, real node: autoscaling`;
  const prometheus = await startPrometheus(plane);
  const metrics = await serveCustomMetrics(plane, adapterFigures(prometheus));
  try {
    const installed = await report.check(`${label}: installed, to the minimum`, async () => {
      await shop.open();
      await shop.upgrade(values);
      await shop.release.untilReady(MIN, 180_000);
    });
    if (!installed) return report.skip(`${label}: up and down`, 'not installed');
    const load = new SteadyLoad({
      ...(await shop.target()),
      name: `${label}: up and down with held calls`,
      rate: TRICKLE,
      upstreamMs: UPSTREAM_MS,
      headers: { prefer: `wait=${WAIT_SECONDS}` },
    });
    await report.check(`${label}: a growing queue adds pods, by the gateway's own gauges`, () =>
      grows(shop, load),
    );
    await report.check(`${label}: pods leave one at a time while calls are held`, () => shrinks(shop, load));
    await report.check(`${label}: no call was lost or doubled`, async () => {
      const { load: counts, examples, maxMs } = await load.end();
      return `${report.load(counts, examples)}, longest ${maxMs} ms`;
    });
  } finally {
    prometheus.stop();
    await metrics.stop();
    await shop.close();
  }
}

async function grows(shop: Shop, load: SteadyLoad): Promise<string> {
  const begunMs = Date.now();
  load.rate = BURST;
  const watched = await watchPods(shop.plane.client, shop.release.namespace, shop.release.name);
  await until(
    `${MAX} pods are ready`,
    180_000,
    async () => (await shop.release.readyReplicas()) === MAX,
    () => shop.release.kubectl(['describe', 'hpa']),
  );
  load.rate = TRICKLE;
  const seen = await watched.stop();
  if (seen.minReady < MIN) throw new Error(`only ${seen.minReady} pods were ready meanwhile`);
  return `from ${MIN} to ${MAX} in ${Math.round((Date.now() - begunMs) / 1000)} s`;
}

/** Watches the wanted number: it goes down by one at a time, and reaches the minimum. */
async function shrinks(shop: Shop, load: SteadyLoad): Promise<string> {
  const begunMs = Date.now();
  load.rate = TRICKLE;
  const steps: number[] = [];
  let last = MAX;
  while (last > MIN) {
    if (Date.now() - begunMs > 300_000)
      throw new Error(`still ${last} pods\n${await shop.release.kubectl(['describe', 'hpa'])}`);
    const now = await shop.release.replicas();
    if (now < last - 1) throw new Error(`from ${last} to ${now} at once`);
    if (now !== last) steps.push(now);
    last = now;
    await sleep(500);
  }
  // The pod that left drains: its calls end before it does.
  await until(
    'the last pod has drained',
    (DRAIN_SECONDS + 30) * 1000,
    async () => (await shop.pods()).length === MIN,
  );
  await sleep(10_000);
  return `${[MAX, ...steps].join(', ')} in ${Math.round((Date.now() - begunMs) / 1000)} s`;
}
