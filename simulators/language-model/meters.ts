/**
 * The buckets of every organisation, project and model family, and the all-or-nothing decision over them.
 *
 * Owns: which buckets a call spends, admission, charging of refused calls. Does not own: headers, bodies.
 * Invariant: an admitted call is charged in every bucket at one instant; a refused one only what the settings say.
 */
import { Bucket, type BucketMode } from '../bucket.ts';
import type { Account } from './accounts.ts';
import { unitsOf, type Cost } from './cost.ts';
import { dimensions, type Dimension, type LanguageModelSettings, type Limits } from './options.ts';

export interface Meter {
  readonly dimension: Dimension;
  readonly owner: 'org' | 'project';
  readonly bucket: Bucket;
}

export type Verdict =
  | { readonly kind: 'admitted' }
  | { readonly kind: 'too-large'; readonly meter: Meter; readonly requested: number }
  | {
      readonly kind: 'throttled';
      readonly meter: Meter;
      readonly requested: number;
      readonly waitMs: number;
    };

export class Meters {
  readonly #buckets = new Map<string, Bucket>();
  #lists = new Map<string, readonly Meter[]>();
  #settings: LanguageModelSettings;

  constructor(settings: LanguageModelSettings) {
    this.#settings = settings;
  }

  /** Levels stay; limits are as the settings now say. */
  configure(settings: LanguageModelSettings): void {
    this.#settings = settings;
    this.#lists = new Map();
  }

  reset(): void {
    this.#buckets.clear();
    this.#lists = new Map();
  }

  familyOf(model: string): string {
    return this.#settings.models[model]?.family ?? model;
  }

  /** Every bucket that a call of this account to this model could spend. */
  of(account: Account, model: string, now: number): readonly Meter[] {
    const family = this.familyOf(model);
    const name = `${account.org}/${account.project}|${family}`;
    const known = this.#lists.get(name);
    if (known !== undefined) return known;
    const org = this.#settings.orgs[account.org];
    const orgLimits = { ...this.#familyLimits(family), ...org?.limits?.[family] };
    const own = org?.projects[account.project]?.limits?.[family] ?? {};
    const list = [
      ...this.#meters('project', `${account.org}/${account.project}|${family}`, lower(own, orgLimits), now),
      ...this.#meters('org', `${account.org}|${family}`, orgLimits, now),
    ];
    this.#lists.set(name, list);
    return list;
  }

  /** Steps 5 and 6 of a call: too large, refused on the largest wait, or taken everywhere. */
  decide(meters: readonly Meter[], cost: Cost, now: number): Verdict {
    const asked = meters.map((meter) => ({ meter, requested: unitsOf(meter.dimension, cost) }));
    const large = asked.find(({ meter, requested }) => !isRequests(meter) && requested > meter.bucket.limit);
    if (large !== undefined) {
      this.#chargeRefused(asked, true, now);
      return { kind: 'too-large', ...large };
    }
    let worst: { meter: Meter; requested: number; waitMs: number } | undefined;
    for (const { meter, requested } of asked) {
      const waitMs = requested === 0 ? 0 : meter.bucket.waitMs(requested, now);
      if (waitMs > (worst?.waitMs ?? 0)) worst = { meter, requested, waitMs };
    }
    if (worst !== undefined) {
      this.#chargeRefused(asked, !isRequests(worst.meter), now);
      return { kind: 'throttled', ...worst };
    }
    for (const { meter, requested } of asked) {
      // Output counts while it is produced, not in advance.
      if (meter.dimension !== 'otpm') meter.bucket.take(requested, now);
    }
    return { kind: 'admitted' };
  }

  /** Levels by dimension, a project's own as `project:<dimension>`. */
  levels(meters: readonly Meter[], now: number): Record<string, number> {
    const levels: Record<string, number> = {};
    for (const { dimension, owner, bucket } of meters) {
      levels[owner === 'project' ? `project:${dimension}` : dimension] = bucket.level(now);
    }
    return levels;
  }

  /** All buckets that exist, for `state`. */
  snapshot(now: number): Record<string, { limit: number; used: number }> {
    const all = [...this.#buckets].map(([name, bucket]) => [
      name,
      { limit: bucket.limit, used: bucket.level(now) },
    ]);
    return Object.fromEntries(all) as Record<string, { limit: number; used: number }>;
  }

  /** "if chargeRejected.requests and the metric is not requests": requests and images, never beyond the limit. */
  #chargeRefused(
    asked: readonly { meter: Meter; requested: number }[],
    requests: boolean,
    now: number,
  ): void {
    const charged = this.#settings.chargeRejected;
    for (const { meter, requested } of asked) {
      const tokens = ['tpm', 'tpd', 'itpm', 'otpm'].includes(meter.dimension);
      if (tokens ? charged.tokens : charged.requests && requests) meter.bucket.takeUpTo(requested, now);
    }
  }

  #familyLimits(family: string): Limits {
    const models = Object.entries(this.#settings.models);
    return models.find(([name, { family: own }]) => (own ?? name) === family)?.[1] ?? {};
  }

  #meters(owner: Meter['owner'], name: string, limits: Limits, now: number): Meter[] {
    const meters: Meter[] = [];
    for (const dimension of dimensions) {
      const limit = limits[dimension];
      if (limit === undefined || !(limit > 0)) continue;
      meters.push({ dimension, owner, bucket: this.#bucket(`${name}|${dimension}`, dimension, limit, now) });
    }
    return meters;
  }

  #bucket(name: string, dimension: Dimension, limit: number, now: number): Bucket {
    const outside = this.#settings.outsideTraffic;
    const options = {
      limit,
      windowMs: dimension === 'rpd' || dimension === 'tpd' ? 86_400_000 : 60_000,
      mode: this.#mode(dimension),
      outsidePerSecond: (outside?.dimension ?? 'rpm') === dimension ? (outside?.perSecond ?? 0) : 0,
    };
    const known = this.#buckets.get(name);
    if (known !== undefined) {
      known.change(options, now);
      return known;
    }
    const bucket = new Bucket(options, now);
    this.#buckets.set(name, bucket);
    return bucket;
  }

  #mode(dimension: Dimension): BucketMode {
    const { modes, dialect, sliceSeconds } = this.#settings;
    const chosen = modes[dimension];
    if (chosen !== undefined) return chosen;
    if (dialect !== 'azure') return { kind: 'continuous' };
    if (dimension === 'rpm') return { kind: 'sliced', sliceMs: sliceSeconds * 1000 };
    return { kind: 'fixedWindow' };
  }
}

function isRequests(meter: Meter): boolean {
  return meter.dimension === 'rpm' || meter.dimension === 'rpd';
}

/** Only the dimensions in which the project's own limit is lower. */
function lower(own: Limits, org: Limits): Limits {
  const limits: Limits = {};
  for (const dimension of dimensions) {
    const limit = own[dimension];
    if (limit !== undefined && limit < (org[dimension] ?? Infinity)) limits[dimension] = limit;
  }
  return limits;
}
