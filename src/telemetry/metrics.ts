/**
 * Every `sluice_*` metric: names, labels, helps and bucket boundaries in three tables. Names and labels are an interface: dashboards depend on
 * them. Histograms carry no workspace; they take a `trace_id` as exemplar, which is written as OpenMetrics only.
 *
 * Invariants: no label value comes from outside (labels of workspaces are ours, upstreams are configured names, the rest are
 * closed sets); the series of a label end when the label is taken back.
 */
import { setImmediate } from 'node:timers/promises';
import {
  collectDefaultMetrics,
  Counter,
  Gauge,
  Histogram,
  Registry,
  type OpenMetricsContentType,
} from 'prom-client';
import type { MeterName } from '../call.ts';
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
  renewalOutcomes,
  type ConfigurationState,
  type LimiterHealth,
  type LivePressure,
  type PressureSource,
  type ProcessPressure,
} from './events.ts';
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

type Row<Last> = readonly [labels: string, help: string, last: Last];
type LabelValues = Readonly<Record<string, string>>;
/** Labels of the counters that name a workspace. */
export type WorkspaceLabels = Readonly<Record<'workspace' | 'upstream', string>>;

const throttleKinds = ['rate', 'permanent'];

/** With the closed set of values of its last label, if that has one: all its series begin at 0, so that their first increase is seen. */
const counters = {
  sluice_requests_total: ['workspace upstream outcome', 'Calls ended, by how they ended.', outcomes],
  sluice_shed_total: ['workspace upstream reason', 'Calls refused for lack of room or time.', shedReasons],
  sluice_upstream_throttles_total: ['workspace upstream kind', 'Throttled responses.', throttleKinds],
  sluice_retries_absorbed_total: ['workspace upstream', 'Throttled responses the client never saw.', null],
  sluice_would_refuse_total: ['workspace upstream reason', 'Calls limits would refuse.', limitRefusals],
  sluice_held_refusals_total: ['upstream held_by', 'Calls refused with 429, by cause.', heldByReasons],
  sluice_upstream_failures_total: ['upstream reason', 'Attempts that failed, by why.', failureReasons],
  sluice_credential_renewals_total: ['upstream outcome', 'Renewals of credentials.', renewalOutcomes],
  sluice_idempotent_replays_total: ['upstream', 'Calls answered with a kept response.', null],
  sluice_repeats_joined_total: ['upstream', 'Calls that got the response of the call they repeat.', null],
  sluice_repeats_made_again_total: ['upstream', 'Calls made again for their repeats.', null],
  sluice_overload_total: ['bound', 'Calls and connections refused as too many, by bound.', overloadBounds],
  sluice_log_lines_left_out_total: ['', 'Calls without a valid API key that got no log line.', null],
  sluice_redis_errors_total: ['kind', 'Limiter commands that Redis did not carry out.', redisErrorKinds],
  sluice_leases_lost_total: ['reason', 'In-flight leases lost before they were settled.', leaseLostReasons],
  sluice_dispatched_after_client_gone_total: ['', 'Must stay 0: calls sent after their client left.', null],
} satisfies Record<string, Row<readonly string[] | null>>;
export type CounterName = keyof typeof counters;

/** Counters whose series begin when one of them is first counted, because few upstreams have them. */
const rare: ReadonlySet<string> = new Set(['sluice_would_refuse_total', 'sluice_credential_renewals_total']);

/** A millisecond (not held) to ten minutes (longest wait a call may ask for), fine around the default wait of 75 s. */
export const waitBuckets = [
  0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 20, 30, 45, 60, 75, 120, 300, 600,
];
/** A simulator's millisecond to a language model's minutes. */
const upstreamBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600];
/** What Sluice itself adds: a fraction of a millisecond when healthy, a second when the process is starved. */
const overheadBuckets = [0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];
/** One script call: 0.1 ms beside Redis, 250 ms is the command timeout. */
const redisBuckets = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5];

const histograms = {
  sluice_queue_wait_seconds: ['upstream outcome', 'Time a call was held, all waits together.', waitBuckets],
  sluice_would_wait_seconds: ['upstream', 'Wait of an observed call, had limits held it.', waitBuckets],
  sluice_upstream_seconds: ['upstream', 'Per attempt: until the head of its response.', upstreamBuckets],
  sluice_overhead_seconds: ['upstream', 'Per call: time beside waiting, body and upstream.', overheadBuckets],
  sluice_redis_command_seconds: ['command', 'Time of a command on Redis.', redisBuckets],
} satisfies Record<string, Row<number[]>>;
export type HistogramName = keyof typeof histograms;

/** What gauges are read from when they are scraped. */
export interface Scraped {
  readonly source: PressureSource;
  readonly live: readonly LivePressure[];
  readonly health: LimiterHealth;
  readonly configuration: ConfigurationState;
  readonly headrooms: ReadonlyMap<string, number>;
}
type Reading = (now: Scraped) => Iterable<readonly [LabelValues, number]>;

const ofUpstream =
  (read: (live: LivePressure, source: PressureSource) => number): Reading =>
  ({ live, source }) =>
    live.map((each) => [{ upstream: each.upstream }, read(each, source)]);
const ofProcess =
  (read: (process: ProcessPressure) => number): Reading =>
  ({ source }) => [[{}, read(source.process())]];

/** Upstreams that are no longer configured disappear. */
const gauges: Readonly<Record<string, Row<Reading>>> = {
  sluice_queue_depth: ['upstream', 'Calls waiting on this replica.', ofUpstream(({ waiting }) => waiting)],
  sluice_queue_oldest_seconds: [
    'upstream',
    'Age of the call waiting longest on this replica.',
    ofUpstream(({ oldestMs }) => oldestMs / 1_000),
  ],
  sluice_in_flight: [
    'upstream',
    'Calls sent by this replica whose response has not ended.',
    ofUpstream(({ inFlight }) => inFlight),
  ],
  sluice_upstream_paused: [
    'upstream',
    'Whether an operator has paused the upstream.',
    ofUpstream(({ upstream }, { pauseOf }) => (pauseOf(upstream) === null ? 0 : 1)),
  ],
  sluice_breaker_open: [
    'upstream',
    '1 while calls are answered in the stead of an upstream that refuses them for good.',
    ofUpstream(({ upstream }, { breakers }) => Math.min(1, breakers(upstream).length)),
  ],
  sluice_bucket_closed_seconds: [
    'upstream',
    'Time until the longest-closed bucket opens; 0 = open.',
    ofUpstream(({ upstream }, source) => {
      const own = source.buckets().filter((each) => each.upstream === upstream);
      return Math.max(0, ...own.map(({ snapshot }) => snapshot.closedMs / 1_000));
    }),
  ],
  sluice_bucket_used_ratio: [
    'upstream dimension',
    'Used share of the fullest bucket, 0 to 1 (above 1: overdrawn).',
    bucketsUsed,
  ],
  sluice_ceiling_used_ratio: [
    'upstream window',
    'Used share of the fullest ceiling of a workspace, as its latest call on this replica met it.',
    ({ live, source }) =>
      live.flatMap(({ upstream }) => {
        const own = source.ceilingsUsed().filter((each) => each.upstream === upstream);
        const fullest = (window: 'minute' | 'day') => Math.max(0, ...own.map((each) => each[window]));
        return (['minute', 'day'] as const).map((window) => [{ upstream, window }, fullest(window)]);
      }),
  ],
  sluice_headroom_ratio: [
    'upstream',
    'How many times the last hour’s traffic fits, 10 at most: 1 = no more, 0 = calls were refused. Absent: not known.',
    ({ headrooms }) => Array.from(headrooms, ([upstream, times]) => [{ upstream }, times]),
  ],
  sluice_credential_expires_seconds: [
    'upstream',
    'Time until the upstream credential in use that ends first ends; 0 = none could be fetched.',
    // The last one set counts: that which ends first.
    ({ source }) =>
      source
        .credentials()
        .toSorted((a, b) => b.expiresInMs - a.expiresInMs)
        .map(({ upstream, expiresInMs }) => [{ upstream }, expiresInMs / 1_000]),
  ],
  sluice_queue_bytes: ['', 'Bytes held for calls under way.', ofProcess(({ heldBytes }) => heldBytes)],
  sluice_kept_response_bytes: ['', 'Bytes kept for repeats.', ofProcess(({ keptBytes }) => keptBytes)],
  sluice_head_bytes: ['', 'Bytes of heads of requests.', ofProcess(({ headBytes }) => headBytes)],
  sluice_connections: ['', 'Client connections.', ofProcess(({ connections }) => connections)],
  sluice_open_calls: [
    '',
    'Calls held and in flight on this replica.',
    ofProcess(({ openCalls }) => openCalls),
  ],
  sluice_event_loop_delay_seconds: [
    '',
    'Delay of the event loop that stood over the last half second.',
    ofProcess(({ eventLoopDelayMs }) => eventLoopDelayMs / 1_000),
  ],
  sluice_memory_used_ratio: [
    '',
    'Used share of the heap or of the container, whichever is fuller, over the last half second.',
    ofProcess(({ memoryRatio }) => memoryRatio),
  ],
  sluice_shedding_ratio: [
    '',
    'Share of new calls refused because of load, 0 to 1.',
    ofProcess(({ sheddingShare }) => sheddingShare),
  ],
  sluice_limiter_mode: [
    'mode',
    '1 for the mode the limiter is in, 0 for the others.',
    ({ health }) => limiterModes.map((mode) => [{ mode }, mode === health.mode ? 1 : 0]),
  ],
  sluice_config_last_reload_successful: [
    '',
    'Whether the latest configuration is in use: 0 after one was refused.',
    ({ configuration }) => [[{}, configuration.refused === null ? 1 : 0]],
  ],
  sluice_config_last_reload_success_timestamp_seconds: [
    '',
    'When the configuration in use was read.',
    ({ configuration }) => [[{}, configuration.inForceSince / 1_000]],
  ],
  sluice_build_info: [
    'version node',
    'Always 1: which version runs, on which Node.',
    () => [[{ version: packageVersion(), node: process.versions.node }, 1]],
  ],
};

/** Dimensions that an upstream's kind has are there from the start. */
function* bucketsUsed({ live, source }: Scraped): Generator<readonly [LabelValues, number]> {
  for (const { upstream, dimensions } of live) {
    const used = new Map<string, number>(dimensions.map((dimension) => [dimension, 0]));
    const own = source.buckets().filter((each) => each.upstream === upstream);
    for (const { meter, level, limit } of own.flatMap(({ snapshot }) => snapshot.meters)) {
      const dimension = dimensionOf(meter);
      used.set(dimension, Math.max(used.get(dimension) ?? 0, limit > 0 ? level / limit : 0));
    }
    for (const [dimension, ratio] of used) yield [{ upstream, dimension }, ratio];
  }
}

/** `tokens` is the fullest of all, input and output tokens, and `requests` of images and all windows shorter than a day. */
const dimensionOf = (meter: MeterName): string =>
  meter.replace(/^\w+_tokens$/, 'tokens').replace(/^images$|^requests_(?:burst|hour)$/, 'requests');

/** All metrics with their types, for the reference. */
export const described = [
  ...Object.entries(counters).map((row) => ['counter', ...row] as const),
  ...Object.entries(gauges).map((row) => ['gauge', ...row] as const),
  ...Object.entries(histograms).map((row) => ['histogram', ...row] as const),
].map(([type, name, [labels, help]]) => ({ type, name, labels, help }));

const scopeOf = (labels: string): string => /^(workspace|upstream|)/.exec(labels)?.[0] ?? '';
const counterRows = Object.entries<Row<readonly string[] | null>>(counters);
/** Counters whose series begin together: those of a workspace on an upstream, of an upstream, and of the replica. */
const begunTogether = Map.groupBy(
  counterRows.filter(([name]) => !rare.has(name)).map(([name]) => name),
  (name) => scopeOf(counters[name as CounterName][0]),
);

export class Metrics {
  /** Of OpenMetrics, because prom-client ties exemplars to that. */
  readonly #registry = new Registry<OpenMetricsContentType>();
  readonly #counters = new Map<string, Counter>();
  readonly #gauges = new Map<Gauge, Reading>();
  readonly #histograms = new Map<string, Histogram>();
  /** What is written, by the names under which it was registered. */
  readonly #names: readonly string[];
  /** Upstreams on which series of a workspace's label have begun (`''` = of none), and with the name of a rare counter those of that. */
  readonly #begun = new Map<string, Map<string, string>>();

  constructor({ processMetrics = false }: MetricsOptions = {}) {
    this.#registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
    const named = (name: string, [labels, help]: Row<unknown>) => {
      const labelNames = labels.split(' ').filter((label) => label !== '');
      return { name, help, labelNames, registers: [this.#registry] };
    };
    for (const [name, row] of counterRows) this.#counters.set(name, new Counter(named(name, row)));
    for (const [name, row] of Object.entries(gauges)) this.#gauges.set(new Gauge(named(name, row)), row[2]);
    for (const [name, row] of Object.entries(histograms)) {
      const options = { ...named(name, row), buckets: row[2], enableExemplars: true } as const;
      this.#histograms.set(name, new Histogram(options));
    }
    this.begin({});
    if (processMetrics) collectDefaultMetrics({ register: this.#registry });
    // Gauges that prom-client names like counters: `promtool check metrics` refuses them.
    for (const what of ['handles', 'requests', 'resources'])
      this.#registry.removeSingleMetric(`nodejs_active_${what}_total`);
    const metrics = this.#registry.getMetricsAsArray();
    this.#names = metrics.map(({ name }) => name);
    // prom-client writes `_total` behind the names of counters itself.
    for (const metric of metrics) metric.name = metric.name.replace(/_total$/, '');
  }

  /** Begins the series of a workspace on an upstream, of an upstream, or of the replica; `name`: of a rare counter only. */
  begin({ workspace = '', upstream = '' }: Partial<LabelValues>, name?: CounterName): void {
    const begun = this.#begun.get(workspace) ?? new Map<string, string>();
    this.#begun.set(workspace, begun);
    const key = name === undefined ? upstream : `${upstream} ${name}`;
    if (begun.has(key)) return;
    begun.set(key, upstream);
    const by = { ...(workspace === '' ? {} : { workspace }), ...(upstream === '' ? {} : { upstream }) };
    const [scope = ''] = Object.keys(by);
    for (const each of name === undefined ? (begunTogether.get(scope) ?? []) : [name])
      for (const series of seriesOf(each, by)) this.#counters.get(each)?.inc(series, 0);
    if (scope !== 'upstream' || name !== undefined) return;
    for (const outcome of outcomes)
      this.#histograms.get('sluice_queue_wait_seconds')?.zero({ upstream, outcome });
    this.#histograms.get('sluice_upstream_seconds')?.zero({ upstream });
    this.#histograms.get('sluice_overhead_seconds')?.zero({ upstream });
  }

  /** A label may have been taken back meanwhile: its series begin anew. */
  count(name: CounterName, labels: LabelValues = {}): void {
    this.begin(labels, rare.has(name) ? name : undefined);
    this.#counters.get(name)?.inc(labels);
  }

  /** `traceId`: of a trace that exists. */
  observe(name: HistogramName, labels: LabelValues, ms: number, traceId: string | null = null): void {
    const exemplar = traceId === null ? {} : { exemplarLabels: { trace_id: traceId } };
    this.#histograms.get(name)?.observe({ labels, value: ms / 1_000, ...exemplar });
  }

  /** `code`: of our own refusal. */
  callEnded(by: WorkspaceLabels, outcome: CallOutcome, code: RefusalCode | null): void {
    this.count('sluice_requests_total', { ...by, outcome });
    if (outcome === 'shed' && code !== null) this.count('sluice_shed_total', { ...by, reason: code });
  }

  /** Removes every series of a label that was taken back. */
  release(workspace: string): void {
    const names = counterRows.filter(([, [labels]]) => scopeOf(labels) === 'workspace').map(([name]) => name);
    for (const upstream of this.#begun.get(workspace)?.values() ?? []) {
      for (const name of names)
        for (const series of seriesOf(name, { workspace, upstream }))
          this.#counters.get(name)?.remove(series);
    }
    this.#begun.delete(workspace);
  }

  /** Text of a scrape, with gauges as they are at this moment. */
  async page(format: MetricsFormat, scraped: Scraped): Promise<MetricsPage> {
    for (const [gauge, read] of this.#gauges) {
      gauge.reset();
      for (const [labels, value] of read(scraped)) gauge.set(labels, value);
    }
    const isOpen = format === 'openmetrics';
    const texts: string[] = [];
    for (const name of this.#names) {
      // A hundred workspaces on thirty upstreams are 60,000 series: calls do not wait for all of them.
      await setImmediate();
      const text = await this.#registry.getSingleMetricAsString(name);
      texts.push(isOpen ? text : plain(text, name.endsWith('_total')));
    }
    return isOpen
      ? { contentType: Registry.OPENMETRICS_CONTENT_TYPE, body: `${texts.join('\n')}\n# EOF\n` }
      : { contentType: Registry.PROMETHEUS_CONTENT_TYPE, body: `${texts.join('\n\n')}\n` };
  }
}

/** OpenMetrics text of a metric as Prometheus text: without exemplars, and a counter has its whole name above its series, too. */
function plain(text: string, isCounter: boolean): string {
  const bare = text.replace(/ # \{.*$/gm, '');
  return isCounter ? bare.replace(/^# \w+ \S+/gm, '$&_total') : bare;
}

function seriesOf(name: string, by: LabelValues): readonly LabelValues[] {
  const [labels, , values] = counters[name as CounterName];
  const last = labels.slice(labels.lastIndexOf(' ') + 1);
  return values?.map((value) => ({ ...by, [last]: value })) ?? [by];
}
