/**
 * Buckets that turned out to share a quota: which bucket a call belongs to since then.
 *
 * Owns: what this replica knows of it, its bound, and telling the store what responses show. Does not own: moving calls that wait
 * (admission). Invariants: a bucket is followed to one that is not joined
 * itself; a joined bucket never leads back to itself; what leaves this process are keyed digests.
 */
import { LRUCache } from 'lru-cache';
import type { Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { digest } from '../identity.ts';
import type { BucketKey } from '../ids.ts';
import { maxQuotas, type QuotaStore } from '../limiter/quota-store.ts';

/** What responses show again and again is reported to the store this often, milliseconds; the store keeps it for a day. */
const repeatMs = 3_600_000;

export interface JoinedQuotasParts {
  readonly clock: Pick<Clock, 'monotonic'>;
  readonly labelKey: string;
  readonly store: QuotaStore;
  /** A bucket was joined: its calls belong to another one now. */
  readonly onJoined: () => void;
  /** Called when background work fails. */
  readonly onFailure: (failure: unknown) => void;
}

/** The bucket of a call by its own parts, and these parts. */
export interface OwnQuota {
  readonly bucket: BucketKey;
  readonly parts: QuotaParts;
}

export class JoinedQuotas {
  readonly #parts: JoinedQuotasParts;
  readonly #into = new Map<BucketKey, BucketKey>();
  /** When this replica last reported a bucket and a quota to the store, monotonic milliseconds. */
  readonly #reportedAt = new LRUCache<string, number>({ max: maxQuotas });

  constructor(parts: JoinedQuotasParts) {
    this.#parts = parts;
    parts.store.listen(({ bucket, into }) => this.#join(bucket, into));
  }

  /** The bucket to which the calls of this one belong now. */
  bucketOf(bucket: BucketKey): BucketKey {
    let of = bucket;
    for (let into = this.#into.get(of); into !== undefined; into = this.#into.get(of)) of = into;
    return of;
  }

  /** What a response shows of the quota behind the bucket of its call. */
  noteOwner({ bucket, parts }: OwnQuota, feedback: Feedback): void {
    if (feedback.scope === undefined) return;
    const { clock, labelKey, onFailure } = this.#parts;
    for (const words of quotaNames(parts, feedback)) {
      const report = [bucket, ...words].join('\n');
      const now = clock.monotonic();
      if (now - (this.#reportedAt.get(report) ?? -repeatMs) < repeatMs) continue;
      this.#reportedAt.set(report, now);
      this.#claim(digest(labelKey, 'quota', ...words), bucket, report).catch(onFailure);
    }
  }

  async #claim(quota: string, bucket: BucketKey, report: string): Promise<void> {
    const into = await this.#parts.store.claim(quota, bucket);
    // The next response says so again.
    if (into === 'unavailable') this.#reportedAt.delete(report);
    else this.#join(bucket, into);
  }

  #join(bucket: BucketKey, into: BucketKey): void {
    const [from, to] = [this.bucketOf(bucket), this.bucketOf(into)];
    if (from === to || this.#into.size >= maxQuotas) return;
    this.#into.set(from, to);
    this.#parts.onJoined();
  }
}

// What is proof: two buckets that come to share one list of words share a quota.

/** What distinguishes a bucket from the others of its upstream; absent parts are empty. */
export interface QuotaParts {
  readonly upstream: string;
  readonly credential: string;
  readonly host: string;
  /** Model, or the class of models that its provider documents. */
  readonly model: string;
  /** Host of the call, also where buckets are not kept apart by it. */
  readonly shop: string;
}

/**
 * Which quotas a response shows a bucket to count against.
 *
 * - A refusal names the limit that several models share: the models of one credential.
 * - A success names organisation and project: their keys share the quota of each model. A refusal writes other names for them,
 *   and may speak of the organisation's limit while the projects have their own.
 * - A shop's response names the app: its tokens share the bucket of that shop.
 */
export function quotaNames(
  { upstream, credential, host, model, shop }: QuotaParts,
  { scope, throttle }: Pick<Feedback, 'scope' | 'throttle'>,
): readonly (readonly string[])[] {
  if (scope === undefined) return [];
  const { organization = '', project = '', family, app } = scope;
  const isOwned = throttle === null && (organization !== '' || project !== '');
  return [
    ...(family === undefined ? [] : [['family', upstream, credential, host, family]]),
    ...(isOwned ? [['owner', upstream, host, organization, project, model]] : []),
    ...(app === undefined ? [] : [['app', upstream, shop, app]]),
  ];
}
