/**
 * The instruments: names, types, labels, units and bucket boundaries of every `sluice_*` metric, in one place. Names and labels are an
 * interface: dashboards depend on them. Histograms carry no workspace.
 */
import { Counter, Gauge, Histogram, type OpenMetricsContentType, type Registry } from 'prom-client';

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

/** Creates all instruments in `registry`. Histograms take a `trace_id` as exemplar, which is written as OpenMetrics only. */
export function createInstruments(registry: Registry<OpenMetricsContentType>) {
  const registers = [registry];
  const counter = <L extends string>(name: string, help: string, labelNames: L[] = []) =>
    new Counter({ name, help, labelNames, registers });
  const gauge = <L extends string>(name: string, help: string, labelNames: L[] = []) =>
    new Gauge({ name, help, labelNames, registers });
  const histogram = <L extends string>(name: string, help: string, labelNames: L[], buckets: number[]) =>
    new Histogram<L | 'trace_id'>({ name, help, labelNames, buckets, registers, enableExemplars: true });

  return {
    buildInfo: gauge('sluice_build_info', 'Always 1: which version runs, on which Node.', [
      'version',
      'node',
    ]),
    reloadSuccessful: gauge(
      'sluice_config_last_reload_successful',
      'Whether the latest configuration is in use: 0 after one was refused.',
    ),
    reloadSucceededAt: gauge(
      'sluice_config_last_reload_success_timestamp_seconds',
      'When the configuration in use was read.',
    ),
    ceilingUsed: gauge(
      'sluice_ceiling_used_ratio',
      'Used share of the fullest ceiling of a workspace, as its latest call on this replica met it.',
      ['upstream', 'window'],
    ),
    headroom: gauge(
      'sluice_headroom_ratio',
      'How many times the last hour’s traffic fits, 10 at most: 1 = no more, 0 = calls were refused. Absent: not known.',
      ['upstream'],
    ),
    upstreamPaused: gauge('sluice_upstream_paused', 'Whether an operator has paused the upstream.', [
      'upstream',
    ]),
    requests: counter('sluice_requests_total', 'Calls ended, by how they ended.', [
      'workspace',
      'upstream',
      'outcome',
    ]),
    queueWait: histogram(
      'sluice_queue_wait_seconds',
      'Time a call was held before it was sent or refused, all its waits together.',
      ['upstream', 'outcome'],
      waitBuckets,
    ),
    wouldWait: histogram(
      'sluice_would_wait_seconds',
      'Time for which limits would have held a call that was only observed.',
      ['upstream'],
      waitBuckets,
    ),
    wouldRefuse: counter('sluice_would_refuse_total', 'Calls only observed that limits would have refused.', [
      'workspace',
      'upstream',
      'reason',
    ]),
    queueDepth: gauge('sluice_queue_depth', 'Calls waiting on this replica.', ['upstream']),
    queueOldest: gauge('sluice_queue_oldest_seconds', 'Age of the call waiting longest on this replica.', [
      'upstream',
    ]),
    queueBytes: gauge(
      'sluice_queue_bytes',
      'Bytes held in memory for calls under way: request bodies, and responses that a repeat may join.',
    ),
    keptBytes: gauge(
      'sluice_kept_response_bytes',
      'Bytes of ended responses that are kept in memory for repeats.',
    ),
    headBytes: gauge(
      'sluice_head_bytes',
      'Bytes of the heads of open calls, and of heads that are not complete.',
    ),
    connections: gauge('sluice_connections', 'Client connections open on this replica.'),
    openCalls: gauge('sluice_open_calls', 'Calls held and in flight on this replica.'),
    eventLoopDelay: gauge(
      'sluice_event_loop_delay_seconds',
      'Delay of the event loop that stood over the last half second.',
    ),
    memoryUsed: gauge(
      'sluice_memory_used_ratio',
      'Used share of the heap or of the container, whichever is fuller, over the last half second.',
    ),
    shedding: gauge('sluice_shedding_ratio', 'Share of new calls refused because of load, 0 to 1.'),
    overloads: counter('sluice_overload_total', 'Calls and connections refused as too many, by bound.', [
      'bound',
    ]),
    logLinesLeftOut: counter(
      'sluice_log_lines_left_out_total',
      'Calls without a valid API key that got no log line, because few of them are written each minute.',
    ),
    inFlight: gauge('sluice_in_flight', 'Calls sent by this replica whose response has not ended.', [
      'upstream',
    ]),
    throttles: counter('sluice_upstream_throttles_total', 'Throttled responses received from the upstream.', [
      'workspace',
      'upstream',
      'kind',
    ]),
    absorbed: counter('sluice_retries_absorbed_total', 'Throttled responses the client never saw.', [
      'workspace',
      'upstream',
    ]),
    shed: counter('sluice_shed_total', 'Calls refused for lack of room or time.', [
      'workspace',
      'upstream',
      'reason',
    ]),
    heldRefusals: counter('sluice_held_refusals_total', 'Calls refused with 429, by what held them back.', [
      'upstream',
      'held_by',
    ]),
    bucketUsed: gauge(
      'sluice_bucket_used_ratio',
      'Used share of the fullest bucket, 0 to 1 (above 1: overdrawn).',
      ['upstream', 'dimension'],
    ),
    bucketClosed: gauge(
      'sluice_bucket_closed_seconds',
      'Time until the longest-closed bucket opens; 0 = open.',
      ['upstream'],
    ),
    breakerOpen: gauge(
      'sluice_breaker_open',
      '1 while calls are answered in the stead of an upstream that refuses them for good.',
      ['upstream'],
    ),

    failures: counter('sluice_upstream_failures_total', 'Attempts that failed, by why.', [
      'upstream',
      'reason',
    ]),
    upstreamTime: histogram(
      'sluice_upstream_seconds',
      'Per attempt: from sending until the head of the response.',
      ['upstream'],
      upstreamBuckets,
    ),
    overhead: histogram(
      'sluice_overhead_seconds',
      'Per call: time Sluice added beside waiting, reading the request body and the upstream.',
      ['upstream'],
      overheadBuckets,
    ),
    limiterMode: gauge('sluice_limiter_mode', '1 for the mode the limiter is in, 0 for the others.', [
      'mode',
    ]),
    redisTime: histogram(
      'sluice_redis_command_seconds',
      'Time of a limiter command on Redis, as seen by this replica.',
      ['command'],
      redisBuckets,
    ),
    redisErrors: counter('sluice_redis_errors_total', 'Limiter commands that Redis did not carry out.', [
      'kind',
    ]),
    leasesLost: counter('sluice_leases_lost_total', 'In-flight leases lost before they were settled.', [
      'reason',
    ]),
    credentialExpires: gauge(
      'sluice_credential_expires_seconds',
      'Time until the upstream credential in use that ends first ends; 0 = none could be fetched.',
      ['upstream'],
    ),
    credentialRenewals: counter(
      'sluice_credential_renewals_total',
      'Renewals of upstream credentials, by how they ended.',
      ['upstream', 'outcome'],
    ),
    replays: counter(
      'sluice_idempotent_replays_total',
      'Calls answered with what was kept of an earlier call with the same idempotency key.',
      ['upstream'],
    ),
    joins: counter(
      'sluice_repeats_joined_total',
      'Calls that got the response of a call under way that they repeat, on any replica.',
      ['upstream'],
    ),
    madeAgain: counter(
      'sluice_repeats_made_again_total',
      'Calls made again for their repeats, because the replica that had made them is gone, or Redis had lost their claims.',
      ['upstream'],
    ),
    sentAfterGone: counter(
      'sluice_dispatched_after_client_gone_total',
      'Calls sent although their client had left. Must stay 0.',
    ),
  };
}

export type Instruments = ReturnType<typeof createInstruments>;
