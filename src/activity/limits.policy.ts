/**
 * Limits of a workspace on each of its upstreams, as configured: what recorded arrivals are replayed against. Pure. What
 * was learned meanwhile is not in it; a bucket whose limit is only learned is left out, and so is its headroom.
 */
import { ceilingLimits } from '../admission/buckets.policy.ts';
import type { UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';

/** Limits of a workspace on an upstream, as configured. */
export interface LaneLimits {
  readonly upstream: string;
  readonly requestsPerMinute: number | null;
  readonly requestsPerDay: number | null;
  readonly maxWaitMs: number;
  /** Request meter of the bucket its calls go to; `shared`: with all workspaces that use the upstream's own credential. */
  readonly bucket: {
    readonly shared: boolean;
    readonly capacity: number;
    readonly perSecond: number;
  } | null;
}

export function configuredLimits(
  workspace: WorkspaceSettings,
  upstreams: ReadonlyMap<string, UpstreamSettings>,
): readonly LaneLimits[] {
  return [...workspace.upstreams].flatMap((name) => {
    const upstream = upstreams.get(name);
    if (upstream === undefined) return [];
    const { limits } = upstream;
    const { perMinute, perDay } = ceilingLimits(workspace, upstream);
    return [
      {
        upstream: name,
        requestsPerMinute: perMinute,
        requestsPerDay: perDay,
        maxWaitMs: limits.maxWaitSeconds * 1_000,
        bucket: bucketOf(workspace, upstream),
      },
    ];
  });
}

/**
 * True when the workspace's calls spend the quota of the upstream's own credential, which all such workspaces share. A
 * workspace whose own credential stands for another quota is taken to be the only one with that quota.
 */
export function sharesQuota(workspace: WorkspaceSettings, upstream: UpstreamSettings): boolean {
  const shared = upstream.credential;
  return (
    shared !== null && (workspace.credentials.get(upstream.name)?.quota ?? shared.quota) === shared.quota
  );
}

function bucketOf(workspace: WorkspaceSettings, upstream: UpstreamSettings): LaneLimits['bucket'] {
  const shared = sharesQuota(workspace, upstream);
  const { limits } = upstream;
  if (upstream.kind === 'commerce') {
    return { shared, capacity: limits.bucket.capacity, perSecond: limits.bucket.leakPerSecond };
  }
  if (limits.requestsPerMinute === null) return null;
  return { shared, capacity: limits.requestsPerMinute, perSecond: limits.requestsPerMinute / 60 };
}
