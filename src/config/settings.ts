/** The configuration as the rest of the product sees it: types only, each inferred from the schema of its section. */
export type { CredentialCarriers } from '../credential-carriers.policy.ts';
export type { UpstreamKind } from './defaults.ts';
export type { OriginPattern } from './origins.ts';
export type { CredentialSource, OAuthClient, UpstreamCredential } from './credential.ts';
export type { RedisNode, RedisSettings } from './redis.ts';
export type { IdempotencySettings, LogSettings, Settings } from './schema.ts';
export type { ServerSettings } from './server.ts';
export type {
  CallPattern,
  CountField,
  Dialect,
  DialectFields,
  DialectWindow,
  RefusalCondition,
  ResponseCondition,
  Separator,
  TimeField,
  TimeUnit,
  WaitPlace,
} from './speaks.ts';
export type { UpstreamLimits, UpstreamSettings, UpstreamTimeouts } from './upstream.ts';
export type { CallerPart, WorkspaceKey, WorkspaceSettings } from './workspace.ts';
