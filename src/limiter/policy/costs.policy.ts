/**
 * The costs of waiting calls: how much of a cost counts, and the sums of a lane and of a bucket.
 * Part of the specification in `scheduler.policy.ts`.
 */
import type { Costs, MeterName } from '../../call.ts';
import { type Bucket, type Lane, turnsOf } from './bucket-state.policy.ts';
import { meterNames, requestWindows } from './meter.policy.ts';

/**
 * The costs that count for a call: of each meter no more than its limit, where one is known. A client may write any number into
 * its call (`max_tokens`), and the forecasts of all others of the bucket rest on the sum of the costs that wait.
 */
export function cappedCosts(bucket: Bucket, asked: Costs): Costs {
  const costs: Partial<Record<MeterName, number>> = {};
  for (const name of meterNames) {
    const units = asked[name] ?? 0;
    if (units <= 0) continue;
    const limit = bucket.meters.get(name)?.limit ?? 0;
    costs[name] = limit > 0 ? Math.min(units, limit) : units;
  }
  return costs;
}

/**
 * The service cost of a call in its lane: the time for which it keeps its most expensive meter busy, in milliseconds (dominant
 * resource), 1 where nothing is known; daily meters do not count, they are not what is waited for. No more than one
 * window, whatever is asked: a lane whose limits change has never more than that to wait for.
 */
export function serviceCost(bucket: Bucket, costs: Costs): number {
  let longest = 0;
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    const meter = bucket.meters.get(name);
    if (units <= 0 || meter === undefined || meter.limit === null || name.endsWith('_day')) continue;
    longest = Math.max(longest, (Math.min(units, meter.limit) * meter.windowMs) / meter.limit);
  }
  return longest > 0 ? longest : 1;
}

/** Waiting calls and their total costs. */
export interface WaitingCalls {
  readonly costs: ReadonlyMap<MeterName, number>;
  readonly calls: number;
}

/** The service cost of the mean of these calls. */
export function meanServiceCost(bucket: Bucket, { costs, calls }: WaitingCalls): number {
  const mean: Partial<Record<MeterName, number>> = {};
  for (const name of meterNames) {
    const units = waitingUnits(bucket, costs, name);
    if (units > 0) mean[name] = units / calls;
  }
  return serviceCost(bucket, mean);
}

/** A ticket with these costs waits: they count in the sums of its lane and its bucket. */
export function addCosts(bucket: Bucket, lane: Lane, costs: Costs): void {
  sumCosts(lane.waitingCosts, costs, 1);
  sumCosts(turnsOf(bucket, lane.key).waitingCosts, costs, 1);
}

/** A ticket with these costs does not wait any more, or its costs have changed: takes them out of both sums. */
export function subtractCosts(bucket: Bucket, lane: Lane, costs: Costs): void {
  sumCosts(lane.waitingCosts, costs, -1);
  sumCosts(turnsOf(bucket, lane.key).waitingCosts, costs, -1);
}

/**
 * What waiting calls with these costs in all take from a meter. A window of requests may have been added by a reload after they
 * came: they take from it what they take from `requests`.
 */
export function waitingUnits(
  bucket: Bucket,
  costs: ReadonlyMap<MeterName, number> | null,
  name: MeterName,
): number {
  if (!requestWindows.includes(name)) return costs?.get(name) ?? 0;
  return bucket.meters.has(name) ? (costs?.get('requests') ?? 0) : 0;
}

/** Adds costs to sums, or takes them out. */
export function sumCosts(sums: Map<MeterName, number>, costs: Costs, sign: 1 | -1): void {
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units > 0) sums.set(name, (sums.get(name) ?? 0) + sign * units);
  }
}

// Documents: what GraphQL calls cost that ask for the same, as far as responses stated it

/** Documents remembered per bucket; the one of which nothing was learned for longest is forgotten first. */
export const maxDocuments = 1_000;

/** Of what new documents turned out to cost the latest counts as this part of the mean. */
const newestShare = 1 / 8;

/** True when no response has stated what the document costs. */
export const isUnseen = ({ documents }: Bucket, document: string | null): document is string =>
  document !== null && !documents.has(document);

/**
 * What a call that asks for the document costs, as far as known, of every window that the bucket has. What nobody has asked for yet is
 * guessed at no more than new documents turned out to cost.
 */
export function knownCosts(bucket: Bucket, costs: Costs, document: string | null): Costs {
  const { documents, meters, unseenPoints } = bucket;
  const guess = unseenPoints === null ? undefined : Math.min(unseenPoints, costs.cost ?? 0);
  const points = document === null ? undefined : (documents.get(document) ?? guess);
  let known = points === undefined ? costs : { ...costs, cost: points };
  for (const name of requestWindows)
    if (meters.has(name) && costs.requests !== undefined) known = { ...known, [name]: costs.requests };
  return known;
}

/** A response stated what a document costs, in points: calls that wait count with that from now on, and new documents with the mean. */
export function learnDocument(bucket: Bucket, document: string, points: number): void {
  const { documents, tickets, lanes } = bucket;
  const before = documents.get(document);
  const mean = bucket.unseenPoints ?? points;
  if (before === undefined) bucket.unseenPoints = mean + (points - mean) * newestShare;
  documents.delete(document);
  documents.set(document, points);
  const [oldest] = documents.keys();
  if (documents.size > maxDocuments && oldest !== undefined) documents.delete(oldest);
  if (before === points) return;
  for (const ticket of tickets.values()) {
    const lane = lanes.get(ticket.lane);
    if (ticket.document === null || ticket.lease !== null || lane === undefined) continue;
    const isDearer = (ticket.costs.cost ?? 0) > (bucket.unseenPoints ?? 0);
    if (ticket.document !== document && !isDearer) continue;
    subtractCosts(bucket, lane, ticket.costs);
    ticket.costs = cappedCosts(bucket, knownCosts(bucket, ticket.costs, ticket.document));
    addCosts(bucket, lane, ticket.costs);
  }
}
