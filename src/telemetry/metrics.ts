/**
 * What is counted and timed: series that begin at 0 (so that their first increase is seen), gauges that are read when they are
 * scraped, and the text of a scrape.
 *
 * Invariants: no label value comes from outside (labels of workspaces are ours, upstreams are configured names, the rest are
 * closed sets); the series of a label end when the label is taken back.
 */
import { setImmediate } from 'node:timers/promises';
import {
  collectDefaultMetrics,
  Registry,
  type Metric,
  type OpenMetricsContentType,
  type RegistryContentType,
} from 'prom-client';
import type { MeterName, Reckoned } from '../call.ts';
import {
  failureReasons,
  heldByReasons,
  limitRefusals,
  overloadBounds,
  shedReasons,
  type RefusalCode,
} from '../errors.ts';
import {
  leaseLostReasons,
  limiterModes,
  redisErrorKinds,
  type LivePressure,
  type PressureSource,
  type ProcessPressure,
} from './events.ts';
import { createInstruments, type Instruments } from './instruments.ts';
import { packageVersion } from '../version.ts';
import { outcomes, type CallOutcome } from './outcome.policy.ts';

/** `prometheus`: text format 0.0.4. `openmetrics`: OpenMetrics 1.0.0, where exemplars are shown. */
export type MetricsFormat = 'prometheus' | 'openmetrics';

/** Text of a scrape and its content type. */
export interface MetricsPage {
  readonly contentType: string;
  readonly body: string;
}

export interface MetricsOptions {
  /** Process and Node metrics too. Off in tests. */
  readonly processMetrics?: boolean;
}

/** prom-client's gauges that are named like counters; `promtool check metrics` refuses them. */
const misnamed = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

const throttleKinds = ['rate', 'permanent'] as const;

/** The counters that name a workspace, under one label and upstream. */
export interface WorkspaceLabels {
  readonly workspace: string;
  readonly upstream: string;
}

export class Metrics {
  readonly instruments: Instruments;
  readonly #registry = createRegistry();
  /** Labels, and the upstreams on which the series of each have begun. */
  readonly #workspaces = new Map<string, Set<string>>();
  /** The same of the series of what limits would have done. */
  readonly #observed = new Map<string, Set<string>>();
  readonly #upstreams = new Set<string>();

  constructor({ processMetrics = false }: MetricsOptions = {}) {
    this.instruments = createInstruments(this.#registry);
    const { limiterMode, redisErrors, overloads, leasesLost, buildInfo } = this.instruments;
    buildInfo.set({ version: packageVersion(), node: process.versions.node }, 1);
    for (const mode of limiterModes) limiterMode.set({ mode }, 0);
    for (const kind of redisErrorKinds) redisErrors.inc({ kind }, 0);
    for (const bound of overloadBounds) overloads.inc({ bound }, 0);
    for (const reason of leaseLostReasons) leasesLost.inc({ reason }, 0);
    if (!processMetrics) return;
    collectDefaultMetrics({ register: this.#registry });
    for (const name of misnamed) this.#registry.removeSingleMetric(name);
  }

  /** Begins the series of a workspace on an upstream. Called before each count, because a label may have been taken back meanwhile. */
  beginWorkspace(by: WorkspaceLabels): void {
    const { workspace, upstream } = by;
    let begun = this.#workspaces.get(workspace);
    if (begun === undefined) this.#workspaces.set(workspace, (begun = new Set()));
    if (begun.has(upstream)) return;
    begun.add(upstream);
    const { requests, shed, throttles, absorbed } = this.instruments;
    for (const outcome of outcomes) requests.inc({ workspace, upstream, outcome }, 0);
    for (const reason of shedReasons) shed.inc({ workspace, upstream, reason }, 0);
    for (const kind of throttleKinds) throttles.inc({ workspace, upstream, kind }, 0);
    absorbed.inc({ workspace, upstream }, 0);
  }

  /** Removes every series of a label that was taken back. */
  release(workspace: string): void {
    const { requests, shed, throttles, absorbed, wouldRefuse } = this.instruments;
    for (const upstream of this.#workspaces.get(workspace) ?? []) {
      for (const outcome of outcomes) requests.remove({ workspace, upstream, outcome });
      for (const reason of shedReasons) shed.remove({ workspace, upstream, reason });
      for (const kind of throttleKinds) throttles.remove({ workspace, upstream, kind });
      absorbed.remove({ workspace, upstream });
    }
    for (const upstream of this.#observed.get(workspace) ?? [])
      for (const reason of limitRefusals) wouldRefuse.remove({ workspace, upstream, reason });
    this.#workspaces.delete(workspace);
    this.#observed.delete(workspace);
  }

  /** Begins the series of an upstream. */
  beginUpstream(upstream: string): void {
    if (this.#upstreams.has(upstream)) return;
    this.#upstreams.add(upstream);
    const { queueWait, upstreamTime, overhead, failures, heldRefusals } = this.instruments;
    const { replays, joins, madeAgain } = this.instruments;
    for (const counter of [replays, joins, madeAgain]) counter.inc({ upstream }, 0);
    for (const heldBy of heldByReasons) heldRefusals.inc({ upstream, held_by: heldBy }, 0);
    for (const reason of failureReasons) failures.inc({ upstream, reason }, 0);
    for (const outcome of outcomes) queueWait.zero({ upstream, outcome });
    upstreamTime.zero({ upstream });
    overhead.zero({ upstream });
  }

  /** Counts what limits would have done with a call that was only observed. */
  reckoned(by: WorkspaceLabels, reckoned: Reckoned): void {
    const { wouldWait, wouldRefuse } = this.instruments;
    const { workspace, upstream } = by;
    let begun = this.#observed.get(workspace);
    if (begun === undefined) this.#observed.set(workspace, (begun = new Set()));
    if (!begun.has(upstream)) {
      begun.add(upstream);
      for (const reason of limitRefusals) wouldRefuse.inc({ ...by, reason }, 0);
    }
    if (reckoned.kind === 'refuse') wouldRefuse.inc({ ...by, reason: reckoned.code });
    else wouldWait.observe({ labels: { upstream }, value: reckoned.waitMs / 1000 });
  }

  /** Counts the end of a call; `by`: series that have begun; `code`: of our own refusal. */
  callEnded(by: WorkspaceLabels, outcome: CallOutcome, code: RefusalCode | null): void {
    this.instruments.requests.inc({ ...by, outcome });
    if (outcome === 'shed' && code !== null) this.instruments.shed.inc({ ...by, reason: code });
  }

  /** Text of a scrape, with gauges as they are at this moment. */
  async page(
    format: MetricsFormat,
    source: PressureSource,
    live: readonly LivePressure[],
  ): Promise<MetricsPage> {
    const headrooms = await source.headrooms();
    readGauges(this.instruments, source, live);
    this.instruments.headroom.reset();
    for (const [upstream, times] of headrooms) this.instruments.headroom.set({ upstream }, times);
    return writePage(this.#registry, format);
  }
}

/** `tokens` is the fullest of all, input and output tokens, and `requests` of images and all windows shorter than a day. */
const dimensionOf = (meter: MeterName): string =>
  meter.replace(/^\w+_tokens$/, 'tokens').replace(/^images$|^requests_(?:burst|hour)$/, 'requests');

/** Sets every gauge. Upstreams that are no longer configured disappear. */
function readGauges(instruments: Instruments, source: PressureSource, live: readonly LivePressure[]): void {
  readProcess(instruments, source.process());
  const { queueDepth, queueOldest, inFlight, breakerOpen, bucketUsed, bucketClosed } = instruments;
  const { credentialExpires, upstreamPaused, ceilingUsed } = instruments;
  const gauges = [
    queueDepth,
    queueOldest,
    inFlight,
    breakerOpen,
    bucketUsed,
    bucketClosed,
    upstreamPaused,
    ceilingUsed,
  ];
  for (const gauge of gauges) gauge.reset();
  credentialExpires.reset();
  const closed = new Map<string, number>();
  const used = new Map<string, Map<string, number>>();
  for (const { upstream, dimensions: expected, waiting, oldestMs, inFlight: sent } of live) {
    queueDepth.set({ upstream }, waiting);
    queueOldest.set({ upstream }, oldestMs / 1000);
    inFlight.set({ upstream }, sent);
    upstreamPaused.set({ upstream }, source.pauseOf(upstream) === null ? 0 : 1);
    breakerOpen.set({ upstream }, source.breakers(upstream).length > 0 ? 1 : 0);
    closed.set(upstream, 0);
    used.set(upstream, new Map<string, number>(expected.map((dimension) => [dimension, 0])));
  }
  for (const { upstream, snapshot } of source.buckets()) {
    const ratios = used.get(upstream);
    if (ratios === undefined) continue;
    closed.set(upstream, Math.max(closed.get(upstream) ?? 0, snapshot.closedMs));
    for (const { meter, level, limit } of snapshot.meters) {
      const dimension = dimensionOf(meter);
      ratios.set(dimension, Math.max(ratios.get(dimension) ?? 0, limit > 0 ? level / limit : 0));
    }
  }
  const ceilings = Map.groupBy(source.ceilingsUsed(), ({ upstream }) => upstream);
  for (const { upstream } of live) {
    const own = ceilings.get(upstream) ?? [];
    for (const window of ['minute', 'day'] as const) {
      const fullest = own.reduce((most, ceiling) => Math.max(most, ceiling[window]), 0);
      ceilingUsed.set({ upstream, window }, fullest);
    }
  }
  for (const [upstream, closedMs] of closed) bucketClosed.set({ upstream }, closedMs / 1000);
  for (const [upstream, ratios] of used)
    for (const [dimension, ratio] of ratios) bucketUsed.set({ upstream, dimension }, ratio);
  // Of several credentials of an upstream, the one that ends first.
  const endsFirst = source.credentials().toSorted((a, b) => b.expiresInMs - a.expiresInMs);
  for (const { upstream, expiresInMs } of endsFirst) credentialExpires.set({ upstream }, expiresInMs / 1000);
}

function readProcess(instruments: Instruments, process: ProcessPressure): void {
  instruments.queueBytes.set(process.heldBytes);
  instruments.keptBytes.set(process.keptBytes);
  instruments.headBytes.set(process.headBytes);
  instruments.connections.set(process.connections);
  instruments.openCalls.set(process.openCalls);
  instruments.eventLoopDelay.set(process.eventLoopDelayMs / 1000);
  instruments.memoryUsed.set(process.memoryRatio);
  instruments.shedding.set(process.sheddingShare);
}

/** A registry to create metrics in: of OpenMetrics, because prom-client ties exemplars to that. */
export function createRegistry(): Registry<OpenMetricsContentType> {
  const registry = new Registry<OpenMetricsContentType>();
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  return registry;
}

/** Series of a metric written in one go, before other events are handled: each takes some 4 µs. */
const writtenAtOnce = 1_000;

/** Text of all metrics of `registry`. A hundred workspaces on thirty upstreams are 60,000 series: calls do not wait for all of them. */
async function writePage(
  registry: Registry<OpenMetricsContentType>,
  format: MetricsFormat,
): Promise<MetricsPage> {
  const isOpen = format === 'openmetrics';
  const contentType = isOpen ? Registry.OPENMETRICS_CONTENT_TYPE : Registry.PROMETHEUS_CONTENT_TYPE;
  const [between, end] = isOpen ? ['\n', '\n# EOF\n'] : ['\n\n', '\n'];
  const written: string[] = [];
  for (const metric of registry.getMetricsAsArray() as unknown as readonly Readable[]) {
    await setImmediate();
    const { values, ...head } = await (metric.getForPromString?.() ?? metric.get());
    const lines: string[] = [];
    for (let from = 0; from === 0 || from < values.length; from += writtenAtOnce) {
      await setImmediate();
      const some = values.slice(from, from + writtenAtOnce);
      // prom-client writes whole metrics only, and strips `_total` off the name of what it writes.
      const part = { ...head, get: () => Promise.resolve({ ...part, values: some }) };
      const writer = new Registry<RegistryContentType>();
      writer.setContentType(contentType);
      writer.registerMetric(part as unknown as Metric);
      const [help = '', type = '', ...series] = (await writer.metrics()).slice(0, -end.length).split('\n');
      lines.push(...(from === 0 ? [help, type] : []), ...series);
    }
    written.push(lines.join('\n'));
  }
  return { contentType, body: written.join(between) + end };
}

/** What a metric of prom-client gives to be written; histograms have a shorter form for it. */
interface Readable {
  readonly getForPromString?: Readable['get'];
  get(): Promise<{ readonly name: string; readonly values: readonly unknown[] }>;
}
