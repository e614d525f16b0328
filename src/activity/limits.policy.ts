/**
 * The configured limits of a workspace on each of its upstreams. Recorded arrivals are replayed against them (`replays.ts`). Pure.
 *
 * Does not own: limits that responses have stated. A bucket whose limit is known only from responses is `null` here, and its
 * headroom is left out.
 */
import { ceilingLimits } from '../admission/buckets.policy.ts';
import type { UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';

/** Limits of a workspace on an upstream, as configured. */
export interface LaneLimits {
  readonly upstream: string;
  readonly requestsPerMinute: number | null;
  readonly requestsPerDay: number | null;
  readonly maxWaitMs: number;
  /**
   * Request meter of the bucket that the calls go to; `null` = the configuration states no limit for it. `shared`: all workspaces
   * that use the upstream's own credential share the bucket.
   */
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
 * True when the workspace's calls use the quota of the upstream's own credential, which all such workspaces share. A workspace
 * whose own credential has another quota is assumed to be the only one that uses that quota.
 */
export function sharesQuota(workspace: WorkspaceSettings, upstream: UpstreamSettings): boolean {
  const common = upstream.credential;
  return (
    common !== null && (workspace.credentials.get(upstream.name)?.quota ?? common.quota) === common.quota
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
