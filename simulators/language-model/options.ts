/**
 * Options of a simulated language-model API.
 *
 * Owns: the options and their defaults. Limits are units per minute (`rpd`, `tpd`: per day).
 */
import type { BucketMode } from '../bucket.ts';
import type { FixedOptions } from '../simulator.ts';

export const dimensions = ['rpm', 'rpd', 'tpm', 'tpd', 'itpm', 'otpm', 'ipm', 'inputImages'] as const;
export type Dimension = (typeof dimensions)[number];
/** A dimension that is left out is not limited. */
export type Limits = Partial<Record<Dimension, number>>;

export type Dialect = 'openai' | 'azure' | 'groq' | 'anthropic';

export interface ModelOptions extends Limits {
  /** Models of one family share their limits; default: the model's own name. The first one's limits count. */
  readonly family?: string;
}

export interface ProjectOptions {
  readonly keys: readonly string[];
  /** By family; only lower values than the organisation's have an effect. */
  readonly limits?: Readonly<Record<string, Limits>>;
}

export interface OrganisationOptions {
  readonly projects: Readonly<Record<string, ProjectOptions>>;
  /** By family; replaces the models' limits for this organisation. */
  readonly limits?: Readonly<Record<string, Limits>>;
}

/** The five stops of the OpenAI quota family, and Anthropic's. */
export type QuotaState =
  | 'ok'
  | 'insufficient_quota'
  | 'credit_balance_exhausted'
  | 'organization_spend_limit_exceeded'
  | 'project_spend_limit_exceeded'
  | 'organization_usage_limit_exceeded'
  | 'enforced_spend_limit_reached';

export interface LanguageModelSettings {
  readonly dialect: Dialect;
  readonly orgs: Readonly<Record<string, OrganisationOptions>>;
  readonly models: Readonly<Record<string, ModelOptions>>;
  /** What a call costs: prompt estimate and asked-for output as a sum, the larger of both, or the prompt alone. */
  readonly tokenCharge: 'max' | 'sum' | 'prompt';
  readonly chatOverhead: number;
  readonly chargeRejected: { readonly requests: boolean; readonly tokens: boolean };
  /** `actual` gives back, at the end, what was charged and not used. */
  readonly reconcile: 'none' | 'actual';
  readonly headerRequestDim: 'rpm' | 'rpd';
  /** Repeats the token fields as `…-tokens_usage_based`. */
  readonly usageBasedTwin: boolean;
  readonly latency: { readonly baseMs: number; readonly perTokenMs: number; readonly jitter: number };
  /** How long marked prompts are kept from their last use (Anthropic); 0 = not at all. */
  readonly promptCacheSeconds: number;
  /** Output tokens of a response, unless the call allows fewer. */
  readonly replyTokens: number;
  /** Per dimension; Azure counts `tpm` in a fixed window and `rpm` in slices by default. */
  readonly modes: Partial<Record<Dimension, BucketMode>>;
  /** An outside consumer of the same quota, without pause: units per second of a dimension (default `rpm`), in every bucket of it. */
  readonly outsideTraffic: { readonly perSecond: number; readonly dimension?: Dimension } | null;
  /** By organisation or project id. */
  readonly quotaState: Readonly<Record<string, QuotaState>>;
  readonly overload: 'server_is_overloaded' | 'slow_down' | null;
  /** Sent as `retry-after` with an overload; null sends none. */
  readonly overloadRetryAfterSeconds: number | null;
  /** Added to `Date` and to absolute resets of every response. */
  readonly clockSkewSeconds: number;
  /** Azure: `requests` slices of 1 s or 10 s. */
  readonly sliceSeconds: number;
  readonly embeddingDimensions: number;
}

export interface LanguageModelOptions extends Partial<LanguageModelSettings>, FixedOptions {}

export const languageModelDefaults: LanguageModelSettings = {
  dialect: 'openai',
  orgs: { 'org-sim': { projects: { proj_sim: { keys: ['sk-sim'] } } } },
  models: {
    'gpt-4o': { rpm: 500, tpm: 30_000, inputImages: 50_000 },
    'gpt-4o-mini': { rpm: 500, rpd: 10_000, tpm: 200_000 },
    'text-embedding-3-small': { rpm: 3000, tpm: 1_000_000 },
    'gpt-image-1': { ipm: 5, tpm: 100_000 },
    'gpt-image-2-codex': { family: 'gpt-image', ipm: 5, tpm: 100_000 },
    'llama-3.1-8b-instant': { rpm: 30, rpd: 14_400, tpm: 6000, tpd: 500_000 },
    'claude-sonnet-5': { rpm: 50, itpm: 30_000, otpm: 8000 },
  },
  tokenCharge: 'sum',
  chatOverhead: 3,
  chargeRejected: { requests: true, tokens: false },
  reconcile: 'none',
  headerRequestDim: 'rpm',
  usageBasedTwin: false,
  latency: { baseMs: 20, perTokenMs: 1, jitter: 0 },
  promptCacheSeconds: 300,
  replyTokens: 16,
  modes: {},
  outsideTraffic: null,
  quotaState: {},
  overload: null,
  overloadRetryAfterSeconds: null,
  clockSkewSeconds: 0,
  sliceSeconds: 10,
  embeddingDimensions: 16,
};
