/**
 * What a commerce GraphQL response teaches: the cost of the document and the state of the points bucket.
 *
 * Owns: `extensions.cost` and the refusals that come as HTTP 200. Does not own: computing a cost (it is learned, not
 * predicted) and holding reservations back (`currentlyAvailable` is read after the refund of this call and hides those
 * of others). Invariant: never throws, whatever the body; the sizes are re-read every time because they may change.
 */
import type { Feedback, MeterReport, Throttle } from '../../call.ts';
import { retryAfterMs } from '../retry-after.policy.ts';
import { appScope } from './app-scope.policy.ts';
import { commerceStatus } from './commerce-rest.policy.ts';
import { believable } from './believable.policy.ts';
import type { ResponseFacts } from './facts.policy.ts';
import {
  countAt,
  isRecord,
  lastObject,
  numberAt,
  parseJson,
  recordAt,
  stringAt,
  type JsonRecord,
} from './json.policy.ts';

/** `extensions.cost` as numbers. Points; `restoreRate` points per second. */
export interface QueryCost {
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
export function costFromTail(text: string): Feedback {
  return believable({ ...costTaught(tailCost(text)), throttle: null });
}

function tailCost(text: string): QueryCost | null {
  return asCost(lastObject(text, 'cost', (value) => asCost(value) !== null));
}

export function learnFromCommerceGraphql({ status, fields, body, nowMs }: ResponseFacts): Feedback {
  const parsed = body === null ? undefined : parseJson(body);
  const cost = isRecord(parsed)
    ? asCost(recordAt(recordAt(parsed, 'extensions'), 'cost'))
    : tailCost(body ?? '');
  const statedMs = retryAfterMs(fields, nowMs);
  const throttle = refusalIn(parsed, cost, statedMs) ?? byStatus(status, cost, statedMs);
  return { ...costTaught(cost), throttle, ...appScope(fields) };
}

function costTaught(cost: QueryCost | null): Omit<Feedback, 'throttle'> {
  if (cost === null) return { meters: [] };
  return {
    meters: [meterOf(cost)],
    ...(cost.requested === null ? {} : { requestedCost: cost.requested }),
    ...(cost.actual === null ? {} : { actualCost: cost.actual }),
  };
}

function meterOf({ max, available, restoreRate }: QueryCost): MeterReport {
  const level = Math.max(0, max - available);
  const windowMs = (max / restoreRate) * 1000;
  return { meter: 'cost', limit: max, windowMs, level: { lowest: level, highest: level } };
}

function byStatus(status: number, cost: QueryCost | null, statedMs: number | null): Throttle | null {
  if (status === 429) return { kind: 'rate', waitMs: statedMs ?? restoreWaitMs(cost), meter: 'cost' };
  return commerceStatus(status, null, statedMs);
}

/** The refusal among the `errors`; `null` = none. An error beside real data refused only a part of an executed call, so it is no refusal. */
function refusalIn(body: unknown, cost: QueryCost | null, statedMs: number | null): Throttle | null {
  const errors = isRecord(body) ? body['errors'] : undefined;
  if (!Array.isArray(errors) || hasData(body)) return null;
  if (errors.some(isMaxCost)) return { kind: 'permanent', reason: 'max_cost', waitMs: null };
  if (!errors.some(isThrottled)) return null;
  return { kind: 'rate', waitMs: statedMs ?? restoreWaitMs(cost), meter: 'cost' };
}

function hasData(body: unknown): boolean {
  const data = recordAt(body, 'data');
  return data !== null && Object.values(data).some((value) => value !== null);
}

function isThrottled(error: unknown): boolean {
  if (stringAt(recordAt(error, 'extensions'), 'code') === 'THROTTLED') return true;
  return stringAt(error, 'message')?.trim().toLowerCase() === 'throttled'; // before codes existed
}

function isMaxCost(error: unknown): boolean {
  if (stringAt(recordAt(error, 'extensions'), 'code') === 'MAX_COST_EXCEEDED') return true;
  return stringAt(error, 'message')?.includes('exceeds the single query max cost limit') ?? false;
}

/** Milliseconds until the whole requested cost is available, rounded up; `null` when the cost is missing. */
function restoreWaitMs(cost: QueryCost | null): number | null {
  if (cost === null || cost.requested === null) return null;
  return Math.ceil((Math.max(0, cost.requested - cost.available) / cost.restoreRate) * 1000);
}
