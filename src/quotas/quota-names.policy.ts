/**
 * Which quotas a response shows a bucket to count against, as lists of words. Two buckets that come to share one list share a
 * quota.
 *
 * Owns: what is proof. Does not own: reading the response (`dispatch/feedback/`), digests, joining. Pure.
 */
import type { Feedback } from '../call.ts';

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
