/**
 * The configuration after validation: every default filled in, frozen, units in the names. The rest of the product
 * sees only these types; `schema.ts` and `load.ts` alone know YAML, `${ENV}` and defaults.
 */
import type { Dialect } from './dialect.ts';

export type UpstreamKind = 'language-model' | 'commerce' | 'generic';

/** A token endpoint and how this client asks it (RFC 6749 §4.4, with a refresh token §6). */
export interface OAuthClient {
  readonly tokenUrl: string;
  readonly clientId: string;
  readonly clientSecret: string;
  readonly scope: string | null;
  /** How the request's body is written. */
  readonly format: 'form' | 'json';
  /** Where id and secret of the client stand. */
  readonly clientAuth: 'body' | 'basic';
  /** With Redis: one replica fetches a token, and the others read it there, encrypted. */
  readonly shared: boolean;
  /** Absolute path of the file that keeps the refresh token; `null`: the client credentials grant, which has none. */
  readonly refreshTokenFile: string | null;
}

/** Where the value of a credential comes from. `prefix` stands before it in the field. */
export type CredentialSource =
  | { readonly kind: 'value'; readonly value: string }
  | { readonly kind: 'file'; readonly path: string; readonly prefix: string }
  | { readonly kind: 'oauth'; readonly client: OAuthClient; readonly prefix: string };

/** What is injected into a call on its way upstream. `field` is lower case. */
export interface UpstreamCredential {
  readonly field: string;
  readonly source: CredentialSource;
  /**
   * Names the quota that the credential stands for: `account` where it is configured, else the fixed value, the path of the file
   * with the value or the refresh token, or token URL and client id. Credentials of one upstream with the same name share bucket
   * and order. It may be a secret: it goes into keyed digests only.
   */
  readonly quota: string;
}

/**
 * What an upstream changes in the list of what carries a credential (`credential-carriers.policy.ts`). Names of fields, and of query
 * members after `query:`; lower case.
 */
export interface CredentialCarriers {
  readonly added: ReadonlySet<string>;
  readonly removed: ReadonlySet<string>;
}

/** Stated limits of an upstream. `null`: none stated (learned, or unlimited). Rates are the upstream's own units. */
export interface UpstreamLimits {
  /** Calls per 60 s: fills the bucket's request meter (not for commerce) and is each workspace's default ceiling. */
  readonly requestsPerMinute: number | null;
  /** Calls per 24 h: same roles. */
  readonly requestsPerDay: number | null;
  readonly tokensPerMinute: number | null;
  readonly tokensPerDay: number | null;
  /** Commerce REST leaky bucket. */
  readonly bucket: { readonly capacity: number; readonly leakPerSecond: number };
  /** Commerce GraphQL cost points; `null` until learned. */
  readonly cost: { readonly capacity: number; readonly restorePerSecond: number } | null;
  /** Calls in flight per workspace × bucket; `null` = unlimited. Commerce defaults to 1. */
  readonly maxInFlight: number | null;
  /** Calls waiting per workspace × upstream. */
  readonly maxQueued: number;
  /** Default wait of a call, seconds. */
  readonly maxWaitSeconds: number;
  /** Longest wait a call may ask for with `Prefer: wait=`, seconds. */
  readonly maxWaitCeilingSeconds: number;
  /** `false`: reported limits above the stated ones are ignored (the operator pinned them). */
  readonly learn: boolean;
  /** Calls sent to a bucket of unknown level before its first response taught something. At least 1. */
  readonly probe: number;
}

/** Times a single upstream exchange may take, milliseconds. */
export interface UpstreamTimeouts {
  readonly connectMs: number;
  /** Time from the sent request to the response's head. */
  readonly headMs: number;
  /** Longest silence inside the response's body. */
  readonly idleMs: number;
  /** Whole exchange. */
  readonly totalMs: number;
}

export interface OriginPattern {
  /** `https` or `http`. */
  readonly scheme: 'https' | 'http';
  /** Host name, lower case; for a wildcard the part after `*.`. */
  readonly host: string;
  readonly wildcard: boolean;
  /** Explicit port, or the scheme's default. */
  readonly port: number;
}

export interface UpstreamSettings {
  readonly name: string;
  readonly kind: UpstreamKind;
  readonly origins: readonly OriginPattern[];
  readonly credential: UpstreamCredential | null;
  /** Where requests carry a credential of the upstream. */
  readonly carriers: CredentialCarriers;
  readonly limits: UpstreamLimits;
  /** What separates the buckets of this upstream: `credential` always, `host` where the platform counts per store. */
  readonly bucketBy: readonly ('credential' | 'host' | 'model')[];
  /** Buckets that one workspace may have at a time by values that its calls choose; further values share one bucket. */
  readonly maxBuckets: number;
  /** How it counts, reports and refuses, where that is described; `null`: as its kind says. */
  readonly dialect: Dialect | null;
  /** Addresses beside public ones: none, all private and loopback ones, or those of these ranges. */
  readonly allowPrivateAddresses: boolean | readonly string[];
  /** `scoped`: cookies pass on `/via`, under its path, and not on `/proxy`. `pass`: on `/proxy` too, unchanged. */
  readonly cookies: 'scoped' | 'pass';
  /** Send W3C `traceparent` upstream. Off by default. */
  readonly propagateTrace: boolean;
  readonly timeouts: UpstreamTimeouts;
  /** Sockets open to one origin at most. */
  readonly maxSockets: number;
  /** Lower-case names of request fields that serve as the idempotency key where a call has none. */
  readonly idempotencyFields: readonly string[];
  /** PEM file with additional certificate authorities for this upstream, read at start; `null` = system's. */
  readonly caFile: string | null;
}

export interface WorkspaceKey {
  /** Digest of the whole key, hexadecimal: by it a key is found. */
  readonly sha256: string;
  /** The middle part of `slc_<id>_<secret>` where the file has it, for people; `null` = it does not. */
  readonly id: string | null;
  /** Milliseconds since the epoch, or `null` = never expires. */
  readonly expiresAt: number | null;
}

export interface WorkspaceSettings {
  readonly id: string;
  readonly keys: readonly WorkspaceKey[];
  /** Names of the upstreams this workspace may call. */
  readonly upstreams: ReadonlySet<string>;
  /** Own ceilings by upstream name; where absent the upstream's stated limit is the ceiling. `null` = none. */
  readonly requestsPerMinute: ReadonlyMap<string, number | null>;
  readonly requestsPerDay: ReadonlyMap<string, number | null>;
  /** Share of a bucket relative to other workspaces; > 0, default 1. */
  readonly weight: number;
  /** Own upstream credentials by upstream name. */
  readonly credentials: ReadonlyMap<string, UpstreamCredential>;
}

export interface ServerSettings {
  readonly host: string;
  readonly port: number;
  readonly adminHost: string;
  readonly adminPort: number;
  /** Names beside addresses and `localhost` by which the admin port may be asked, lower case. */
  readonly adminNames: readonly string[];
  /** Secret that commands at the admin port must carry; `null` = none. */
  readonly adminToken: string | null;
  readonly maxBodyBytes: number;
  /** Bodies above this are sent once and never again. */
  readonly maxReplayBytes: number;
  /** Heads and bodies of requests held in memory by the whole process at most; above it 503 `overloaded`. */
  readonly maxHeldBytes: number;
  /** Client connections, calls on one of them, and calls of the process open at once; above them 503 `overloaded`. */
  readonly maxConnections: number;
  readonly maxCallsPerConnection: number;
  readonly maxOpenCalls: number;
  /** Delay of the event loop, sustained for half a second, above which a share of new calls gets 503 `overloaded`. Milliseconds. */
  readonly maxEventLoopDelayMs: number;
  /** Used share of the memory that the process may have, 0 to 1, above which a share of new calls gets 503 `overloaded`. */
  readonly maxMemoryRatio: number;
  readonly drainSeconds: number;
  /** Still accepting after SIGTERM while load balancers notice, seconds. */
  readonly drainDelaySeconds: number;
  readonly keepAliveSeconds: number;
  /** Names (`host` or `host:port`, lower case) under which this service is reached: no call may go there. */
  readonly publicHosts?: readonly string[];
}

/** Where a server of Redis listens. */
export interface RedisNode {
  readonly host: string;
  readonly port: number;
}

export interface RedisSettings {
  readonly whenDown: 'local' | 'deny';
  readonly mode: 'single' | 'sentinel' | 'cluster';
  /** The server, the Sentinels, or some nodes of the Cluster. At least one. */
  readonly nodes: readonly RedisNode[];
  /** Name of the watched primary; `null` without Sentinels. */
  readonly sentinelName: string | null;
  readonly username: string | null;
  readonly password: string | null;
  readonly database: number;
  /** `caFile`: PEM file with further certificate authorities, or `null`. */
  readonly tls: { readonly caFile: string | null } | null;
  readonly commandTimeoutMs: number;
  /** Put before every key; never holds a brace. */
  readonly keyPrefix: string;
}

export interface PrivacySettings {
  /** HMAC key of the workspace labels. */
  readonly labelKey: string;
  /** True when none was configured and a random one of this process is used: labels change with every start. */
  readonly labelKeyGenerated?: boolean;
}

/** What is kept of responses, for repeats with the same idempotency key. */
export interface IdempotencySettings {
  /** How long a response is kept; 0 = nothing is kept. */
  readonly keepSeconds: number;
  /** Bytes of the largest body that is kept. */
  readonly maxBytes: number;
  /** Bytes kept for one workspace at most; the oldest responses go first. */
  readonly maxWorkspaceBytes: number;
  /** Bytes kept in all at most, with Redis over all replicas. */
  readonly maxTotalBytes: number;
}

export interface LogSettings {
  readonly level: 'debug' | 'info' | 'warn' | 'error' | 'silent';
  /** Share of successful calls that get a log line, 0 to 1. */
  readonly sampleSuccesses: number;
}

export interface Settings {
  readonly server: ServerSettings;
  readonly redis: RedisSettings | null;
  readonly privacy: PrivacySettings;
  readonly log: LogSettings;
  readonly idempotency: IdempotencySettings;
  readonly upstreams: ReadonlyMap<string, UpstreamSettings>;
  readonly workspaces: ReadonlyMap<string, WorkspaceSettings>;
}
