/**
 * Which bucket a call counts against: whose quota it takes, by what else its upstream tells quotas apart (`bucketBy`, operations, tiers,
 * names in responses), and under which name all replicas know that bucket.
 *
 * Does not own: how values are read from a request (`separators.policy.ts`), how many buckets a workspace may open by values that its
 * calls choose (`chosen-buckets.ts`), and which buckets turned out to share one quota (`quotas/`).
 */
import { bucketParts } from '../admission/buckets.policy.ts';
import type { Caller, Route } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import { accountOfWorkspace, broughtAccount } from '../credential-carriers.policy.ts';
import type { CallDescription, CallRequest } from '../dispatch/estimate.policy.ts';
import { modelClass } from '../dispatch/model-call.policy.ts';
import { bucketKey, type BucketKey } from '../ids.ts';
import type { JoinedQuotas, OwnQuota } from '../quotas/joined-quotas.ts';
import type { ChosenBuckets } from './chosen-buckets.ts';
import { nameOf } from './key-names.ts';
import { callFormOf, separatorsOf } from './separators.policy.ts';

export interface CallBucket {
  /** Whose quota the call takes at its upstream. */
  readonly account: string;
  /** The bucket that the call's own parts name; its quota may turn out to be that of another bucket (`quotas/`). */
  readonly own: OwnQuota;
  /** The bucket that the call is admitted to. */
  readonly bucket: BucketKey;
}

interface BucketedCall {
  readonly caller: Caller;
  /** To the settings of the call's operation. */
  readonly route: Route;
  /** The settings of the upstream as a whole: they bound what its callers choose. */
  readonly upstream: UpstreamSettings;
  readonly request: CallRequest;
  readonly description: Pick<CallDescription, 'model' | 'tier'>;
}

export interface BucketSources {
  readonly quotas: Pick<JoinedQuotas, 'bucketOf' | 'nameOf'>;
  readonly chosenBuckets: ChosenBuckets;
  readonly labelKey: string;
  /** Monotonic milliseconds. */
  readonly now: number;
}

export function bucketOf(call: BucketedCall, sources: BucketSources): CallBucket {
  const { caller, route, request, description } = call;
  const { quotas, chosenBuckets, labelKey, now } = sources;
  const { upstream } = route;
  const { workspace } = caller;
  const name = (purpose: string, ...parts: string[]): string => nameOf(labelKey, purpose, parts);

  const brought = route.credential === null ? broughtBy(call) : null;
  // A call without any credential that can be seen must not share the quota of another workspace, whose account is another.
  const account = route.credential?.quota ?? brought ?? accountOfWorkspace(workspace.id);
  const model = description.model === null ? null : modelClass(description.model);
  const separate = separatorsOf(upstream.dialect?.separators ?? [], request);
  const isNamed = (upstream.dialect?.namedIn ?? null) !== null;
  const form = isNamed ? callFormOf(request) : null;
  const quotaName = form === null ? null : quotas.nameOf(upstream.name, form);

  // What the client chooses opens buckets up to a bound; beyond it the workspace's calls share one.
  // Models that a client invents for an account of its own open windows of nobody else's.
  const chosenModel = brought === null && upstream.bucketBy.includes('model') ? (model ?? '') : '';
  const chosenForm = quotaName === null ? (form ?? '') : '';
  const chosen = [brought ?? '', chosenModel, ...separate, chosenForm];
  const hasOwnBucket =
    chosen.every((value) => value === '') ||
    chosenBuckets.hasOwn(
      { workspaceId: workspace.id, upstream: call.upstream },
      name('chosen values', ...chosen),
      now,
    );

  const parts = bucketParts(upstream, {
    credential: hasOwnBucket || brought === null ? account : accountOfWorkspace(workspace.id),
    host: route.host,
    model: hasOwnBucket ? model : null,
    separate: hasOwnBucket ? separate : nothing,
  });
  const tier = parts.model === '' || description.tier === '' ? nothing : [description.tier];
  const operation = upstream.dialect?.operation ?? nothing;
  const names = [
    parts.upstream,
    parts.credential,
    parts.host,
    parts.model,
    ...tier,
    ...operation,
    ...parts.separate,
  ];
  // All buckets of one account of an upstream are in one log.
  const log = name('log', parts.upstream, parts.credential);
  const naming = form === null ? nothing : quotaName === null ? ['form', form] : ['name', quotaName];
  const bucket = bucketKey(
    `${log}.${hasOwnBucket ? name('bucket', ...names, ...naming) : name('further bucket', workspace.id, ...names)}`,
  );
  const named =
    form === null
      ? null
      : {
          form,
          isOfForm: hasOwnBucket && quotaName === null,
          bucketOf: (said: string) => bucketKey(`${log}.${name('bucket', ...names, 'name', said)}`),
        };
  const own = { bucket, parts: { ...parts, shop: route.host }, named };
  return { account, own, bucket: quotas.bucketOf(bucket) };
}

const nothing: readonly string[] = [];

/** The account of a call whose client brings the credential; `null`: none can be seen. */
const broughtBy = ({ caller, route, request }: BucketedCall): string | null =>
  broughtAccount(
    {
      workspaceId: caller.workspace.id,
      rawFields: request.rawFields,
      pathAndQuery: route.pathAndQuery,
      keyFields: caller.keyFields,
    },
    route.upstream.carriers,
  );
