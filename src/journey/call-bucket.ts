/**
 * Which bucket a call counts against: whose quota it takes, by what else its upstream tells quotas apart (`bucketBy`, operations, tiers,
 * names in responses), and under which name all replicas know that bucket.
 *
 * Does not own: which buckets turned out to share one quota (`quotas/`).
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { bucketParts, bucketSetting, settingsOfOperations } from '../admission/buckets.policy.ts';
import type { Caller, Route } from '../call.ts';
import type { UpstreamSettings, Separator } from '../config/settings.ts';
import { accountOfWorkspace, broughtAccount } from '../credential-carriers.policy.ts';
import type { CallDescription, CallRequest } from '../dispatch/estimate.policy.ts';
import { modelClass } from '../dispatch/model-call.policy.ts';
import {
  bucketKey,
  type BucketKey,
  ceilingKey,
  laneKey,
  ticketId,
  type CeilingKey,
  type LaneKey,
  type TicketId,
} from '../ids.ts';
import type { JoinedQuotas, OwnQuota } from '../quotas/joined-quotas.ts';
import { parseJson, valueAt } from '../dispatch/feedback/json.policy.ts';
import { decodedBody, formFields, maxParsedBody } from '../dispatch/request-body.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { timingSafeEqual } from 'node:crypto';
import { digest } from '../identity.ts';

const noParts: readonly never[] = [];

/**
 * `account`: whose quota the call takes at its upstream. `own`: the bucket that its own parts name, whose quota may turn out to be that of
 * another bucket (`quotas/`). `bucket`: the one that it is admitted to.
 * @param call `route` leads to the settings of its operation; those of the upstream as a `whole` bound what its callers choose
 */
export function bucketOf(
  call: {
    readonly caller: Caller;
    readonly route: Route;
    readonly whole: UpstreamSettings;
    readonly request: CallRequest;
    readonly description: Pick<CallDescription, 'model' | 'tier'>;
    readonly labelKey: string;
    /** Monotonic milliseconds. */
    readonly now: number;
  },
  { quotas, chosenBuckets }: { readonly quotas: JoinedQuotas; readonly chosenBuckets: ChosenBuckets },
): { readonly account: string; readonly own: OwnQuota; readonly bucket: BucketKey } {
  const { caller, route, request, description, labelKey, now } = call;
  const { upstream, pathAndQuery } = route;
  const { dialect } = upstream;
  const workspaceId = caller.workspace.id;

  const carrying = { workspaceId, rawFields: request.rawFields, pathAndQuery, keyFields: caller.keyFields };
  const brought = route.credential === null ? broughtAccount(carrying, upstream.carriers) : null;
  // A call without any credential that can be seen must not share the quota of another workspace, whose account is another.
  const account = route.credential?.quota ?? brought ?? accountOfWorkspace(workspaceId);
  const model = description.model === null ? null : modelClass(description.model);
  const separate = separatorsOf(dialect?.separators ?? noParts, request);
  const form = (dialect?.namedIn ?? null) === null ? null : callFormOf(request);
  const quotaName = form === null ? null : quotas.nameOf(upstream.name, form);

  // What the client chooses opens buckets up to a bound; beyond it the workspace's calls share one.
  // Models that a client invents for an account of its own open windows of nobody else's.
  const chosenModel = brought === null && upstream.bucketBy.includes('model') ? (model ?? '') : '';
  const chosen = [brought ?? '', chosenModel, ...separate, quotaName === null ? (form ?? '') : ''];
  const hasOwnBucket =
    chosen.every((value) => value === '') ||
    chosenBuckets.hasOwn(workspaceId, call.whole, nameOf(labelKey, 'chosen values', ...chosen), now);

  const parts = bucketParts(upstream, {
    credential: hasOwnBucket || brought === null ? account : accountOfWorkspace(workspaceId),
    host: route.host,
    model: hasOwnBucket ? model : null,
    separate: hasOwnBucket ? separate : noParts,
  });
  const names = [parts.upstream, parts.credential, parts.host, parts.model];
  if (parts.model !== '' && description.tier !== '') names.push(description.tier);
  names.push(...(dialect?.operation ?? noParts), ...parts.separate);
  // All buckets of one account of an upstream are in one log.
  const log = nameOf(labelKey, 'log', parts.upstream, parts.credential);
  const inLog = (purpose: string, ...words: string[]): BucketKey =>
    bucketKey(`${log}.${nameOf(labelKey, purpose, ...words)}`);
  const bucketOfName = (said: string): BucketKey => inLog('bucket', ...names, 'name', said);
  const ofForm = form === null ? noParts : ['form', form];
  const bucket = !hasOwnBucket
    ? inLog('further bucket', workspaceId, ...names)
    : quotaName === null
      ? inLog('bucket', ...names, ...ofForm)
      : bucketOfName(quotaName);
  const isOfForm = hasOwnBucket && quotaName === null;
  const named = form === null ? null : { form, isOfForm, bucketOf: bucketOfName };
  const own = { bucket, parts: { ...parts, shop: route.host }, named };
  return { account, own, bucket: quotas.bucketOf(bucket) };
}

/** Workspaces of upstreams whose choices are remembered. */
const maxChoosers = 10_000;

/**
 * How many buckets a workspace may have by values that its calls choose: models, fields, path segments and body members of `bucketBy`,
 * and credentials that clients bring.
 *
 * Each bucket begins with an empty window, so a client that invents values would have a new window with every call. Keeps: of the calls
 * of one workspace to one upstream, at most `maxBuckets` values have buckets of their own at a time; a value gives its bucket up when it
 * was not used for the longest window of the upstream, so that no window is had twice. Known to each replica for itself: what is bounded
 * is `maxBuckets` times the replicas, and only a workspace that goes beyond the bound has calls of one value in two buckets.
 */
export class ChosenBuckets {
  /** When each value was used last, the one that is unused for longest first, by workspace and upstream. */
  readonly #usedAt = new LRUCache<string, Map<string, number>>(atMost(maxChoosers));

  /**
   * True where the calls with `value` have a bucket of their own; else they share one with all further values of the workspace.
   * @param now monotonic milliseconds
   */
  hasOwn(workspaceId: string, upstream: UpstreamSettings, value: string, now: number): boolean {
    const chooser = `${upstream.name}\n${workspaceId}`;
    let usedAt = this.#usedAt.get(chooser);
    if (usedAt === undefined) this.#usedAt.set(chooser, (usedAt = new Map()));
    if (!usedAt.delete(value) && usedAt.size >= upstream.maxBuckets) {
      const [[unused, at] = ['', now]] = usedAt;
      if (at + longestWindowMs(upstream) > now) return false;
      usedAt.delete(unused);
    }
    usedAt.set(value, now);
    return true;
  }
}

/** The longest window in which an upstream is configured to count, at least a minute. */
const longestWindowMs = (upstream: UpstreamSettings): number =>
  Math.max(
    60_000,
    ...[upstream, ...settingsOfOperations(upstream)]
      .flatMap((settings) => bucketSetting(settings).meters)
      .map(({ windowMs }) => windowMs),
  );

// The parts of a call by which its upstream separates quotas, as the upstream's dialect says (`bucketBy`). A part that a call does
// not have is an empty text: calls without it share a quota. Pure; nothing is read for an upstream whose dialect separates nothing.

/** One text for each separator, in their order. */
export function separatorsOf(separators: readonly Separator[], call: CallRequest): readonly string[] {
  if (separators.length === 0) return [];
  const kinds = new Set(separators.map(({ kind }) => kind));
  const reads = kinds.has('form') || kinds.has('body');
  const bytes = reads ? decodedBody(call.rawFields, call.body) : Buffer.alloc(0);
  const json = kinds.has('body') ? parseJson(bytes.toString(), maxParsedBody) : undefined;
  const form = formFields(call.contentType, bytes);
  const segments = segmentsOf(call.path);
  return separators.map((separator) => {
    switch (separator.kind) {
      case 'method':
        return call.method;
      case 'path':
        return shapeOf(separator.segments, segments);
      case 'header':
        return valuesOf(call.rawFields, separator.name).join(', ');
      case 'form':
        return form.get(separator.name) ?? '';
      case 'body': {
        const value = valueAt(json, separator.pointer);
        if (typeof value === 'string' || typeof value === 'number') return String(value);
        // Some APIs take the same as a form, whose fields are members of one level.
        const [name = '', ...deeper] = separator.pointer;
        return deeper.length === 0 ? (form.get(name) ?? '') : '';
      }
    }
  });
}

const segmentsOf = (pathAndQuery: string): readonly string[] =>
  (pathAndQuery.split(/[?#]/, 1)[0] ?? '').split('/').slice(1);

/**
 * The path up to the last segment of the pattern, where that matches from the start. A segment that does not separate stands as in the
 * pattern.
 */
function shapeOf(segments: readonly string[], given: readonly string[]): string {
  let shape = '';
  for (const [at, segment] of segments.entries()) {
    const own = given[at] ?? '';
    const isAny = segment === '{*}' || segment === '{}';
    if (isAny ? own === '' : own !== segment) return '';
    shape += `/${segment === '{*}' ? own : segment}`;
  }
  return shape;
}

/** Numbers, UUIDs, digests and other long words: what names one of many things. */
const name = /^(?:\d+|[\da-f]{8}-?[\da-f-]{8,}|.{33,})$/i;
const maxForm = 256;

/** Method and path of a call without what names single things: calls of one form do the same. At most 256 characters. */
export const callFormOf = ({ method, path }: Pick<CallRequest, 'method' | 'path'>): string =>
  [method, ...segmentsOf(path).map((segment) => (name.test(segment) ? '{}' : segment))]
    .join('/')
    .slice(0, maxForm);

// Keyed digests under which buckets, lanes, ceilings and callers are known: nobody reads a name back without the label key.

/** A cache of names, because most calls are of a few workspaces and buckets. */
const names = new LRUCache<string, string>(atMost(20_000));
/** A part may be a member of a body, as long as the body. */
const maxCachedName = 1_024;

/** The digest of these parts. `purpose`: digests of the same parts for another purpose are different. */
export function nameOf(labelKey: string, purpose: string, ...parts: readonly string[]): string {
  let known = `${labelKey}\n${purpose}`;
  for (const part of parts) known += `\n${part.length}:${part}`;
  if (known.length > maxCachedName) return digest(labelKey, purpose, ...parts);
  let name = names.get(known);
  if (name === undefined) names.set(known, (name = digest(labelKey, purpose, ...parts)));
  return name;
}

/** The lane of a workspace in a bucket. */
export const laneOf = (bucket: BucketKey, workspaceId: string, labelKey: string): LaneKey =>
  laneKey(nameOf(labelKey, 'lane', bucket, workspaceId));

/** The ceiling of a workspace on an upstream. */
export const ceilingOf = (workspaceId: string, upstream: string, labelKey: string): CeilingKey =>
  ceilingKey(nameOf(labelKey, 'ceiling', upstream, workspaceId));

// `Sluice-Ticket`: what the client of a refused call sends when it comes back. It names the reservation, and proves that Sluice gave it for
// this workspace and bucket: whatever else is kept is in the state of the limiter.

const ticketForm = /^([0-9a-f]{32})\.([0-9a-f]{32})$/;

/** @param lane stands for workspace and bucket */
export const writeTicket = (id: TicketId, lane: LaneKey, labelKey: string): string =>
  `${id}.${digest(labelKey, 'reservation', id, lane)}`;

/** `null`: the text is none of these, or was given for another workspace or bucket. */
export function readTicket(text: string | undefined, lane: LaneKey, labelKey: string): TicketId | null {
  const [given, id] = ticketForm.exec(text ?? '') ?? [];
  if (given === undefined || id === undefined) return null;
  const own = writeTicket(ticketId(id), lane, labelKey);
  return timingSafeEqual(Buffer.from(given), Buffer.from(own)) ? ticketId(id) : null;
}
