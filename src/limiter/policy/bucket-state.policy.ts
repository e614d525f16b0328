/**
 * The data of one bucket: lanes with their lines, meters, leases; how many leases it may have, what waiting calls cost; and what can happen
 * to it. Plain values only, so that a snapshot can hold them. `scheduler.policy.ts` says what the events mean.
 *
 * `null` stands for "never" and "unknown"; no time and no count has a value with another meaning.
 */
import type { Costs, Feedback, MeterName } from '../../call.ts';
import {
  type CallerKey,
  type CeilingKey,
  isBackground,
  type LaneKey,
  type LeaseToken,
  type ReplicaId,
  type TicketId,
} from '../../ids.ts';
import type {
  Admission,
  AdmissionReply,
  CeilingEdge,
  Lesson,
  Reconfiguration,
  Reserved,
  Reserving,
  Settlement,
  SleepReason,
} from '../limiter.ts';
import {
  costEntries,
  createMeter,
  type Meter,
  type MeterMark,
  meterNames,
  requestWindows,
} from './meter.policy.ts';
import { SortedNames } from './sorted.policy.ts';

/** Sequence numbers stay below this; an order is `urgency * orderUnit + arrival`. */
export const orderUnit = 2 ** 48;
/**
 * Arrivals are counted in this many steps per millisecond, and so are the numbers of a bucket's leases, from its creation
 * on: a store that lost everything never gives the same token again. Fits below `orderUnit` until 2109.
 */
export const sequencePerMs = 64;

/** A call in its lane; keeps its position (`order`) over resends. */
export interface Ticket {
  readonly id: TicketId;
  readonly lane: LaneKey;
  readonly replica: ReplicaId;
  /** Urgency, then arrival: `urgency * orderUnit + arrival`. */
  readonly order: number;
  readonly callClass: string;
  /** The caller with which it takes turns; absent: it names none. */
  caller?: CallerKey;
  /** What the ticket counts for in the sums of waiting costs. */
  costs: Costs;
  /** What the call asks for, where only a response states the cost; `null` = its costs are known. */
  readonly document: string | null;
  readonly leaseMs: number;
  /** Lease of the grant that the ticket holds; `null` while it waits. */
  lease: LeaseToken | null;
  /** What its client came back for. It ends with the grant, and is kept again where that goes back. Absent: it is a new call. */
  reservation?: Reservation;
}

/** A position that is kept for the client of a refused call. */
export interface Reservation {
  /** The ticket of the call that was refused first, or what its client names it. */
  readonly id: TicketId;
  readonly lane: LaneKey;
  /** The ceiling of which it keeps a slot. */
  readonly ceiling: CeilingKey;
  /** As of a ticket. */
  readonly order: number;
  readonly costs: Costs;
  /** The time that the client was told. */
  readonly from: number;
  /** Until then the client may come back. */
  readonly until: number;
  /** The call that has come back and waits; `null` = none has. */
  readonly ticket: TicketId | null;
}

/** How far a lease has come, as its replica reported. Stages follow in this order, and some may be left out. */
export type LeaseStage =
  /** Granted while slots of the ceiling are few, and it has not taken one yet: counted in its lane's `unconfirmed`. */
  | 'unconfirmed'
  /** The call has taken its slot of the ceiling, or there were plenty. */
  | 'confirmed'
  /** The fate of the call is unknown: only time ends the lease. */
  | 'abandoned';

export interface Lease {
  readonly token: LeaseToken;
  readonly ticket: Ticket;
  readonly grantedAt: number;
  /** Of a background call: since when none had left before it. Absent: it is none. */
  backgroundSince?: number;
  readonly marks: ReadonlyMap<MeterName, MeterMark>;
  expiresAt: number;
  /** A response was learned from: its costs are no longer on their way. */
  answered: boolean;
  stage: LeaseStage;
}

export interface Lane {
  readonly key: LaneKey;
  weight: number;
  maxInFlight: number | null;
  /** The workspace's ceiling per minute; `null` = none. */
  perMinute: number | null;
  /** Stands for the limits of the workspace's ceiling: `LaneSetting.ceilingTag`. */
  ceilingTag: string;
  /** Start tag of the lane's next ticket (start-time fair queueing). */
  start: number;
  /** Of its calls in flight. */
  readonly leases: Set<LeaseToken>;
  /** Waiting tickets, ordered. */
  readonly line: SortedNames<TicketId>;
  /** The same by caller; `null` = no call that waits names one. */
  callers: Callers | null;
  /** Sum of the waiting tickets' costs per meter. */
  readonly waitingCosts: Map<MeterName, number>;
  /** Out of the running until the latest of these times, by reason. Empty = awake. */
  readonly asleep: Map<SleepReason, number>;
  /** Slots left under the lane's ceiling when last reported; `null` = plenty. */
  slots: number | null;
  /** Grants since `slots` was reported that have not taken their slot yet. */
  unconfirmed: number;
  /** Mean time a grant of this lane stays in flight, milliseconds, rather too short; starts at 0. */
  serviceMs: number;
  /** When it was last granted something. */
  grantedAt: number | null;
  /** When a slot of its ceiling last came back unused; `null` = never. A refusal that may be older says nothing of it. */
  slotBackAt: number | null;
  /** Class under which the lane is in a ready set; `null` = not ready. */
  readyAs: string | null;
}

/** Callers of a lane, which take turns. */
export interface Callers {
  /** Virtual time: start tag of the last granted ticket. */
  virtual: number;
  /** The waiting tickets of each, and the start tag of its next one. */
  readonly lines: Map<CallerKey, { readonly line: SortedNames<TicketId>; start: number }>;
  /** Those with waiting tickets, by start tag. */
  readonly turns: SortedNames<CallerKey>;
}

/** What is not granted because it is not known which calls other replicas have under way. */
export interface Withheld {
  /**
   * `all`: nothing is granted. `capped_lanes`: lanes with a cap on calls in flight wait, and all of a bucket with one.
   * `capped_lanes_alone`: the same for the replica that goes on alone, where nobody will say it sooner.
   */
  readonly what: 'all' | 'capped_lanes' | 'capped_lanes_alone';
  /** At the latest: the other replicas may say it sooner. */
  readonly until: number;
}

/** Lanes that take turns with each other (start-time fair queueing, ADR 20), and what waits in them. */
export interface Turns {
  /** Ready lanes by start tag, one set per class of their head. */
  readonly ready: Map<string, SortedNames<LaneKey>>;
  /** Virtual time: start tag of the last granted ticket. */
  virtual: number;
  /** Waiting tickets. */
  waiting: number;
  /** Sum of their costs per meter. */
  readonly waitingCosts: Map<MeterName, number>;
}

/** Background lanes take turns when no other lane can go. */
export interface Background extends Turns {
  /** When one of their calls was last granted; or since when calls wait, if that is later. */
  since: number;
}

/** The lanes that take turns are its own, but for those of `background`. */
export interface Bucket extends Turns {
  readonly meters: Map<MeterName, Meter>;
  readonly lanes: Map<LaneKey, Lane>;
  readonly tickets: Map<TicketId, Ticket>;
  readonly leases: Map<LeaseToken, Lease>;
  readonly reservations: Map<TicketId, Reservation>;
  /** Reservations by the time from which on their room is left free. */
  readonly reservationsDue: SortedNames<TicketId>;
  /** Leases by expiry. */
  readonly expiries: SortedNames<LeaseToken>;
  /** Sleeping lanes by waking time. */
  readonly asleep: SortedNames<LaneKey>;
  /** Replicas by the time they were last heard of. */
  readonly replicas: SortedNames<ReplicaId>;
  /** What documents cost, in points, as responses stated it; what was learned last comes last. */
  readonly documents: Map<string, number>;
  /** What a document cost on average that nobody had asked for before; `null` = no response has stated a cost. */
  unseenPoints: number | null;
  learn: boolean;
  probe: number;
  /** Leases over all lanes at most, as configuration states; `null` = any number. */
  maxInFlight: number | null;
  /** As learned from the last refusal that said that too many calls were in flight; `null` = none did. */
  learnedInFlight: { readonly max: number; readonly at: number } | null;
  /** Mean time a grant stays in flight, as `Lane.serviceMs`. */
  serviceMs: number;
  /** False until a response stated the level, or showed that its upstream states none. */
  opened: boolean;
  probingSince: number | null;
  closedUntil: number | null;
  /** When a response last closed the bucket. */
  closedAt: number | null;
  /** At the beginning of a term; `null` = nothing is withheld. Forecasts count on what ends at a known time. */
  withheld: Withheld | null;
  /** Lanes of background calls, which wait apart; `null` = there were none. */
  background: Background | null;
  /** Number of the latest lease. */
  sequence: number;
  lastGrantAt: number | null;
  /** When a call was first granted after it was last closed, and how many have been since; `null` = it was never closed. */
  reopening: { readonly since: number; readonly grants: number } | null;
  /**
   * The latest call, where a crowd waits for its response until then at most, and when a call had been granted before it. `null` = none
   * waits.
   */
  pilot: { readonly token: LeaseToken; readonly until: number; readonly silentSince: number } | null;
}

/** A bucket that nobody has used yet. `probe`: how many calls may be in flight before the first response; 0 = any number. */
export function createBucket(probe: number, now: number): Bucket {
  return {
    meters: new Map(),
    lanes: new Map(),
    tickets: new Map(),
    leases: new Map(),
    reservations: new Map(),
    reservationsDue: new SortedNames(),
    expiries: new SortedNames(),
    asleep: new SortedNames(),
    replicas: new SortedNames(),
    documents: new Map(),
    unseenPoints: null,
    learn: true,
    probe,
    maxInFlight: null,
    learnedInFlight: null,
    serviceMs: 0,
    opened: probe <= 0,
    probingSince: null,
    closedUntil: null,
    closedAt: null,
    withheld: null,
    background: null,
    sequence: Math.floor(now * sequencePerMs),
    lastGrantAt: null,
    reopening: null,
    pilot: null,
    ...noTurns(),
  };
}

/** Without any lane. */
export const noTurns = (): Turns => ({
  ready: new Map(),
  virtual: 0,
  waiting: 0,
  waitingCosts: new Map(),
});

/** The turns in which the lane is. */
export const turnsOf = (bucket: Bucket, lane: LaneKey): Turns =>
  isBackground(lane) ? (bucket.background ?? nobody) : bucket;

/** Before the first background lane comes. */
const nobody = noTurns();

/** The lane of a ticket that waits or has a lease: it is there for as long. */
export function laneOf(bucket: Bucket, { lane: key }: Pick<Ticket, 'lane'>): Lane {
  const lane = bucket.lanes.get(key);
  if (lane === undefined) throw new TypeError('a ticket has no lane');
  return lane;
}

/** Waiting tickets, also of background lanes. */
export const allWaiting = ({ waiting, background }: Bucket): number => waiting + (background?.waiting ?? 0);

/** Milliseconds for which nobody may send yet; 0 = the bucket is open. */
export const closedMs = ({ closedUntil }: Pick<Bucket, 'closedUntil'>, now: number): number =>
  closedUntil === null ? 0 : Math.max(0, closedUntil - now);

export function ensureMeter(bucket: Bucket, name: MeterName, now: number): Meter {
  let meter = bucket.meters.get(name);
  if (meter === undefined) {
    meter = createMeter(name, now);
    bucket.meters.set(name, meter);
  }
  return meter;
}

// How many leases a bucket may have over all its lanes: as configuration states, and as refusals teach that say that too many calls are in flight

/** What refusals taught goes up by one after so long without another of them: the upstream may take more again. Milliseconds. */
export const raiseEveryMs = 60_000;

/** `null` = any number. */
export function maxInFlightOf(
  { maxInFlight, learnedInFlight }: Pick<Bucket, 'maxInFlight' | 'learnedInFlight'>,
  now: number,
): number | null {
  if (learnedInFlight === null) return maxInFlight;
  const { max, at } = learnedInFlight;
  const learned = max + Math.max(0, Math.floor((now - at) / raiseEveryMs));
  return maxInFlight === null ? learned : Math.min(maxInFlight, learned);
}

/** True when the bucket has as many leases as it may have. */
export function isFull(bucket: Bucket, now: number): boolean {
  const max = maxInFlightOf(bucket, now);
  return max !== null && bucket.leases.size >= max;
}

/** The upstream refused a call that is in flight yet, because too many are: it took one fewer. */
export function learnFromRefusal(bucket: Bucket, now: number): void {
  const max = Math.min(bucket.leases.size - 1, maxInFlightOf(bucket, now) ?? Infinity);
  bucket.learnedInFlight = { max: Math.max(1, max), at: now };
}

// First calls: how many may be on their way while nobody knows whether the upstream takes them: probes of a bucket of which no response has
// stated anything yet, a pilot where a crowd waits after a silence, and the first ones after a refusal by an upstream that states no limit
// (docs/adr/0003).

/** The number of first calls doubles at this interval, so that a slow response delays no call for long. */
const doublingMs = 250;
/** After so many doublings a million calls may go: more than wait anywhere. */
const maxDoublings = 20;

/** After so long without a grant the upstream may have closed the bucket unnoticed. Milliseconds. */
export const silenceMs = 10_000;
/**
 * How long the others wait at most for the response to a pilot, milliseconds. Refusals come faster than that; and as it is a hundredth of
 * the silence, pilots cost at most 1 % of time.
 */
export const pilotMs = 100;
/** Fewer waiting calls than this need no pilot, because a closed upstream could refuse only few of them. */
export const pilotCrowd = 8;

/** When the next call may be sent; `now` or earlier = at once. */
export function nextFirstCallAt(bucket: Bucket, now: number): number {
  const { pilot, probe, probingSince } = bucket;
  if (pilot !== null && pilot.until > now && allWaiting(bucket) >= pilotCrowd) return pilot.until;
  const reopensMs = reopensInMs(bucket, 0, now);
  if (reopensMs > 0) return now + reopensMs;
  if (bucket.opened || probe <= 0 || probingSince === null) return now;
  const steps = Math.min(maxDoublings, Math.floor((now - probingSince) / doublingMs));
  if (bucket.leases.size < probe * 2 ** steps) return now;
  return probingSince + (steps + 1) * doublingMs;
}

/** After so many doublings a crowd of a thousand has left. */
const maxReopening = 10;

/**
 * Milliseconds until a call may leave that has so many before it; 0 = now. An upstream whose responses state no limit, and whose windows
 * nobody has described, would refuse most of a crowd again, and count that: after it was closed the number of calls that have left doubles
 * with each interval.
 */
export function reopensInMs(bucket: Bucket, ahead: number, now: number): number {
  const { closedUntil, reopening, learnedInFlight, meters } = bucket;
  if (closedUntil === null || learnedInFlight !== null) return 0;
  for (const { reported, log } of meters.values()) if (reported !== null || log !== null) return 0;
  const isUnused = reopening === null || reopening.since < closedUntil;
  const { since, grants } = isUnused ? { since: Math.max(closedUntil, now), grants: 0 } : reopening;
  let doublings = 0;
  while (doublings < maxReopening && 2 ** doublings <= grants + ahead) doublings += 1;
  return Math.max(0, since + doublings * doublingMs - now);
}

/** A call was granted and has left its line: after a silence it is the pilot of the calls that wait. */
export function noteGrant(bucket: Bucket, { token }: Lease, now: number): void {
  const { lastGrantAt: silentSince, closedUntil, reopening } = bucket;
  const isPilot = silentSince !== null && now - silentSince >= silenceMs && allWaiting(bucket) >= pilotCrowd;
  bucket.pilot = isPilot ? { token, until: now + pilotMs, silentSince } : null;
  bucket.lastGrantAt = now;
  if (closedUntil === null) return;
  const isFirst = reopening === null || reopening.since < closedUntil;
  bucket.reopening = isFirst ? { since: now, grants: 1 } : { ...reopening, grants: reopening.grants + 1 };
}

/** The outcome of the lease's call is known. If it was the pilot, the others need not wait for it any more. */
export function endPilot(bucket: Bucket, { token }: Lease): void {
  if (bucket.pilot?.token === token) bucket.pilot = null;
}

/** The lease's call was not sent. If it was the pilot, the silence goes on, and the next granted call is the pilot. */
export function recallPilot(bucket: Bucket, { token }: Lease): void {
  if (bucket.pilot?.token === token) bucket.lastGrantAt = bucket.pilot.silentSince;
}

// What can happen to a bucket, and what is answered. `scheduler.policy.ts` says what they mean

/** An admission as a log takes it: times are the log's. */
export interface StoredAdmission extends Omit<Admission, 'bucket'> {
  /** How long a granted lease lives without renewal, milliseconds. */
  readonly leaseMs: number;
}

export type BucketEvent =
  /** Enters a ticket into its lane, or refuses it. */
  | { readonly kind: 'admit'; readonly admission: StoredAdmission }
  /** The client of a refused call will come back: its position is kept. */
  | { readonly kind: 'reserve'; readonly admission: StoredAdmission; readonly reserving: Reserving }
  /** Ends a lease, and learns from its response. */
  | {
      readonly kind: 'settle';
      readonly lease: LeaseToken;
      readonly settlement: Settlement;
      readonly lesson: TimedLesson | null;
      /** The call may have ended long before: the log was away, or lacked the end. */
      readonly isLate?: true;
    }
  /** Learns from a response whose call goes on. */
  | { readonly kind: 'learn'; readonly lease: LeaseToken; readonly lesson: TimedLesson }
  /** The lease took a slot of a ceiling that is nearly used; `null` = it is not nearly used any more. */
  | { readonly kind: 'slot_taken'; readonly lease: LeaseToken; readonly edge: CeilingEdge | null }
  /** A waiting ticket leaves. */
  | { readonly kind: 'cancel'; readonly ticket: TicketId }
  /** New settings hold for the bucket and these lanes. */
  | ({ readonly kind: 'reconfigure' } & Omit<Reconfiguration, 'bucket'>)
  /** A slot of the lane's ceiling came back in another bucket: the lane does not sleep for its ceiling any more. */
  | { readonly kind: 'wake'; readonly lane: LaneKey }
  /** An operator reopens what a response closed up to this many milliseconds ago. */
  | { readonly kind: 'open'; readonly agoMs: number };

export type AdmitReply =
  /** `order`: the position, to be given back if it must be entered again. The grant is one of the effects. */
  | { readonly kind: 'granted'; readonly order: number }
  | (Extract<AdmissionReply, { kind: 'queued' }> & { readonly order: number })
  | Exclude<Extract<AdmissionReply, { kind: 'refused' }>, { reason: 'limiter_unavailable' }>;

export type ReserveReply = { readonly kind: 'reserved' } & Reserved;

export type EventReply =
  | AdmitReply
  | ReserveReply
  /** To an event that names a lease. False: it had ended or was lost. */
  | { readonly kind: 'lease'; readonly known: boolean }
  | { readonly kind: 'done' };

/** A lesson with its times on the store's clock. */
export interface TimedLesson {
  readonly feedback: Feedback;
  readonly sentAt: number;
  readonly headAt: number;
}

export const timed = ({ feedback, sentAgoMs, headAgoMs }: Lesson, now: number): TimedLesson => ({
  feedback,
  sentAt: now - sentAgoMs,
  headAt: now - headAgoMs,
});

// The costs of waiting calls: how much of a cost counts, and the sums of a lane and of a bucket

/**
 * The costs that count for a call: of each meter no more than its limit, where one is known. A client may write any number into
 * its call (`max_tokens`), and the forecasts of all others of the bucket rest on the sum of the costs that wait.
 */
export function cappedCosts(bucket: Bucket, asked: Costs): Costs {
  const costs: Partial<Record<MeterName, number>> = {};
  for (const [name, units] of costEntries(asked))
    costs[name] = Math.min(units, bucket.meters.get(name)?.limit ?? units);
  return costs;
}

/**
 * The service cost of a call in its lane: the time for which it keeps its most expensive meter busy, in milliseconds (dominant
 * resource), 1 where nothing is known; daily meters do not count, they are not what is waited for. No more than one
 * window, whatever is asked: a lane whose limits change has never more than that to wait for.
 */
export function serviceCost(bucket: Bucket, costs: Costs): number {
  let longest = 0;
  for (const [name, units] of costEntries(costs)) {
    const { limit = null, windowMs = 0 } = bucket.meters.get(name) ?? {};
    if (limit !== null && !name.endsWith('_day'))
      longest = Math.max(longest, (Math.min(units, limit) * windowMs) / limit);
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

/** A ticket with these costs waits, or does not any more (-1): they count in the sums of its lane and its bucket. */
export function countCosts(bucket: Bucket, lane: Lane, costs: Costs, sign: 1 | -1): void {
  addCosts(lane.waitingCosts, costs, sign);
  addCosts(turnsOf(bucket, lane.key).waitingCosts, costs, sign);
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

/** Adds costs to sums, or takes them out (-1). */
export function addCosts(sums: Map<MeterName, number>, costs: Costs, sign: 1 | -1 = 1): void {
  for (const [name, units] of costEntries(costs)) sums.set(name, (sums.get(name) ?? 0) + sign * units);
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
  const { documents, tickets } = bucket;
  const before = documents.get(document);
  const mean = bucket.unseenPoints ?? points;
  if (before === undefined) bucket.unseenPoints = mean + (points - mean) * newestShare;
  documents.delete(document);
  documents.set(document, points);
  const [oldest] = documents.keys();
  if (documents.size > maxDocuments && oldest !== undefined) documents.delete(oldest);
  if (before === points) return;
  for (const ticket of tickets.values()) {
    if (ticket.document === null || ticket.lease !== null) continue;
    const isDearer = (ticket.costs.cost ?? 0) > (bucket.unseenPoints ?? 0);
    if (ticket.document !== document && !isDearer) continue;
    const lane = laneOf(bucket, ticket);
    countCosts(bucket, lane, ticket.costs, -1);
    ticket.costs = cappedCosts(bucket, knownCosts(bucket, ticket.costs, ticket.document));
    countCosts(bucket, lane, ticket.costs, 1);
  }
}
