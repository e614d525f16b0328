/** The limits of a configuration in the form in which a recording has them: by upstream, and what is special to each workspace. */
import { bucketSetting, operationOf, settingsOfOperations } from '../admission/buckets.policy.ts';
import type { MeterName } from '../call.ts';
import type { Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import type { UpstreamLimits, WorkspaceLimits } from './format.ts';

/** What is written down for an upstream; no bucket of it is known. */
function upstreamLimitsOf(upstream: UpstreamSettings): UpstreamLimits {
  const { limits } = upstream;
  const { meters, probe } = bucketSetting(upstream);
  return {
    ceiling: { perMinute: limits.requestsPerMinute, perDay: limits.requestsPerDay },
    isDefault: { perMinute: limits.isDefault.perMinute, perDay: limits.isDefault.perDay },
    meters: meters.map((meter) =>
      isDefaultMeter(upstream, meter.meter) ? { ...meter, isDefault: true } : meter,
    ),
    probe,
    maxInFlight: limits.maxInFlight,
    maxInFlightTotal: limits.maxInFlightTotal,
    maxQueued: limits.maxQueued,
    maxWaitMs: limits.maxWaitSeconds * 1_000,
    operations: Object.fromEntries(
      settingsOfOperations(upstream).map((one) => [operationOf(one), [...bucketSetting(one).meters]]),
    ),
    reserveMs: limits.reserveSeconds * 1_000,
    maxReserved: limits.maxReserved,
    buckets: {},
  };
}

function isDefaultMeter(
  { kind, limits: { isDefault }, dialect }: UpstreamSettings,
  name: MeterName,
): boolean {
  if (kind === 'commerce') return name === 'requests' && isDefault.bucket;
  if (dialect !== null && dialect.windows.length > 0) return false;
  return (name === 'requests' && isDefault.perMinute) || (name === 'requests_day' && isDefault.perDay);
}

export const upstreamsOf = ({ upstreams }: Settings): Record<string, UpstreamLimits> =>
  Object.fromEntries(Array.from(upstreams, ([name, upstream]) => [name, upstreamLimitsOf(upstream)]));

/** `null` = nothing is special to it. */
export function workspaceLimitsOf(workspace: WorkspaceSettings): WorkspaceLimits | null {
  const { weight, requestsPerMinute, requestsPerDay } = workspace;
  if (weight === 1 && requestsPerMinute.size + requestsPerDay.size === 0) return null;
  return {
    weight,
    perMinute: Object.fromEntries(requestsPerMinute),
    perDay: Object.fromEntries(requestsPerDay),
  };
}
