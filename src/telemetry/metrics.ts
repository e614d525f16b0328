/**
 * Every `sluice_*` metric: names, labels, helps and bucket boundaries in three tables. Names and labels are an interface: dashboards depend on
 * them. Histograms carry no workspace.
 *
 * Invariants: no label value comes from outside (labels of workspaces are ours, upstreams are configured names, the rest are
 * closed sets); the series of a label end when the label is taken back.
 */
import { setImmediate } from 'node:timers/promises';
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { MeterName } from '../call.ts';
import { failureReasons, heldByReasons, limitRefusals, overloadBounds, shedReasons } from '../errors.ts';
import { packageVersion } from '../version.ts';
import { leaseLostReasons, limiterModes, outcomes, redisErrorKinds, renewalOutcomes } from './events.ts';
import type {
  ConfigurationState,
  LimiterHealth,
  LivePressure,
  PressureSource,
  ProcessPressure,
} from './events.ts';

/** `prometheus`: text format 0.0.4. `openmetrics`: OpenMetrics 1.0.0. */
export type MetricsFormat = 'prometheus' | 'openmetrics';

type Row<Last> = readonly [labels: string, help: string, last: Last];
type LabelValues = Readonly<Record<string, string>>;

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

/** What gauges are read from when they are scraped. */
export interface Scraped {
  readonly source: PressureSource;
  readonly live: readonly LivePressure[];
  readonly health: LimiterHealth;
  readonly configuration: ConfigurationState;
  readonly headrooms: ReadonlyMap<string, number>;
}
type Reading = (now: Scraped) => Iterable<readonly [LabelValues, number]>;

/** Of each configured upstream. */
const each =
  (read: (live: LivePressure, source: PressureSource) => number): Reading =>
  ({ live, source }) =>
    live.map((one) => [{ upstream: one.upstream }, read(one, source)]);
const ofProcess =
  (read: (process: ProcessPressure) => number): Reading =>
  ({ source }) => [[{}, read(source.process())]];

const isPaused = each(({ upstream }, source) => (source.pauseOf(upstream) === null ? 0 : 1));
const isRefusing = each(({ upstream }, source) => Math.min(1, source.breakers(upstream).length));
const secondsClosed = each(({ upstream }, source) => {
  const own = source.buckets().filter((one) => one.upstream === upstream);
  return Math.max(0, ...own.map(({ snapshot }) => snapshot.closedMs / 1_000));
});

/** `tokens` is the fullest of all, input and output tokens, and `requests` of images and all windows shorter than a day. */
const dimensionOf = (meter: MeterName): string =>
  meter.replace(/^\w+_tokens$/, 'tokens').replace(/^images$|^requests_(?:burst|hour)$/, 'requests');

/** Dimensions that an upstream's kind has are there from the start. */
const bucketsUsed: Reading = ({ live, source }) =>
  live.flatMap(({ upstream, dimensions }) => {
    const used = new Map<string, number>(dimensions.map((dimension) => [dimension, 0]));
    const own = source.buckets().filter((one) => one.upstream === upstream);
    for (const { meter, level, limit } of own.flatMap(({ snapshot }) => snapshot.meters)) {
      const dimension = dimensionOf(meter);
      used.set(dimension, Math.max(used.get(dimension) ?? 0, limit > 0 ? level / limit : 0));
    }
    return Array.from(used, ([dimension, ratio]) => [{ upstream, dimension }, ratio] as const);
  });

const ceilingsUsed: Reading = ({ live, source }) =>
  live.flatMap(({ upstream }) => {
    const own = source.ceilingsUsed().filter((one) => one.upstream === upstream);
    const fullest = (window: 'minute' | 'day') => Math.max(0, ...own.map((one) => one[window]));
    return (['minute', 'day'] as const).map((window) => [{ upstream, window }, fullest(window)] as const);
  });

const headrooms: Reading = (now) => Array.from(now.headrooms, ([upstream, n]) => [{ upstream }, n] as const);

/** Of several credentials of an upstream the last one set counts: that which ends first. */
const credentialEnds: Reading = ({ source }) =>
  source
    .credentials()
    .toSorted((a, b) => b.expiresInMs - a.expiresInMs)
    .map(({ upstream, expiresInMs }) => [{ upstream }, expiresInMs / 1_000] as const);

const modes: Reading = ({ health }) =>
  limiterModes.map((mode) => [{ mode }, mode === health.mode ? 1 : 0] as const);
const isReloaded: Reading = ({ configuration }) => [[{}, configuration.refusedAt === null ? 1 : 0]];
const reloadedAt: Reading = ({ configuration }) => [[{}, configuration.inForceSince / 1_000]];
const build: Reading = () => [[{ version: packageVersion(), node: process.versions.node }, 1]];

/** Upstreams that are no longer configured disappear. */
const gauges: Readonly<Record<string, Row<Reading>>> = {
  sluice_queue_depth: ['upstream', 'Calls waiting on this replica.', each((one) => one.waiting)],
  sluice_queue_oldest_seconds: ['upstream', 'Age of the oldest waiting call.', each((u) => u.oldestMs / 1e3)],
  sluice_in_flight: ['upstream', 'Calls sent whose response has not ended.', each((one) => one.inFlight)],
  sluice_upstream_paused: ['upstream', 'Whether an operator has paused the upstream.', isPaused],
  sluice_breaker_open: ['upstream', '1 while calls are answered for one that refuses them.', isRefusing],
  sluice_bucket_closed_seconds: ['upstream', 'Time until the longest-closed bucket opens.', secondsClosed],
  sluice_bucket_used_ratio: ['upstream dimension', 'Used share of the fullest bucket.', bucketsUsed],
  sluice_ceiling_used_ratio: ['upstream window', 'Used share of the fullest ceiling.', ceilingsUsed],
  sluice_headroom_ratio: ['upstream', 'How many times the last hour’s traffic fits, to 10.', headrooms],
  sluice_credential_expires_seconds: ['upstream', 'Time until a credential ends.', credentialEnds],
  sluice_queue_bytes: ['', 'Bytes held for calls under way.', ofProcess((now) => now.heldBytes)],
  sluice_kept_response_bytes: ['', 'Bytes kept for repeats.', ofProcess((now) => now.keptBytes)],
  sluice_head_bytes: ['', 'Bytes of heads of requests.', ofProcess((now) => now.headBytes)],
  sluice_connections: ['', 'Client connections.', ofProcess((now) => now.connections)],
  sluice_open_calls: ['', 'Calls held and in flight.', ofProcess((now) => now.openCalls)],
  sluice_event_loop_delay_seconds: ['', 'Event loop’s delay.', ofProcess((p) => p.eventLoopDelayMs / 1e3)],
  sluice_memory_used_ratio: ['', 'Used share of heap or container.', ofProcess((now) => now.memoryRatio)],
  sluice_shedding_ratio: ['', 'Share of new calls refused for load.', ofProcess((now) => now.sheddingShare)],
  sluice_limiter_mode: ['mode', '1 for the mode the limiter is in, 0 for the others.', modes],
  sluice_config_last_reload_successful: ['', '0 after a configuration was refused.', isReloaded],
  sluice_config_last_reload_success_timestamp_seconds: ['', 'When that in use was read.', reloadedAt],
  sluice_build_info: ['version node', 'Always 1: which version runs, on which Node.', build],
};

/** All metrics with their types, for the reference. */
export const described = [
  ...Object.entries(counters).map((row) => ['counter', ...row] as const),
  ...Object.entries(gauges).map((row) => ['gauge', ...row] as const),
  ...Object.entries(histograms).map((row) => ['histogram', ...row] as const),
].map(([type, name, [labels, help]]) => ({ type, name, labels, help }));

/** Counters with the labels of all their series, of a workspace on an upstream, of an upstream, or of the replica. */
const counterRows = Object.entries<Row<readonly string[] | null>>(counters).map(([name, row]) => {
  const [labels, , values] = row;
  const last = labels.slice(labels.lastIndexOf(' ') + 1);
  const series = (by: LabelValues) => values?.map((value) => ({ ...by, [last]: value })) ?? [by];
  return { name, row, scope: /^(workspace|upstream|)/.exec(labels)?.[0], series };
});

/** `workspace`, `upstream`: empty = of none. */
const labelsOf = (workspace: string, upstream: string): LabelValues =>
  workspace === '' ? (upstream === '' ? {} : { upstream }) : { workspace, upstream };

export type Metrics = ReturnType<typeof createMetrics>;

/** `processMetrics`: process and Node metrics too. Off in tests. */
export function createMetrics({ processMetrics = false }: { readonly processMetrics?: boolean } = {}) {
  const registry = new Registry();
  const named = (name: string, [labels, help]: Row<unknown>) => {
    const labelNames = labels.split(' ').filter((label) => label !== '');
    return { name, help, labelNames, registers: [registry] };
  };
  const counterOf = new Map(counterRows.map(({ name, row }) => [name, new Counter(named(name, row))]));
  const readings = Object.entries(gauges).map(
    ([name, row]) => [new Gauge(named(name, row)), row[2]] as const,
  );
  const histogramOf = new Map(
    Object.entries(histograms).map(([name, row]) => [
      name,
      new Histogram({ ...named(name, row), buckets: row[2] }),
    ]),
  );
  /** Upstreams on which series of a workspace's label have begun; empty names: of none. */
  const begun = new Map<string, Set<string>>();

  /** Begins the series of a workspace on an upstream, of an upstream, or of the replica; empty names: of none. */
  function begin(workspace: string, upstream: string): void {
    const known = begun.get(workspace) ?? new Set();
    if (known.has(upstream)) return;
    begun.set(workspace, known.add(upstream));
    const by = labelsOf(workspace, upstream);
    const scope = Object.keys(by)[0] ?? '';
    for (const row of counterRows)
      // Few upstreams are only observed: those count their own series (`reckoned` of telemetry).
      if (row.scope === scope && row.name !== 'sluice_would_refuse_total')
        for (const series of row.series(by)) counterOf.get(row.name)?.inc(series, 0);
    if (scope !== 'upstream') return;
    for (const outcome of outcomes) histogramOf.get('sluice_queue_wait_seconds')?.zero({ upstream, outcome });
    for (const name of ['sluice_upstream_seconds', 'sluice_overhead_seconds'])
      histogramOf.get(name)?.zero({ upstream });
  }

  begin('', '');
  if (processMetrics) collectDefaultMetrics({ register: registry });
  // Gauges that prom-client names like counters: `promtool check metrics` refuses them.
  for (const what of ['handles', 'requests', 'resources'])
    registry.removeSingleMetric(`nodejs_active_${what}_total`);

  return {
    begin,

    /** A label may have been taken back meanwhile: its series begin anew. */
    count(name: CounterName, labels: LabelValues = {}, by = 1): void {
      begin(labels['workspace'] ?? '', labels['upstream'] ?? '');
      counterOf.get(name)?.inc(labels, by);
    },

    observe(name: keyof typeof histograms, labels: LabelValues, ms: number): void {
      histogramOf.get(name)?.observe(labels, ms / 1_000);
    },

    /** Removes every series of a label that was taken back. */
    release(workspace: string): void {
      for (const upstream of begun.get(workspace) ?? [])
        for (const { name, scope, series } of counterRows)
          if (scope === 'workspace')
            for (const labels of series({ workspace, upstream })) counterOf.get(name)?.remove(labels);
      begun.delete(workspace);
    },

    /** Text of a scrape and its content type, with gauges as they are at this moment. */
    async page(format: MetricsFormat, scraped: Scraped) {
      for (const [gauge, read] of readings) {
        gauge.reset();
        for (const [labels, value] of read(scraped)) gauge.set(labels, value);
      }
      const texts: string[] = [];
      for (const { name } of registry.getMetricsAsArray()) {
        // A hundred workspaces on thirty upstreams are 60,000 series: calls do not wait for all of them.
        await setImmediate();
        texts.push(await registry.getSingleMetricAsString(name));
      }
      const body = `${texts.join('\n')}\n`;
      if (format === 'prometheus') return { contentType: Registry.PROMETHEUS_CONTENT_TYPE, body };
      // What stands above the series of a counter there has the name without its ending.
      const open = `${body.replace(/^(# \w+ \S+)_total /gm, '$1 ')}# EOF\n`;
      return { contentType: Registry.OPENMETRICS_CONTENT_TYPE, body: open };
    },
  };
}
