/**
 * Which bucket a call belongs to, and the limits of that bucket, of its lanes and of the workspace's ceiling as configured.
 * Pure; results are memoised by settings object. `journey/call-bucket.ts` makes keyed digests of the parts of a bucket's name.
 */
import type {
  CallPattern,
  Dialect,
  DialectWindow,
  UpstreamSettings,
  WorkspaceSettings,
} from '../config/settings.ts';
import type { BucketSetting, LaneSetting, MeterSetting } from '../limiter/limiter.ts';

const minuteMs = 60_000;
const dayMs = 86_400_000;

/** What distinguishes this call's bucket from others of the upstream. Order is fixed; absent parts are empty. */
export interface BucketParts {
  readonly upstream: string;
  /** Quota behind the upstream credential (`UpstreamCredential.quota`, or what the client brings). */
  readonly credential: string;
  readonly host: string;
  readonly model: string;
  /** Values of the fields by which the upstream's dialect separates quotas (`speaks.separate`), in the dialect's order. */
  readonly separate: readonly string[];
}

export function bucketParts(
  upstream: UpstreamSettings,
  call: {
    readonly credential: string;
    readonly host: string;
    readonly model: string | null;
    readonly separate: readonly string[];
  },
): BucketParts {
  return {
    upstream: upstream.name,
    credential: call.credential,
    host: upstream.bucketBy.includes('host') ? call.host : '',
    model: upstream.bucketBy.includes('model') ? (call.model ?? '') : '',
    separate: call.separate,
  };
}

/**
 * Stated limits as meters. Buckets of language-model and commerce upstreams send a probe first, because their level is unknown
 * until a response states it; generic ones start open.
 */
export function bucketSetting(upstream: UpstreamSettings): BucketSetting {
  let setting = bucketSettings.get(upstream);
  if (setting === undefined) {
    const { limits } = upstream;
    setting = {
      meters: upstream.kind === 'commerce' ? commerceMeters(upstream) : windowMeters(upstream),
      learn: limits.learn,
      probe: upstream.kind === 'generic' ? 0 : limits.probe,
      ...(limits.maxInFlightTotal === null ? {} : { maxInFlightTotal: limits.maxInFlightTotal }),
    };
    bucketSettings.set(upstream, setting);
  }
  return setting;
}

/** Results of {@link bucketSetting}: settings are frozen, so each is computed once. */
const bucketSettings = new WeakMap<UpstreamSettings, BucketSetting>();

/** The meter of a window that a dialect describes. A meter drains like a leaky window, so that only other kinds are named. */
function meterOf({ meter, requests, windowMs, kind }: DialectWindow): MeterSetting {
  const setting = { meter, limit: requests, windowMs };
  return kind === 'leaky' ? setting : { ...setting, counts: kind };
}

function windowMeters({ limits, dialect }: UpstreamSettings): MeterSetting[] {
  if (dialect !== null && dialect.windows.length > 0) return dialect.windows.map(meterOf);
  const stated: [MeterSetting['meter'], number | null, number][] = [
    ['requests', limits.requestsPerMinute, minuteMs],
    ['requests_day', limits.requestsPerDay, dayMs],
    ['tokens', limits.tokensPerMinute, minuteMs],
    ['tokens_day', limits.tokensPerDay, dayMs],
  ];
  return stated.flatMap(([meter, limit, windowMs]) => (limit === null ? [] : [{ meter, limit, windowMs }]));
}

/** REST: a leaky bucket of `capacity` calls; GraphQL: points, once stated or learned. */
function commerceMeters({ limits }: UpstreamSettings): MeterSetting[] {
  const { bucket, cost } = limits;
  const meters: MeterSetting[] = [
    { meter: 'requests', limit: bucket.capacity, windowMs: (bucket.capacity / bucket.leakPerSecond) * 1000 },
  ];
  if (cost !== null) {
    meters.push({
      meter: 'cost',
      limit: cost.capacity,
      windowMs: (cost.capacity / cost.restorePerSecond) * 1000,
    });
  }
  return meters;
}

/** The limit that the workspace states for the upstream, where `null` means unlimited; else the one that the upstream states. */
function ownLimit(
  own: ReadonlyMap<string, number | null>,
  upstream: string,
  stated: number | null,
): number | null {
  const limit = own.get(upstream);
  return limit === undefined ? stated : limit;
}

/** The workspace's ceilings on an upstream: those that the workspace states, else those that the upstream states. */
export function ceilingLimits(
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
): { readonly perMinute: number | null; readonly perDay: number | null } {
  return {
    perMinute: ownLimit(workspace.requestsPerMinute, upstream.name, upstream.limits.requestsPerMinute),
    perDay: ownLimit(workspace.requestsPerDay, upstream.name, upstream.limits.requestsPerDay),
  };
}

/** What a reload may change of a call that is already in admission. */
export interface CallSettings extends LaneSetting {
  /** Whether limits hold and refuse the call, or are only reckoned. */
  readonly mode: UpstreamSettings['mode'];
  /** What holds instead once a response of the bucket has stated its limit: default ceilings yield. `null` = the same. */
  readonly yielded: CallSettings | null;
  readonly setting: BucketSetting;
  /** Sends per day that its ceiling allows; `null` = it has none. */
  readonly perDay: number | null;
  /** Of a background call: what it leaves to others beside `perMinute` and `perDay`. Absent: nothing. */
  readonly left?: { readonly perMinute: number; readonly perDay: number };
  readonly maxQueued: number;
}

/** Background calls leave this part of a ceiling's places to others. */
const leftToOthers = 0.1;

type Limits = ReturnType<typeof ceilingLimits>;

/** What background calls may use of a ceiling, and what they leave. */
export function backgroundCeiling({
  perMinute,
  perDay,
}: Limits): Limits & Required<Pick<CallSettings, 'left'>> {
  const left = {
    perMinute: Math.floor((perMinute ?? 0) * leftToOthers),
    perDay: Math.floor((perDay ?? 0) * leftToOthers),
  };
  return {
    perMinute: perMinute === null ? null : perMinute - left.perMinute,
    perDay: perDay === null ? null : perDay - left.perDay,
    left,
  };
}

/** The settings under which a workspace's calls to an upstream are in admission. */
export function callSettings(
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
  isBackground = false,
): CallSettings {
  const cache = isBackground ? backgroundSettings : callSettingsCache;
  let byUpstream = cache.get(workspace);
  if (byUpstream === undefined) cache.set(workspace, (byUpstream = new WeakMap()));
  let known = byUpstream.get(upstream);
  if (known === undefined)
    byUpstream.set(upstream, (known = newCallSettings(workspace, upstream, isBackground)));
  return known;
}

/** Results of {@link callSettings}: settings are frozen, so each is computed once. */
const callSettingsCache = new WeakMap<WorkspaceSettings, WeakMap<UpstreamSettings, CallSettings>>();
const backgroundSettings = new WeakMap<WorkspaceSettings, WeakMap<UpstreamSettings, CallSettings>>();

function newCallSettings(
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
  isBackground: boolean,
): CallSettings {
  const ceilings = ceilingLimits(workspace, upstream);
  const { isDefault } = upstream.limits;
  const yielded = {
    perMinute:
      isDefault.perMinute && !workspace.requestsPerMinute.has(upstream.name) ? null : ceilings.perMinute,
    perDay: isDefault.perDay && !workspace.requestsPerDay.has(upstream.name) ? null : ceilings.perDay,
  };
  const under = (whole: typeof ceilings): Omit<CallSettings, 'yielded'> => {
    const ceiling = isBackground ? backgroundCeiling(whole) : whole;
    const { perMinute, perDay } = ceiling;
    return {
      ...ceiling,
      mode: upstream.mode,
      setting: bucketSetting(upstream),
      weight: workspace.weight,
      maxInFlight: upstream.limits.maxInFlight,
      maxQueued: upstream.limits.maxQueued,
      ceilingTag: `${perMinute ?? 'none'}.${perDay ?? 'none'}`,
    };
  };
  const isSame = yielded.perMinute === ceilings.perMinute && yielded.perDay === ceilings.perDay;
  return { ...under(ceilings), yielded: isSame ? null : { ...under(yielded), yielded: null } };
}

// Operations

// Calls of an upstream that its dialect gives windows of their own (`calls` of a window). Such a call has the settings of its upstream with
// these windows instead, in a bucket of its operation. An upstream without operations costs nothing.

/**
 * The settings under which an upstream takes a call: its own, or those of the call's operation.
 *
 * @param operation method and path of the call, without query: `GET /search/issues`
 */
export function settingsOfOperation(upstream: UpstreamSettings, operation: string): UpstreamSettings {
  const { dialect } = upstream;
  if (dialect === null || dialect.operations.length === 0) return upstream;
  const [method = '', path = ''] = operation.split(' ', 2);
  const given = path.replace(/\/$/, '').slice(1).split('/');
  const at = dialect.operations.findIndex(({ calls }) => calls.some((one) => matches(one, method, given)));
  return settingsOfOperations(upstream)[at] ?? upstream;
}

/** What the windows of an operation's settings are for, as `calls` says it; `''`: the settings are those of no operation. */
export const operationOf = ({ dialect }: Pick<UpstreamSettings, 'dialect'>): string =>
  dialect?.operation.join(', ') ?? '';

/** A HEAD is a GET without its content (RFC 9110 §9.3.2), and counts as one. */
function matches({ method, segments }: CallPattern, callMethod: string, given: readonly string[]): boolean {
  if (method !== null && method !== callMethod && `${method} ${callMethod}` !== 'GET HEAD') return false;
  if (segments === null) return true;
  const isAlike = (own: string, at: number): boolean =>
    own === '{}' || own === '{*}' ? given[at] !== '' : own === given[at];
  return segments.length === given.length && segments.every(isAlike);
}

/** Settings are frozen, so that those of operations are made once. */
const settings = new WeakMap<UpstreamSettings, readonly UpstreamSettings[]>();

/** The settings of all operations of an upstream, in their order. */
export function settingsOfOperations(upstream: UpstreamSettings): readonly UpstreamSettings[] {
  const { dialect } = upstream;
  let all = settings.get(upstream);
  if (all === undefined) settings.set(upstream, (all = dialect === null ? [] : makeAll(upstream, dialect)));
  return all;
}

/** Quotas are told apart as they are for other calls, and by the segments that separate in the patterns of the operation. */
function makeAll(upstream: UpstreamSettings, dialect: Dialect): readonly UpstreamSettings[] {
  return dialect.operations.map(({ calls, windows }) => {
    const own = calls.flatMap(({ segments }) => (segments?.includes('{*}') === true ? [segments] : []));
    const separators = [
      ...dialect.separators,
      ...own.map((segments) => ({ kind: 'path' as const, segments })),
    ];
    const operation = calls.map(({ text }) => text);
    return {
      ...upstream,
      dialect: { ...dialect, operations: [], operation, windows, separators, namedIn: null },
    };
  });
}
