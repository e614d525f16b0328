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
import { datasource, figure, heatmap, lines, quantile, type Panel, type Queries } from './panels.ts';

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

/** Quantiles of a histogram of the upstream that is shown. */
const quantiles = (metric: string): Queries =>
  Object.fromEntries([0.5, 0.95, 0.99].map((share) => [`p${share * 100}`, quantile(share, metric, 'upstream', one)]));

/** The dashboard with these panels, in rows below their titles. */
function filled(builder: DashboardBuilder, rows: Readonly<Record<string, readonly Panel[]>>): DashboardBuilder {
  for (const [title, panels] of Object.entries(rows)) {
    builder.withRow(new RowBuilder(title));
    for (const panel of panels) builder.withPanel(panel);
  }
  return builder;
}

export const overview = filled(dashboard('Sluice / Overview', 'sluice-overview', 'Can we raise our traffic?'), {
  'At a glance': [
    figure('Can traffic be raised?', 'How many times the last hour’s traffic fits the tightest upstream. 1: no more. 0: calls were refused.', 'short',
      { times: 'min(sluice_headroom_ratio)' }, { amber: 1.1, red: 1 }, 'more is better'),
    figure('Calls waiting', 'All replicas together. Waiting is normal in a burst; a queue that does not shrink is not.', 'short',
      { waiting: 'sum(sluice_queue_depth)' }, { amber: 50, red: 500 }),
    figure('Longest waiting now', `The default wait of a call is ${maxWaitSeconds} s.`, 's',
      { oldest: 'max(sluice_queue_oldest_seconds)' }, { amber: maxWaitSeconds / 3, red: 0.8 * maxWaitSeconds }),
    figure('Absorbed a minute', 'Throttled responses that clients never saw. Many: the upstream is the limit, not Sluice.', 'short',
      { absorbed: perMinute('sluice_retries_absorbed_total') }, { amber: 60, red: 600 }),
    figure('Refused a minute', 'Calls refused for lack of room or time. Each was told when to come back.', 'short',
      { refused: perMinute('sluice_shed_total') }, { amber: 1, red: 30 }),
    figure('Replicas without Redis', 'Replicas that enforce their own share or refuse. Not 0: see the replica dashboard.', 'short',
      { degraded: 'sum(sluice_limiter_mode{mode=~"local|deny"})' }, { amber: 1, red: 2 }),
  ],
  'How close to each limit': [
    lines('Used share of each limit', 'The fullest bucket of each upstream, by dimension. 1 = nothing more leaves until it drains.', 'percentunit',
      { '{{upstream}} {{dimension}}': 'max by (upstream, dimension) (sluice_bucket_used_ratio)' }, { span: 12 }),
    lines('Closed for', 'Seconds until a closed bucket opens: the upstream told everybody to wait.', 's',
      { '{{upstream}}': 'max by (upstream) (sluice_bucket_closed_seconds)' }, { span: 12 }),
    lines('How much more fits', 'Times the last hour’s traffic, by upstream. 1: no more. 0: calls were refused. 10: ten times or more.', 'short',
      { '{{upstream}}': 'min by (upstream) (sluice_headroom_ratio)' }),
    lines('Fullest ceiling', 'Your own limit of a workspace, by upstream and window. 1 = its calls wait though the upstream may have room.', 'percentunit',
      { '{{upstream}} {{window}}': 'max by (upstream, window) (sluice_ceiling_used_ratio)' }),
    lines('Paused by an operator', '1 while nobody is sent to the upstream, because somebody said so.', 'short',
      { '{{upstream}}': 'max by (upstream) (sluice_upstream_paused)' }),
  ],
  'Who waits, and how long': [
    lines('Calls waiting', 'By upstream, all replicas.', 'short', { '{{upstream}}': 'sum by (upstream) (sluice_queue_depth)' }),
    lines('Wait of calls', `p50 and p95 of all calls that ended. A p95 near ${maxWaitSeconds} s: refusals come next.`, 's',
      {
        '{{upstream}} p50': quantile(0.5, 'sluice_queue_wait_seconds', 'upstream'),
        '{{upstream}} p95': quantile(0.95, 'sluice_queue_wait_seconds', 'upstream'),
      }),
    lines('Calls by outcome', 'Everything but ok deserves a look.', 'reqps',
      { '{{outcome}}': rate('sluice_requests_total', 'outcome') }, { stacked: true }),
  ],
  'What was absorbed, what was refused': [
    lines('Upstream throttles', 'Received, absorbed, and passed on to clients. The gap between the first two is what clients saw.', 'reqps',
      {
        'received, {{kind}}': rate('sluice_upstream_throttles_total', 'kind'),
        absorbed: 'sum(rate(sluice_retries_absorbed_total[$__rate_interval]))',
        'passed on': 'sum(rate(sluice_requests_total{outcome="throttled"}[$__rate_interval]))',
      }),
    lines('Refusals by reason', 'queue_full and wait_* : too much traffic for the limit. day_quota_exhausted: until the quota returns. limiter_unavailable: Redis.', 'reqps',
      { '{{reason}}': rate('sluice_shed_total', 'reason') }, { stacked: true }),
    lines('What holds refused calls', 'Share of the 429s by heldBy. ceiling_*: our own limit. closed: the upstream. serialized, queue: the line itself.', 'percentunit',
      {
        '{{held_by}}': 'sum by (held_by) (rate(sluice_held_refusals_total[$__rate_interval])) / scalar(clamp_min(sum(rate(sluice_held_refusals_total[$__rate_interval])), 0.000001))',
      }, { stacked: true }),
    lines('Refusing for good', '1 while an open breaker answers calls in the upstream’s stead: no credit, a frozen account.', 'short',
      { '{{upstream}}': 'max by (upstream) (sluice_breaker_open)' }),
    lines('Failed attempts', 'By reason: the way to the upstream, not its responses. Empty where none fails.', 'reqps',
      { '{{upstream}} {{reason}}': `${rate('sluice_upstream_failures_total', 'upstream, reason')} > 0` }),
    lines('Credentials end in', 'Time until the token in use that ends first ends. Renewed in time it is a saw; near 0 nobody could renew it.', 's',
      { '{{upstream}}': 'min by (upstream) (sluice_credential_expires_seconds)' }),
    lines('Repeats', 'Calls that cost the upstream nothing: joined to an equal call under way, or answered with what was kept. Made again: a replica died.', 'reqps',
      {
        joined: 'sum(rate(sluice_repeats_joined_total[$__rate_interval]))',
        'kept response': 'sum(rate(sluice_idempotent_replays_total[$__rate_interval]))',
        'made again': 'sum(rate(sluice_repeats_made_again_total[$__rate_interval]))',
      }),
    lines('Ten busiest workspaces', 'By label; beyond 100 labels a workspace is in other. Who presses?', 'reqps',
      { '{{workspace}}': `topk(10, ${rate('sluice_requests_total', 'workspace')})` }),
  ],
});

const one = '{upstream="$upstream"}';
const with_ = (more: string): string => `{upstream="$upstream",${more}}`;

export const upstream = filled(
  dashboard('Sluice / Upstream', 'sluice-upstream', 'One upstream in detail.').withVariable(
    new QueryVariableBuilder('upstream')
      .label('Upstream')
      .datasource(datasource)
      .query('label_values(sluice_queue_depth, upstream)')
      .refresh(VariableRefresh.OnTimeRangeChanged),
  ),
  {
  'Limit': [
    lines('Used share by dimension', 'Which dimension fills first decides what to ask the provider for.', 'percentunit',
      { '{{dimension}}': `max by (dimension) (sluice_bucket_used_ratio${one})` }),
    lines('Closed for', 'Seconds until the bucket opens.', 's', { closed: `max(sluice_bucket_closed_seconds${one})` }),
    lines('How much more fits', 'Times the last hour’s traffic. 1: no more. 0: calls were refused. 10: ten times or more.', 'short',
      { times: `min(sluice_headroom_ratio${one})` }),
    lines('Fullest ceiling, and pauses', 'Your own limit of a workspace by window, and 1 while an operator has paused the upstream.', 'percentunit',
      { '{{window}}': `max by (window) (sluice_ceiling_used_ratio${one})`, paused: `max(sluice_upstream_paused${one})` }),
    lines('Waiting and in flight', 'All replicas. In flight 1 with many waiting: calls are serialized.', 'short',
      { waiting: `sum(sluice_queue_depth${one})`, 'in flight': `sum(sluice_in_flight${one})` }),
  ],
  'Waits': [
    heatmap('Waits of calls', 'Each column is the distribution of waits in that time. A band that rises is a queue that grows.',
      { '{{le}}': `sum by (le) (increase(sluice_queue_wait_seconds_bucket${one}[$__rate_interval]))` }),
    lines('Wait quantiles', 'p50, p95, p99 of all calls that ended, and the call waiting longest now.', 's',
      { ...quantiles('sluice_queue_wait_seconds'), 'longest now': `max(sluice_queue_oldest_seconds${one})` }, { span: 12 }),
  ],
  'Responses': [
    lines('Calls by outcome', 'upstream_error: the upstream said so. failed: it could not be reached or broke.', 'reqps',
      { '{{outcome}}': rate('sluice_requests_total', 'outcome', one) }, { stacked: true }),
    lines('Throttles received and absorbed', 'permanent throttles cannot be absorbed: quota, spend cap, request too large.', 'reqps',
      {
        'received, {{kind}}': rate('sluice_upstream_throttles_total', 'kind', one),
        absorbed: `sum(rate(sluice_retries_absorbed_total${one}[$__rate_interval]))`,
      }),
    lines('Refusals by reason', 'Told at once, with the true time to come back.', 'reqps',
      { '{{reason}}': rate('sluice_shed_total', 'reason', one) }, { stacked: true }),
    lines('Upstream time to the head of its response', 'Slow responses hold places where calls are serialized.', 's',
      { ...quantiles('sluice_upstream_seconds') }),
    lines('Time Sluice adds', 'Beside waiting. Above some 10 ms a replica is short of CPU.', 's', { ...quantiles('sluice_overhead_seconds') }),
    lines('Repeats', 'By what they got: the response of a call under way, a kept response, or another call.', 'reqps',
      {
        joined: `sum(rate(sluice_repeats_joined_total${one}[$__rate_interval]))`,
        'kept response': `sum(rate(sluice_idempotent_replays_total${one}[$__rate_interval]))`,
        'made again': `sum(rate(sluice_repeats_made_again_total${one}[$__rate_interval]))`,
      }),
    lines('Ten busiest workspaces', 'Sent calls by label: who uses the limit.', 'reqps',
      { '{{workspace}}': `topk(10, ${rate('sluice_requests_total', 'workspace', with_('outcome!~"shed|rejected"'))})` }),
  ],
});

export const replicas = filled(dashboard('Sluice / Replicas and Redis', 'sluice-replicas', 'Health of the gateway itself.'), {
  'Limiter': [
    lines('Replicas by limiter mode', 'redis is normal with Redis, memory without. local or deny: Redis is away.', 'short',
      { '{{mode}}': 'sum by (mode) (sluice_limiter_mode)' }, { stacked: true }),
    lines('Leases lost', 'In-flight leases lost before they were settled: two calls of one workspace may have overlapped.', 'short',
      { '{{reason}}': 'sum by (reason) (increase(sluice_leases_lost_total[$__rate_interval]))' }),
    lines('Configuration in force', '0: the latest change was refused, and the settings before it hold. Marks on all dashboards: when one was taken over.', 'short',
      { 'latest in force': 'min(sluice_config_last_reload_successful)' }),
    lines('Versions', 'Replicas by version; two of them at once only during an update.', 'short',
      { '{{version}}': 'count by (version) (sluice_build_info)' }, { stacked: true }),
    figure('Sent after the client left', 'Must stay 0. Anything else is a bug: report it.', 'short',
      { calls: 'sum(sluice_dispatched_after_client_gone_total)' }, { amber: 1, red: 1 }),
  ],
  'Redis': [
    lines('Command time, p99', 'As replicas see it. 250 ms is the timeout, after which a replica goes its own way.', 's',
      { '{{command}}': quantile(0.99, 'sluice_redis_command_seconds', 'command') }),
    lines('Commands', 'Commands a second.', 'ops', { '{{command}}': rate('sluice_redis_command_seconds_count', 'command') }, { stacked: true }),
    lines('Errors', 'By kind. timeout: Redis or the network is slow. connection: it is away.', 'ops',
      { '{{kind}}': rate('sluice_redis_errors_total', 'kind') }),
  ],
  'Replicas': [
    lines('Calls waiting', 'One replica far above the others: its load balancer or its clients stick to it.', 'short',
      { '{{instance}}': 'sum by (instance) (sluice_queue_depth)' }),
    lines('Calls in flight', 'By replica.', 'short', { '{{instance}}': 'sum by (instance) (sluice_in_flight)' }),
    lines('Held request bodies', 'Bytes in memory. At the configured bound calls are refused as overloaded.', 'bytes',
      { '{{instance}}': 'sum by (instance) (sluice_queue_bytes)' }),
    lines('CPU', 'A replica uses one core at most: near 1 add replicas.', 'percentunit',
      { '{{instance}}': 'rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) sluice_queue_bytes' }),
    lines('Memory', 'Resident. Held calls cost memory beside their bodies: docs/operate/size.md.', 'bytes',
      { '{{instance}}': 'process_resident_memory_bytes and on (instance) sluice_queue_bytes' }),
    lines('Event loop lag, p99', 'Above 50 ms timers and grants are late: add replicas.', 's',
      { '{{instance}}': 'nodejs_eventloop_lag_p99_seconds and on (instance) sluice_queue_bytes' }),
    lines('Turned away, by bound', 'Calls refused as overloaded: more replicas, or docs/operate/size.md#overload.', 'reqps',
      { '{{bound}}': rate('sluice_overload_total', 'bound') }, { stacked: true }),
    lines('Share shed for load', 'Share of new calls refused because the event loop is late or memory is full. 0 is normal.', 'percentunit',
      { '{{instance}}': 'max by (instance) (sluice_shedding_ratio)' }),
    lines('Connections and open calls', 'Of clients, by replica.', 'short',
      { '{{instance}} connections': 'sum by (instance) (sluice_connections)', '{{instance}} calls': 'sum by (instance) (sluice_open_calls)' }),
  ],
});

/** File name → dashboard. */
export const dashboards = { overview, upstream, replicas };
