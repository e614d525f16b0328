/**
 * The dashboards: which panels, in which order, with which words. Owns their content; `panels.ts` owns the looks,
 * `generate.ts` writes the files. A panel that no decision depends on does not belong here.
 */
import {
  AnnotationQueryBuilder,
  DashboardBuilder,
  DashboardLinkBuilder,
  DashboardLinkType,
  DatasourceVariableBuilder,
  QueryVariableBuilder,
  RowBuilder,
  VariableRefresh,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { defaultWaits } from '../../src/config/defaults.ts';
import { datasource, figure, heatmap, lines, quantile } from './panels.ts';

const { maxWaitSeconds } = defaultWaits;

const guide = 'docs/operate/monitor.md';

function dashboard(title: string, uid: string, description: string) {
  return new DashboardBuilder(title)
    .uid(uid)
    .description(`${description} How to read it: ${guide}.`)
    .tags(['sluice', 'generated'])
    .time({ from: 'now-1h', to: 'now' })
    .refresh('10s')
    .timezone('browser')
    .readonly()
    .link(
      new DashboardLinkBuilder('Sluice')
        .type(DashboardLinkType.Dashboards)
        .tags(['sluice'])
        .asDropdown(true)
        .includeVars(true)
        .keepTime(true),
    )
    .annotation(
      new AnnotationQueryBuilder()
        .name('Configuration taken over')
        .datasource(datasource)
        .enable(true)
        .iconColor('blue')
        .expr('changes(sluice_config_last_reload_success_timestamp_seconds{namespace=~"$namespace"}[1m]) > 0'),
    )
    .withVariable(new DatasourceVariableBuilder('datasource').label('Data source').type('prometheus'))
    .withVariable(
      new QueryVariableBuilder('namespace')
        .label('Namespace')
        .datasource(datasource)
        .query('label_values(sluice_build_info, namespace)')
        .includeAll(true)
        .allValue('.*')
        .refresh(VariableRefresh.OnTimeRangeChanged),
    );
}

const rate = (metric: string, by: string, selector = ''): string =>
  `sum by (${by}) (rate(${metric}${selector}[$__rate_interval]))`;

const perMinute = (metric: string, selector = ''): string => `sum(rate(${metric}${selector}[$__rate_interval])) * 60`;

export const overview = dashboard('Sluice / Overview', 'sluice-overview', 'Can we raise our traffic?')
  .withRow(new RowBuilder('At a glance'))
  .withPanel(
    figure(
      { title: 'Can traffic be raised?', means: 'How many times the last hour’s traffic fits the tightest upstream. 1: no more. 0: calls were refused.', unit: 'short' },
      { expr: 'min(sluice_headroom_ratio)', legend: 'times' },
      { amber: 1.1, red: 1 },
      'more is better',
    ),
  )
  .withPanel(
    figure(
      { title: 'Calls waiting', means: 'All replicas together. Waiting is normal in a burst; a queue that does not shrink is not.', unit: 'short' },
      { expr: 'sum(sluice_queue_depth)', legend: 'waiting' },
      { amber: 50, red: 500 },
    ),
  )
  .withPanel(
    figure(
      { title: 'Longest waiting now', means: `The default wait of a call is ${maxWaitSeconds} s.`, unit: 's' },
      { expr: 'max(sluice_queue_oldest_seconds)', legend: 'oldest' },
      { amber: maxWaitSeconds / 3, red: 0.8 * maxWaitSeconds },
    ),
  )
  .withPanel(
    figure(
      { title: 'Absorbed a minute', means: 'Throttled responses that clients never saw. Many: the upstream is the limit, not Sluice.', unit: 'short' },
      { expr: perMinute('sluice_retries_absorbed_total'), legend: 'absorbed' },
      { amber: 60, red: 600 },
    ),
  )
  .withPanel(
    figure(
      { title: 'Refused a minute', means: 'Calls refused for lack of room or time. Each was told when to come back.', unit: 'short' },
      { expr: perMinute('sluice_shed_total'), legend: 'refused' },
      { amber: 1, red: 30 },
    ),
  )
  .withPanel(
    figure(
      { title: 'Replicas without Redis', means: 'Replicas that enforce their own share or refuse. Not 0: see the replica dashboard.', unit: 'short' },
      { expr: 'sum(sluice_limiter_mode{mode=~"local|deny"})', legend: 'degraded' },
      { amber: 1, red: 2 },
    ),
  )
  .withRow(new RowBuilder('How close to each limit'))
  .withPanel(
    lines(
      { title: 'Used share of each limit', means: 'The fullest bucket of each upstream, by dimension. 1 = nothing more leaves until it drains.', unit: 'percentunit' },
      [{ expr: 'max by (upstream, dimension) (sluice_bucket_used_ratio)', legend: '{{upstream}} {{dimension}}' }],
      { span: 12 },
    ),
  )
  .withPanel(
    lines(
      { title: 'Closed for', means: 'Seconds until a closed bucket opens: the upstream told everybody to wait.', unit: 's' },
      [{ expr: 'max by (upstream) (sluice_bucket_closed_seconds)', legend: '{{upstream}}' }],
      { span: 12 },
    ),
  )
  .withPanel(
    lines(
      { title: 'How much more fits', means: 'Times the last hour’s traffic, by upstream. 1: no more. 0: calls were refused. 10: ten times or more.', unit: 'short' },
      [{ expr: 'min by (upstream) (sluice_headroom_ratio)', legend: '{{upstream}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Fullest ceiling', means: 'Your own limit of a workspace, by upstream and window. 1 = its calls wait though the upstream may have room.', unit: 'percentunit' },
      [{ expr: 'max by (upstream, window) (sluice_ceiling_used_ratio)', legend: '{{upstream}} {{window}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Paused by an operator', means: '1 while nobody is sent to the upstream, because somebody said so.', unit: 'short' },
      [{ expr: 'max by (upstream) (sluice_upstream_paused)', legend: '{{upstream}}' }],
    ),
  )
  .withRow(new RowBuilder('Who waits, and how long'))
  .withPanel(
    lines(
      { title: 'Calls waiting', means: 'By upstream, all replicas.', unit: 'short' },
      [{ expr: 'sum by (upstream) (sluice_queue_depth)', legend: '{{upstream}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Wait of calls', means: `p50 and p95 of all calls that ended. A p95 near ${maxWaitSeconds} s: refusals come next.`, unit: 's' },
      [
        { expr: quantile(0.5, 'sluice_queue_wait_seconds', 'upstream'), legend: '{{upstream}} p50' },
        { expr: quantile(0.95, 'sluice_queue_wait_seconds', 'upstream'), legend: '{{upstream}} p95' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Calls by outcome', means: 'Everything but ok deserves a look.', unit: 'reqps' },
      [{ expr: rate('sluice_requests_total', 'outcome'), legend: '{{outcome}}' }],
      { stacked: true },
    ),
  )
  .withRow(new RowBuilder('What was absorbed, what was refused'))
  .withPanel(
    lines(
      { title: 'Upstream throttles', means: 'Received, absorbed, and passed on to clients. The gap between the first two is what clients saw.', unit: 'reqps' },
      [
        { expr: rate('sluice_upstream_throttles_total', 'kind'), legend: 'received, {{kind}}' },
        { expr: 'sum(rate(sluice_retries_absorbed_total[$__rate_interval]))', legend: 'absorbed' },
        { expr: 'sum(rate(sluice_requests_total{outcome="throttled"}[$__rate_interval]))', legend: 'passed on' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Refusals by reason', means: 'queue_full and wait_* : too much traffic for the limit. day_quota_exhausted: until the quota returns. limiter_unavailable: Redis.', unit: 'reqps' },
      [{ expr: rate('sluice_shed_total', 'reason'), legend: '{{reason}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'What holds refused calls', means: 'Share of the 429s by heldBy. ceiling_*: our own limit. closed: the upstream. serialized, queue: the line itself.', unit: 'percentunit' },
      [
        {
          expr: 'sum by (held_by) (rate(sluice_held_refusals_total[$__rate_interval])) / scalar(clamp_min(sum(rate(sluice_held_refusals_total[$__rate_interval])), 0.000001))',
          legend: '{{held_by}}',
        },
      ],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Refusing for good', means: '1 while an open breaker answers calls in the upstream’s stead: no credit, a frozen account.', unit: 'short' },
      [{ expr: 'max by (upstream) (sluice_breaker_open)', legend: '{{upstream}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Failed attempts', means: 'By reason: the way to the upstream, not its responses. Empty where none fails.', unit: 'reqps' },
      [{ expr: `${rate('sluice_upstream_failures_total', 'upstream, reason')} > 0`, legend: '{{upstream}} {{reason}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Credentials end in', means: 'Time until the token in use that ends first ends. Renewed in time it is a saw; near 0 nobody could renew it.', unit: 's' },
      [{ expr: 'min by (upstream) (sluice_credential_expires_seconds)', legend: '{{upstream}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Repeats', means: 'Calls that cost the upstream nothing: joined to an equal call under way, or answered with what was kept. Made again: a replica died.', unit: 'reqps' },
      [
        { expr: 'sum(rate(sluice_repeats_joined_total[$__rate_interval]))', legend: 'joined' },
        { expr: 'sum(rate(sluice_idempotent_replays_total[$__rate_interval]))', legend: 'kept response' },
        { expr: 'sum(rate(sluice_repeats_made_again_total[$__rate_interval]))', legend: 'made again' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Ten busiest workspaces', means: 'By label; beyond 100 labels a workspace is in other. Who presses?', unit: 'reqps' },
      [{ expr: `topk(10, ${rate('sluice_requests_total', 'workspace')})`, legend: '{{workspace}}' }],
    ),
  );

const one = '{upstream="$upstream"}';
const with_ = (more: string): string => `{upstream="$upstream",${more}}`;

export const upstream = dashboard('Sluice / Upstream', 'sluice-upstream', 'One upstream in detail.')
  .withVariable(
    new QueryVariableBuilder('upstream')
      .label('Upstream')
      .datasource(datasource)
      .query('label_values(sluice_queue_depth, upstream)')
      .refresh(VariableRefresh.OnTimeRangeChanged),
  )
  .withRow(new RowBuilder('Limit'))
  .withPanel(
    lines(
      { title: 'Used share by dimension', means: 'Which dimension fills first decides what to ask the provider for.', unit: 'percentunit' },
      [{ expr: `max by (dimension) (sluice_bucket_used_ratio${one})`, legend: '{{dimension}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Closed for', means: 'Seconds until the bucket opens.', unit: 's' },
      [{ expr: `max(sluice_bucket_closed_seconds${one})`, legend: 'closed' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'How much more fits', means: 'Times the last hour’s traffic. 1: no more. 0: calls were refused. 10: ten times or more.', unit: 'short' },
      [{ expr: `min(sluice_headroom_ratio${one})`, legend: 'times' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Fullest ceiling, and pauses', means: 'Your own limit of a workspace by window, and 1 while an operator has paused the upstream.', unit: 'percentunit' },
      [
        { expr: `max by (window) (sluice_ceiling_used_ratio${one})`, legend: '{{window}}' },
        { expr: `max(sluice_upstream_paused${one})`, legend: 'paused' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Waiting and in flight', means: 'All replicas. In flight 1 with many waiting: calls are serialized.', unit: 'short' },
      [
        { expr: `sum(sluice_queue_depth${one})`, legend: 'waiting' },
        { expr: `sum(sluice_in_flight${one})`, legend: 'in flight' },
      ],
    ),
  )
  .withRow(new RowBuilder('Waits'))
  .withPanel(
    heatmap(
      { title: 'Waits of calls', means: 'Each column is the distribution of waits in that time. A band that rises is a queue that grows.', unit: 's' },
      { expr: `sum by (le) (increase(sluice_queue_wait_seconds_bucket${one}[$__rate_interval]))`, legend: '{{le}}' },
    ),
  )
  .withPanel(
    lines(
      { title: 'Wait quantiles', means: 'p50, p95, p99 of all calls that ended, and the call waiting longest now.', unit: 's' },
      [
        ...[0.5, 0.95, 0.99].map((share) => ({
          expr: quantile(share, 'sluice_queue_wait_seconds', 'upstream', one),
          legend: `p${share * 100}`,
        })),
        { expr: `max(sluice_queue_oldest_seconds${one})`, legend: 'longest now' },
      ],
      { span: 12 },
    ),
  )
  .withRow(new RowBuilder('Responses'))
  .withPanel(
    lines(
      { title: 'Calls by outcome', means: 'upstream_error: the upstream said so. failed: it could not be reached or broke.', unit: 'reqps' },
      [{ expr: rate('sluice_requests_total', 'outcome', one), legend: '{{outcome}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Throttles received and absorbed', means: 'permanent throttles cannot be absorbed: quota, spend cap, request too large.', unit: 'reqps' },
      [
        { expr: rate('sluice_upstream_throttles_total', 'kind', one), legend: 'received, {{kind}}' },
        { expr: `sum(rate(sluice_retries_absorbed_total${one}[$__rate_interval]))`, legend: 'absorbed' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Refusals by reason', means: 'Told at once, with the true time to come back.', unit: 'reqps' },
      [{ expr: rate('sluice_shed_total', 'reason', one), legend: '{{reason}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Upstream time to the head of its response', means: 'Slow responses hold places where calls are serialized.', unit: 's' },
      [0.5, 0.95, 0.99].map((share) => ({
        expr: quantile(share, 'sluice_upstream_seconds', 'upstream', one),
        legend: `p${share * 100}`,
      })),
    ),
  )
  .withPanel(
    lines(
      { title: 'Time Sluice adds', means: 'Beside waiting. Above some 10 ms a replica is short of CPU.', unit: 's' },
      [0.5, 0.95, 0.99].map((share) => ({
        expr: quantile(share, 'sluice_overhead_seconds', 'upstream', one),
        legend: `p${share * 100}`,
      })),
    ),
  )
  .withPanel(
    lines(
      { title: 'Repeats', means: 'By what they got: the response of a call under way, a kept response, or another call.', unit: 'reqps' },
      [
        { expr: `sum(rate(sluice_repeats_joined_total${one}[$__rate_interval]))`, legend: 'joined' },
        { expr: `sum(rate(sluice_idempotent_replays_total${one}[$__rate_interval]))`, legend: 'kept response' },
        { expr: `sum(rate(sluice_repeats_made_again_total${one}[$__rate_interval]))`, legend: 'made again' },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Ten busiest workspaces', means: 'Sent calls by label: who uses the limit.', unit: 'reqps' },
      [
        {
          expr: `topk(10, ${rate('sluice_requests_total', 'workspace', with_('outcome!~"shed|rejected"'))})`,
          legend: '{{workspace}}',
        },
      ],
    ),
  );

export const replicas = dashboard('Sluice / Replicas and Redis', 'sluice-replicas', 'Health of the gateway itself.')
  .withRow(new RowBuilder('Limiter'))
  .withPanel(
    lines(
      { title: 'Replicas by limiter mode', means: 'redis is normal with Redis, memory without. local or deny: Redis is away.', unit: 'short' },
      [{ expr: 'sum by (mode) (sluice_limiter_mode)', legend: '{{mode}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Leases lost', means: 'In-flight leases lost before they were settled: two calls of one workspace may have overlapped.', unit: 'short' },
      [{ expr: 'sum by (reason) (increase(sluice_leases_lost_total[$__rate_interval]))', legend: '{{reason}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Configuration in force', means: '0: the latest change was refused, and the settings before it hold. Marks on all dashboards: when one was taken over.', unit: 'short' },
      [{ expr: 'min(sluice_config_last_reload_successful)', legend: 'latest in force' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Versions', means: 'Replicas by version; two of them at once only during an update.', unit: 'short' },
      [{ expr: 'count by (version) (sluice_build_info)', legend: '{{version}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    figure(
      { title: 'Sent after the client left', means: 'Must stay 0. Anything else is a bug: report it.', unit: 'short' },
      { expr: 'sum(sluice_dispatched_after_client_gone_total)', legend: 'calls' },
      { amber: 1, red: 1 },
    ),
  )
  .withRow(new RowBuilder('Redis'))
  .withPanel(
    lines(
      { title: 'Command time, p99', means: 'As replicas see it. 250 ms is the timeout, after which a replica goes its own way.', unit: 's' },
      [{ expr: quantile(0.99, 'sluice_redis_command_seconds', 'command'), legend: '{{command}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Commands', means: 'Commands a second.', unit: 'ops' },
      [{ expr: rate('sluice_redis_command_seconds_count', 'command'), legend: '{{command}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Errors', means: 'By kind. timeout: Redis or the network is slow. connection: it is away.', unit: 'ops' },
      [{ expr: rate('sluice_redis_errors_total', 'kind'), legend: '{{kind}}' }],
    ),
  )
  .withRow(new RowBuilder('Replicas'))
  .withPanel(
    lines(
      { title: 'Calls waiting', means: 'One replica far above the others: its load balancer or its clients stick to it.', unit: 'short' },
      [{ expr: 'sum by (instance) (sluice_queue_depth)', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Calls in flight', means: 'By replica.', unit: 'short' },
      [{ expr: 'sum by (instance) (sluice_in_flight)', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Held request bodies', means: 'Bytes in memory. At the configured bound calls are refused as overloaded.', unit: 'bytes' },
      [{ expr: 'sum by (instance) (sluice_queue_bytes)', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'CPU', means: 'A replica uses one core at most: near 1 add replicas.', unit: 'percentunit' },
      [
        {
          expr: 'rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) sluice_queue_bytes',
          legend: '{{instance}}',
        },
      ],
    ),
  )
  .withPanel(
    lines(
      { title: 'Memory', means: 'Resident. Held calls cost memory beside their bodies: docs/operate/size.md.', unit: 'bytes' },
      [{ expr: 'process_resident_memory_bytes and on (instance) sluice_queue_bytes', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Event loop lag, p99', means: 'Above 50 ms timers and grants are late: add replicas.', unit: 's' },
      [{ expr: 'nodejs_eventloop_lag_p99_seconds and on (instance) sluice_queue_bytes', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Turned away, by bound', means: 'Calls refused as overloaded: more replicas, or docs/operate/size.md#overload.', unit: 'reqps' },
      [{ expr: rate('sluice_overload_total', 'bound'), legend: '{{bound}}' }],
      { stacked: true },
    ),
  )
  .withPanel(
    lines(
      { title: 'Share shed for load', means: 'Share of new calls refused because the event loop is late or memory is full. 0 is normal.', unit: 'percentunit' },
      [{ expr: 'max by (instance) (sluice_shedding_ratio)', legend: '{{instance}}' }],
    ),
  )
  .withPanel(
    lines(
      { title: 'Connections and open calls', means: 'Of clients, by replica.', unit: 'short' },
      [
        { expr: 'sum by (instance) (sluice_connections)', legend: '{{instance}} connections' },
        { expr: 'sum by (instance) (sluice_open_calls)', legend: '{{instance}} calls' },
      ],
    ),
  );

/** File name → dashboard. */
export const dashboards = { overview, upstream, replicas };
