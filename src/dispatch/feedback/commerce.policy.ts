/**
 * What a commerce response teaches: the call-limit field of REST, the points that GraphQL reports, and the refusals around both.
 *
 * Does not own: computing a cost (it is learned, not predicted) and holding reservations back (`currentlyAvailable` is read after the
 * refund of this call and hides those of others). Invariants: never throws, whatever the body; the sizes of both buckets are read
 * every time, because they differ by plan and may change.
 */
import type { Feedback, Throttle } from '../../call.ts';
import { believable } from './response.policy.ts';
import {
  countAt,
  given,
  isRecord,
  lastObject,
  numberAt,
  recordAt,
  stringAt,
  type JsonRecord,
} from './json.policy.ts';
import type { ResponseReader } from './response.policy.ts';

export function learnFromCommerce(response: ResponseReader): Feedback {
  const learned = response.callClass === 'graphql' ? learnFromGraphql(response) : learnFromRest(response);
  // All tokens of an app share its bucket of a shop.
  const app = response.fields.get('x-stats-apiclientid')?.trim() ?? '';
  return /^[\w-]{1,64}$/.test(app) ? { ...learned, scope: { app } } : learned;
}

/** Frozen, locked after repeated excess, a security rejection, temporarily disabled. */
const ofStore = [402, 423, 430, 540];

/** What a status means in REST and GraphQL alike; `null` = nothing, or too many requests, which each says in its own way. */
function commerceStatus({ status, statedMs }: ResponseReader): Throttle | null {
  if (ofStore.includes(status)) return { kind: 'permanent', reason: 'store_state', waitMs: statedMs() };
  return status === 503 || status === 529 ? { kind: 'overload', waitMs: statedMs() } : null;
}

// REST

/** Calls in the bucket after this one, and its capacity. */
interface CallLimit {
  readonly used: number;
  readonly limit: number;
}

/** Time in which a full bucket drains, whatever the plan: 40 calls at 2/s, 80 at 4/s, 400 at 20/s. Milliseconds. */
const restWindowMs = 20_000;

/**
 * The call-limit field, or `null`. Its name may have any prefix, and underscores instead of dashes. Where a response has several with
 * different values, the fuller one is believed.
 */
function callLimitOf(fields: ReadonlyMap<string, string>): CallLimit | null {
  let fullest: CallLimit | null = null;
  for (const [name, value] of fields) {
    if (!/(?:shop-api-call-limit|_shop_api_call_limit)$/.test(name)) continue;
    for (const single of value.slice(0, 256).split(',')) {
      const [, used, limit] = /^\s*(\d{1,7})\s*\/\s*(\d{1,7})\s*$/.exec(single) ?? [];
      const found = { used: Number(used), limit: Number(limit) };
      if (!(found.limit > 0)) continue;
      if (fullest === null || found.used * fullest.limit > fullest.used * found.limit) fullest = found;
    }
  }
  return fullest;
}

function learnFromRest(response: ResponseReader): Feedback {
  const { status, body } = response;
  const refused = status === 429 ? (body ?? '') : null;
  const calls = callLimitOf(response.fields);
  const throttle =
    refused === null ? commerceStatus(response) : tooManyCalls(refused, calls, response.statedMs());
  if (calls === null) return { meters: [], throttle };
  // The counter is rounded up: `1/40` is anything above 0 and up to 1.
  const level = { lowest: Math.max(0, calls.used - 1), highest: calls.used };
  return { meters: [{ meter: 'requests', limit: calls.limit, windowMs: restWindowMs, level }], throttle };
}

function tooManyCalls(refused: string, calls: CallLimit | null, statedMs: number | null): Throttle {
  // `Exceeded order API rate limit, please try again in a minute`: a limit of development stores that is not the bucket's.
  if (/\bExceeded \w{1,40} API rate limit\b/i.test(refused)) return { kind: 'secondary', waitMs: statedMs };
  if (statedMs !== null) return { kind: 'rate', waitMs: statedMs, meter: 'requests' };
  if (calls === null) return { kind: 'rate', waitMs: null, meter: null };
  // A bucket with room refused nothing: some other limit did (dev-store orders, daily variants), which a client that
  // waits for the bucket would retry for ever.
  if (calls.used < calls.limit - 1) return { kind: 'secondary', waitMs: null };
  return { kind: 'rate', waitMs: Math.ceil(restWindowMs / calls.limit), meter: 'requests' };
}

// GraphQL

/** `extensions.cost` as numbers. Points; `restoreRate` points per second. */
interface QueryCost {
  readonly requested: number | null;
  /** `null`: not executed. */
  readonly actual: number | null;
  readonly max: number;
  /** Negative where calls under way have taken more than there was. */
  readonly available: number;
  readonly restoreRate: number;
}

function asCost(cost: JsonRecord | null): QueryCost | null {
  const status = recordAt(cost, 'throttleStatus');
  const max = countAt(status, 'maximumAvailable');
  const available = numberAt(status, 'currentlyAvailable');
  const restoreRate = countAt(status, 'restoreRate');
  if (max === null || available === null || restoreRate === null || max <= 0 || restoreRate <= 0) return null;
  const requested = countAt(cost, 'requestedQueryCost');
  return { requested, actual: countAt(cost, 'actualQueryCost'), max, available, restoreRate };
}

/** What the end of a body teaches, where the body was cut or is too long to parse. A body of that length is never a refusal. */
export const costFromTail = (text: string): Feedback =>
  believable({ ...costTaught(tailCost(text)), throttle: null });

const tailCost = (text: string): QueryCost | null =>
  asCost(lastObject(text, 'cost', (value) => asCost(value) !== null));

function learnFromGraphql(response: ResponseReader): Feedback {
  const { body, status } = response;
  const json = response.json();
  const cost = isRecord(json) ? asCost(recordAt(recordAt(json, 'extensions'), 'cost')) : tailCost(body ?? '');
  const refused = refusalIn(json) ?? (status === 429 ? 'throttled' : null);
  // The bucket never holds what such a query asks for, however long it waits.
  const refusal =
    refused === 'throttled' && (cost?.requested ?? 0) > (cost?.max ?? Infinity) ? 'max_cost' : refused;
  const throttle: Throttle | null =
    refusal === 'throttled'
      ? { kind: 'rate', waitMs: response.statedMs() ?? restoreWaitMs(cost), meter: 'cost' }
      : refusal === 'max_cost'
        ? { kind: 'permanent', reason: 'max_cost', waitMs: null }
        : commerceStatus(response);
  return { ...costTaught(cost), throttle };
}

function costTaught(cost: QueryCost | null): Omit<Feedback, 'throttle'> {
  if (cost === null) return { meters: [] };
  const { max, available, restoreRate, requested, actual } = cost;
  const level = Math.max(0, max - available);
  const windowMs = (max / restoreRate) * 1000;
  return {
    meters: [{ meter: 'cost', limit: max, windowMs, level: { lowest: level, highest: level } }],
    ...given({ requestedCost: requested ?? undefined, actualCost: actual ?? undefined }),
  };
}

/** The refusal among the `errors`; `null` = none. An error beside real data refused only a part of an executed call, so it is no refusal. */
function refusalIn(body: unknown): 'max_cost' | 'throttled' | null {
  const errors = isRecord(body) ? body['errors'] : undefined;
  const data = Object.values(recordAt(body, 'data') ?? {});
  if (!Array.isArray(errors) || data.some((value) => value !== null)) return null;
  const are = (code: string, message: (text: string) => boolean): boolean =>
    errors.some(
      (error) =>
        stringAt(recordAt(error, 'extensions'), 'code') === code || message(stringAt(error, 'message') ?? ''),
    );
  if (are('MAX_COST_EXCEEDED', (text) => text.includes('exceeds the single query max cost limit')))
    return 'max_cost';
  // The message alone before codes existed.
  return are('THROTTLED', (text) => text.trim().toLowerCase() === 'throttled') ? 'throttled' : null;
}

/** Milliseconds until the whole requested cost is available, rounded up; `null` when the cost is missing. */
function restoreWaitMs(cost: QueryCost | null): number | null {
  if (cost === null || cost.requested === null) return null;
  return Math.ceil((Math.max(0, cost.requested - cost.available) / cost.restoreRate) * 1000);
}
