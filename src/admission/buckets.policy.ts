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
import type { CeilingKey } from '../ids.ts';
import type { BucketSetting, LaneSetting, MeterSetting } from '../limiter/limiter.ts';
import type { CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import { minuteMs, dayMs } from '../time-units.ts';

/** Settings never change, so that what is made of them is made once. */
function memo<Settings extends object, Made>(
  make: (settings: Settings) => Made,
): (settings: Settings) => Made {
  const made = new WeakMap<Settings, { readonly made: Made }>();
  return (settings) => {
    let known = made.get(settings);
    if (known === undefined) made.set(settings, (known = { made: make(settings) }));
    return known.made;
  };
}

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

export const bucketParts = (
  { name, bucketBy }: UpstreamSettings,
  { credential, host, model, separate }: Omit<BucketParts, 'upstream' | 'model'> & { model: string | null },
): BucketParts => ({
  upstream: name,
  credential,
  host: bucketBy.includes('host') ? host : '',
  model: bucketBy.includes('model') ? (model ?? '') : '',
  separate,
});

/**
 * Stated limits as meters. Buckets of language-model and commerce upstreams send a probe first, because their level is unknown
 * until a response states it; generic ones start open.
 */
export const bucketSetting = memo((upstream: UpstreamSettings): BucketSetting => {
  const { kind, limits } = upstream;
  return {
    meters: kind === 'commerce' ? commerceMeters(upstream) : windowMeters(upstream),
    learn: limits.learn,
    probe: kind === 'generic' ? 0 : limits.probe,
    ...(limits.maxInFlightTotal === null ? {} : { maxInFlightTotal: limits.maxInFlightTotal }),
  };
});

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
function commerceMeters({ limits: { bucket, cost } }: UpstreamSettings): MeterSetting[] {
  const leaky = (meter: MeterSetting['meter'], limit: number, perSecond: number): MeterSetting => ({
    meter,
    limit,
    windowMs: (limit / perSecond) * 1000,
  });
  const requests = leaky('requests', bucket.capacity, bucket.leakPerSecond);
  return cost === null ? [requests] : [requests, leaky('cost', cost.capacity, cost.restorePerSecond)];
}

/** The workspace's ceilings on an upstream: those that the workspace states, where `null` means unlimited; else those of the upstream. */
export function ceilingLimits(
  { requestsPerMinute, requestsPerDay }: WorkspaceSettings,
  { name, limits }: UpstreamSettings,
): { readonly perMinute: number | null; readonly perDay: number | null } {
  const perMinute = requestsPerMinute.get(name);
  const perDay = requestsPerDay.get(name);
  return {
    perMinute: perMinute === undefined ? limits.requestsPerMinute : perMinute,
    perDay: perDay === undefined ? limits.requestsPerDay : perDay,
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
export const callSettings = (
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
  isBackground = false,
): CallSettings => settingsOf(workspace)(upstream)[isBackground ? 'background' : 'others'];

const settingsOf = memo((workspace: WorkspaceSettings) =>
  memo((upstream: UpstreamSettings) => ({
    others: newCallSettings(workspace, upstream, false),
    background: newCallSettings(workspace, upstream, true),
  })),
);

function newCallSettings(
  workspace: WorkspaceSettings,
  upstream: UpstreamSettings,
  isBackground: boolean,
): CallSettings {
  const ceilings = ceilingLimits(workspace, upstream);
  const { name, mode, limits } = upstream;
  const { requestsPerMinute, requestsPerDay, weight } = workspace;
  const yielded = {
    perMinute: limits.isDefault.perMinute && !requestsPerMinute.has(name) ? null : ceilings.perMinute,
    perDay: limits.isDefault.perDay && !requestsPerDay.has(name) ? null : ceilings.perDay,
  };
  const under = (whole: typeof ceilings): Omit<CallSettings, 'yielded'> => {
    const ceiling = isBackground ? backgroundCeiling(whole) : whole;
    const { perMinute, perDay } = ceiling;
    return {
      ...ceiling,
      mode,
      setting: bucketSetting(upstream),
      weight,
      maxInFlight: limits.maxInFlight,
      maxQueued: limits.maxQueued,
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

/** The settings of all operations of an upstream, in their order. */
export const settingsOfOperations = memo((upstream: UpstreamSettings): readonly UpstreamSettings[] =>
  upstream.dialect === null ? [] : makeAll(upstream, upstream.dialect),
);

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

/** The ceiling of this key under these limits. */
export const ceilingUnder = (
  key: CeilingKey,
  { perMinute, perDay, left }: Omit<CeilingRef, 'key'>,
): CeilingRef => (left === undefined ? { key, perMinute, perDay } : { key, perMinute, perDay, left });
