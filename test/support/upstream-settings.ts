/** Complete upstream and workspace settings for tests that care about a few of them only. */
import { usualCarriers } from '../../src/credential-carriers.policy.ts';
import { defaultWaits } from '../../src/config/defaults.ts';
import type {
  OriginPattern,
  UpstreamCredential,
  UpstreamLimits,
  UpstreamSettings,
  WorkspaceSettings,
} from '../../src/config/settings.ts';

/** `https://*.example.com:8443` → pattern. No checks: tests write what configuration would have accepted. */
function originPattern(text: string): OriginPattern {
  const [, scheme = '', star = '', host = '', port] =
    /^(https?):\/\/(\*\.)?(\[[^\]]*\]|[^:]+)(?::(\d+))?$/.exec(text) ?? [];
  if (scheme !== 'https' && scheme !== 'http') throw new Error(`not an origin: ${text}`);
  const standard = scheme === 'https' ? 443 : 80;
  return { scheme, host, wildcard: star !== '', port: port === undefined ? standard : Number(port) };
}

/** A credential of a fixed value, which names its quota where no `account` does. */
export const fixedCredential = (field: string, value: string, account?: string): UpstreamCredential => ({
  field,
  source: { kind: 'value', value },
  quota: account === undefined ? value : `account\n${account}`,
});

/** What stands when the operator states no limit. */
export const unstatedLimits: UpstreamLimits = {
  requestsPerMinute: null,
  requestsPerDay: null,
  tokensPerMinute: null,
  tokensPerDay: null,
  bucket: { capacity: 40, leakPerSecond: 2 },
  cost: null,
  maxInFlight: null,
  maxInFlightTotal: null,
  ...defaultWaits,
  learn: true,
  probe: 1,
  isDefault: { perMinute: false, perDay: false, bucket: false },
};

export function upstreamSettings(
  name: string,
  origins: readonly string[],
  changes: Partial<UpstreamSettings> = {},
): UpstreamSettings {
  return {
    name,
    kind: 'generic',
    mode: 'enforce',
    origins: origins.map(originPattern),
    credential: null,
    carriers: usualCarriers,
    limits: unstatedLimits,
    bucketBy: ['credential'],
    maxBuckets: 1_000,
    commentMs: null,
    dialect: null,
    allowPrivateAddresses: false,
    cookies: 'scoped',
    propagateTrace: false,
    timeouts: { connectMs: 5000, headMs: 60_000, idleMs: 60_000, totalMs: 600_000 },
    maxSockets: 64,
    idempotencyFields: [],
    caFile: null,
    ...changes,
  };
}

export const byName = (...upstreams: readonly UpstreamSettings[]): ReadonlyMap<string, UpstreamSettings> =>
  new Map(upstreams.map((upstream) => [upstream.name, upstream]));

export function workspaceSettings(
  id: string,
  upstreams: readonly string[],
  changes: Partial<WorkspaceSettings> = {},
): WorkspaceSettings {
  return {
    id,
    keys: [],
    upstreams: new Set(upstreams),
    requestsPerMinute: new Map(),
    requestsPerDay: new Map(),
    weight: 1,
    callers: null,
    credentials: new Map(),
    ...changes,
  };
}
