/**
 * Options of a simulated commerce API.
 *
 * Owns: the options and their defaults. A bucket belongs to one app in one store.
 */
import type { FixedOptions } from '../simulator.ts';

export type Plan =
  | 'standard'
  | 'advanced'
  | 'plus'
  | { readonly limit: number; readonly leak: number; readonly max?: number; readonly restore?: number };

export interface StoreOptions {
  readonly plan?: Plan;
  /** `frozen` answers 402, `locked` 423, `security` 430. */
  readonly state?: 'ok' | 'frozen' | 'locked' | 'security';
  /** App name to its access tokens: tokens of one app share its bucket. */
  readonly apps: Readonly<Record<string, readonly string[]>>;
  /** Order creations per 60 s on a development store; null for none. */
  readonly devOrderLimit?: number | null;
}

export interface CommerceSettings {
  readonly stores: Readonly<Record<string, StoreOptions>>;
  /** Which call-limit fields a response has: Shopify's pair, the other spelling, or all three. */
  readonly callLimitField: 'shopify' | 'commerce' | 'all';
  /** `2.0` always, or the exact wait with one decimal. */
  readonly retryAfter: 'fixed' | 'exact';
  readonly latency: { readonly minMs: number; readonly maxMs: number };
  /** Resources of each kind a store starts with. */
  readonly seededResources: number;
  /** An outside consumer of every bucket, without pause: calls per second on REST, points on GraphQL. */
  readonly outsideTraffic: { readonly perSecond: number; readonly api?: 'rest' | 'graphql' } | null;
  /** More refusals than this within 60 s lock the store for the app (423); null = they never do. */
  readonly maxRefusalsPerMinute: number | null;
  /** `Link` and `Location`: the origin as called, or `https://<store>`. */
  readonly linkOrigin: 'called' | 'shop';
  readonly graphql: {
    /** Rows a connection really returns, at most. */
    readonly rows: number;
    /** Throttled responses without `extensions.code`. */
    readonly legacyThrottle: boolean;
    /** Throttled responses without `extensions.cost`. */
    readonly bareThrottle: boolean;
    /** Throttled responses with status 429 and `Retry-After`. */
    readonly http429: boolean;
  };
  readonly storefront: {
    /** Cart creations per 60 s before a 200 `Throttled`; null for no limit. */
    readonly cartsPerMinute: number | null;
    /** Calls per 60 s without a buyer's address before 430; null for no limit. */
    readonly anonymousPerMinute: number | null;
  };
}

export interface CommerceOptions extends Partial<CommerceSettings>, FixedOptions {}

export const commerceDefaults: CommerceSettings = {
  stores: { 'acme.myshopify.com': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
  callLimitField: 'shopify',
  retryAfter: 'fixed',
  latency: { minMs: 50, maxMs: 150 },
  seededResources: 120,
  outsideTraffic: null,
  maxRefusalsPerMinute: null,
  linkOrigin: 'called',
  graphql: { rows: 2, legacyThrottle: false, bareThrottle: false, http429: false },
  storefront: { cartsPerMinute: null, anonymousPerMinute: null },
};

/** REST size and leak per second, GraphQL points and restore per second. */
export interface PlanNumbers {
  readonly limit: number;
  readonly leak: number;
  readonly max: number;
  readonly restore: number;
}

const plans: Record<'standard' | 'advanced' | 'plus', PlanNumbers> = {
  standard: { limit: 40, leak: 2, max: 2000, restore: 100 },
  advanced: { limit: 80, leak: 4, max: 4000, restore: 200 },
  plus: { limit: 400, leak: 20, max: 20_000, restore: 1000 },
};

export function planNumbers(plan: Plan = 'standard'): PlanNumbers {
  if (typeof plan === 'string') return plans[plan];
  const restore = plan.restore ?? plan.leak * 50;
  return { limit: plan.limit, leak: plan.leak, restore, max: plan.max ?? restore * 20 };
}
