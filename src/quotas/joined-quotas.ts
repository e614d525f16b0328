/**
 * Buckets that turned out to share a quota: which bucket a call belongs to since then. For each quota replicas share a list of the
 * buckets that count against it; the first of them stands for it.
 *
 * Does not own: moving calls that wait (admission). Invariants: replicas that know the same lists join the same buckets in the same
 * direction; a bucket is followed to one that is not joined itself; what leaves this process are keyed digests.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { BucketParts } from '../admission/buckets.policy.ts';
import type { Feedback } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { digest } from '../identity.ts';
import type { BucketKey } from '../ids.ts';
import { change, type CreateMap, type SharedMap } from '../replicated/shared-map.ts';

/** What responses show again and again is put into the map this often, which keeps it for a day. Milliseconds. */
const repeatMs = 3_600_000;
const memoryMs = 86_400_000;
/** Quotas, and forms of calls, that are remembered at most, and buckets of one. */
const maxQuotas = 10_000;
const maxBuckets = 500;

/** The bucket of a call by its own parts, and these parts. */
export interface OwnQuota {
  readonly bucket: BucketKey;
  readonly parts: QuotaParts;
  /** `null`: the upstream's responses do not name the quota of their call. */
  readonly named: NamedQuota | null;
}

/** A call of an upstream whose responses name the quota that their call counted against. */
export interface NamedQuota {
  /** Method and path without what names single things. */
  readonly form: string;
  /** The bucket is that of the form alone: no response has named the quota of its calls yet. */
  readonly isOfForm: boolean;
  /** The bucket of such calls under a name. */
  bucketOf(name: string): BucketKey;
}

export type JoinedQuotas = ReturnType<typeof createJoinedQuotas>;

/** `onJoined`: a bucket was joined, so that its calls belong to another one now. `onFailure`: background work failed. */
export function createJoinedQuotas(parts: {
  readonly clock: Pick<Clock, 'monotonic'>;
  readonly random: Pick<Random, 'hex'>;
  readonly labelKey: string;
  readonly createMap: CreateMap;
  readonly onJoined: () => void;
  readonly onFailure: (failure: unknown) => void;
}) {
  const { clock, random, labelKey } = parts;
  const map: SharedMap<readonly BucketKey[]> = parts.createMap({
    name: 'quota.2',
    onChange: (quota, { value }) => learn(quota, value),
  });
  /** Buckets of the quotas that several share, by the quota's name. */
  const shared = new Map<string, readonly BucketKey[]>();
  let into: ReadonlyMap<BucketKey, BucketKey> = new Map();
  /** When this replica last put a bucket and a quota into the map, monotonic milliseconds. */
  const reportedAt = new LRUCache<string, number>(atMost(maxQuotas));
  /**
   * What a path names cannot always be told from what it does (`/repos/acme/shop/issues`). So a form (method and path without what names
   * single things) that no response has named yet is taken for the latest of those beside it; the response to its first call sets that
   * right. By forms and by their beginnings up to a segment. Known to each replica for itself.
   */
  const nameOfForm = new LRUCache<string, string>(atMost(maxQuotas));
  /** The first name that was found for the bucket of a form: if that is several things, its bucket joins no second quota to the first. */
  const nameOfBucket = new LRUCache<BucketKey, string>(atMost(maxQuotas));

  function report(words: readonly string[], buckets: readonly BucketKey[]): void {
    const said = [...buckets, ...words].join('\n');
    const now = clock.monotonic();
    if (now - (reportedAt.get(said) ?? -repeatMs) < repeatMs) return;
    reportedAt.set(said, now);
    claim(digest(labelKey, 'quota', ...words), buckets, said).catch(parts.onFailure);
  }

  async function claim(quota: string, claimed: readonly BucketKey[], said: string): Promise<void> {
    let buckets: readonly BucketKey[] = [];
    const life = { ttlMs: memoryMs, newOwner: () => random.hex(8) };
    const written = await change(map, { name: quota }, life, (found) => {
      buckets = [...new Set([...(found?.value ?? []), ...claimed])].slice(0, maxBuckets);
      return buckets;
    });
    // The next response says so again.
    if (written === 'unavailable') reportedAt.delete(said);
    else learn(quota, buckets);
  }

  function learn(quota: string, buckets: readonly BucketKey[]): void {
    const known = shared.get(quota);
    if (buckets.length < 2 || (known === undefined && shared.size >= maxQuotas)) return;
    // A reply may come after the message of a later change.
    if (known !== undefined && buckets.every((bucket, at) => known[at] === bucket)) return;
    shared.set(quota, buckets);
    into = joinedBy(shared);
    parts.onJoined();
  }

  return {
    /** The bucket to which the calls of this one belong now. */
    bucketOf: (bucket: BucketKey): BucketKey => standsFor(bucket, into),

    /** The name that responses give to the quota of calls of a form, as far as is known. */
    nameOf(upstream: string, form: string): string | null {
      const known = [form, ...beginningsOf(form)].find((part) => nameOfForm.has(`${upstream} ${part}`));
      return nameOfForm.get(`${upstream} ${known ?? form}`) ?? null;
    },

    /** What a response shows of the quota behind the bucket of its call. */
    noteOwner({ bucket, parts, named }: OwnQuota, feedback: Feedback): void {
      const { name } = feedback.scope ?? {};
      if (named !== null && name !== undefined) {
        const { upstream, credential, host, separate } = parts;
        for (const part of [named.form, ...beginningsOf(named.form)])
          nameOfForm.set(`${upstream} ${part}`, name);
        if (named.isOfForm && (nameOfBucket.get(bucket) ?? name) === name) {
          nameOfBucket.set(bucket, name);
          const words = ['name', upstream, credential, host, ...separate, name];
          // The bucket of the form goes first: calls wait in it, and it knows already what its calls have used.
          report(words, [bucket, named.bucketOf(name)]);
        }
      }
      for (const words of quotaNames(parts, feedback)) report(words, [bucket]);
    },
  };
}

function standsFor(bucket: BucketKey, into: ReadonlyMap<BucketKey, BucketKey>): BucketKey {
  let of = bucket;
  for (let next = into.get(of); next !== undefined; next = into.get(of)) of = next;
  return of;
}

/** Which bucket is joined into which, by the buckets of each quota; in whatever order the quotas became known. */
function joinedBy(shared: ReadonlyMap<string, readonly BucketKey[]>): Map<BucketKey, BucketKey> {
  const into = new Map<BucketKey, BucketKey>();
  for (const quota of [...shared.keys()].toSorted()) {
    const [first, ...others] = shared.get(quota) ?? [];
    if (first === undefined) continue;
    for (const other of others) {
      const [from, to] = [standsFor(other, into), standsFor(first, into)];
      if (from !== to) into.set(from, to);
    }
  }
  return into;
}

// What is proof: two buckets that come to share one list of words share a quota.

export interface QuotaParts extends BucketParts {
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

/** The form up to each of its segments but the last, longest first; at least method and one segment. */
function beginningsOf(form: string): readonly string[] {
  const parts = form.split('/');
  return parts.slice(2).map((_, cut) => parts.slice(0, -1 - cut).join('/'));
}
