/**
 * The state machine of the shared limiter: what an entry of the log does to the state, the same at every replica. It applies
 * `policy/scheduler.policy.ts` to the bucket that an event names, and adds what no bucket knows alone: which replicas live, what is due in
 * which bucket, and what is withheld at the beginning of a term.
 *
 * Deterministic: nothing but state and entry decides. Bounded: an entry costs its own events and `maxWorkPerEntry`, however many
 * buckets there are; what is left is due at once.
 */
import type { Costs } from '../../call.ts';
import type { BucketKey, CeilingKey, LeaseToken, ReplicaId } from '../../ids.ts';
import type { Entry } from '../../log/log.ts';
import type { BucketSetting, Settlement } from '../limiter.ts';
import * as scheduler from '../policy/scheduler.policy.ts';
import type { Effects, Granted } from '../policy/scheduler.policy.ts';
import {
  allWaiting,
  type Bucket,
  type BucketEvent,
  closedMs,
  createBucket,
  type EventReply,
  ensureMeter,
  laneOf,
  sequencePerMs,
  type Withheld,
  type StoredAdmission,
} from '../policy/bucket-state.policy.ts';
import { confirm, laneFor, wake } from '../policy/lanes.policy.ts';
import { applySettings, closeFor } from '../policy/learning.policy.ts';
import { countUnder } from '../policy/reservations.policy.ts';
import { costEntries, drainRate, markAnswered, take, logMemoryMs } from '../policy/meter.policy.ts';
import { SortedNames } from '../policy/sorted.policy.ts';

/** In a new term nothing is granted for so long while a replica has not said `here`. Milliseconds. */
export const holdMs = 1_300;
/** A bucket in use has its upkeep so often. Milliseconds. */
export const upkeepMs = 1_000;
/** Buckets visited because something is due there, and grants made, within one entry at most. */
export const maxWorkPerEntry = 1_024;
/** A bucket in which something is due that could not be done is visited again after so long. Milliseconds. */
const retryMs = 1;

/** @param leaseMs how long a lease lives after its replica was last heard of, milliseconds */
export const createState = (leaseMs: number): SharedState => ({
  leaseMs,
  term: null,
  replicas: new SortedNames(),
  buckets: new Map(),
  closed: null,
  reserving: new Set(),
  grantsDue: new SortedNames(),
  upkeepDue: new SortedNames(),
});

/** Applies the next entry of the log. */
export function fold(state: SharedState, entry: Entry<LogEvent>): EntryEffects {
  const { at: now, replica } = entry;
  const beginsTerm = entry.term !== state.term?.number;
  // Before replicas are forgotten: after a long absence of the log none was heard of lately, and each may have used units alone.
  if (beginsTerm) state.term = { number: entry.term, beganAt: now, awaited: state.replicas.names() };
  // Leases of a replica that was not heard of for so long have ended, and nobody waits on it.
  const forgottenAt = now - Math.max(state.leaseMs, scheduler.replicaLifeMs);
  for (const name of state.replicas.between(-Infinity, forgottenAt)) state.replicas.delete(name);
  state.replicas.set(replica, now);
  const effects = { grants: [], closed: [], failures: [], beginsTerm };
  const run: Run = { state, replica, now, left: maxWorkPerEntry, ...effects };
  const replies = entry.events.map((event) => applied(run, event));
  visitDue(run);
  return { ...effects, replies, nextAt: nextGrantAt(state, now) };
}

/** One entry being applied. */
interface Run {
  readonly state: SharedState;
  readonly replica: ReplicaId;
  readonly now: number;
  /** What is left of `maxWorkPerEntry`. */
  left: number;
  readonly grants: SharedGrant[];
  readonly closed: { readonly bucket: BucketKey; readonly closedMs: number }[];
  readonly failures: unknown[];
}

function applied(run: Run, event: LogEvent): EventReply | null {
  switch (event.kind) {
    case 'admit':
      return appliedIn(run, event.bucket, event);
    case 'in':
      return appliedIn(run, event.bucket, bounded(run, event.event));
    case 'tick':
      return null;
    case 'report':
      for (const sent of event.sent) putBack(sent, run);
      for (const used of event.used) charge(used, run);
      return null;
    case 'here':
      if (run.state.term?.number === event.term) awaitNoMore(run);
      return null;
    case 'leave':
      run.state.replicas.delete(run.replica);
      awaitNoMore(run);
      return null;
  }
}

function appliedIn(run: Run, key: BucketKey, event: BucketEvent): EventReply | null {
  const { state, replica, now } = run;
  let reply: EventReply | null = null;
  if (event.kind === 'open' && state.closed !== null && state.closed.at <= now - event.agoMs)
    state.closed = null;
  change(run, key, event.kind === 'admit' ? event.admission.setting : null, (bucket) => {
    bucket.replicas.set(replica, now);
    const result = scheduler.apply(bucket, { replica, event }, now);
    reply = result.reply;
    const isSettled = event.kind === 'settle' && result.reply.kind === 'lease' && result.reply.known;
    if (isSettled && event.settlement.kind === 'throttled') noteClosed(run, key, bucket, event.settlement);
    return result;
  });
  return reply;
}

/** A response has closed the bucket for `closeMs`, or every bucket of the log. */
function noteClosed(
  { state, now, closed }: Run,
  key: BucketKey,
  bucket: Bucket,
  { closeMs, closesCredential }: Pick<Throttled, 'closeMs' | 'closesCredential'>,
): void {
  if (closeMs <= 0) return;
  closed.push({ bucket: key, closedMs: closedMs(bucket, now) });
  if (closesCredential !== true) return;
  state.closed = { at: now, until: Math.max(state.closed?.until ?? now, now + closeMs) };
}

type Throttled = Extract<Settlement, { kind: 'throttled' }>;

/** No reservation begins where the ceiling has as many as it may have, over all buckets. */
function bounded<Event extends BucketEvent>({ state, now }: Run, event: Event): Event {
  if (event.kind !== 'reserve') return event;
  const { ceiling, maxReserved, begins } = event.reserving;
  const mayBegin = begins && reservedIn(state, ceiling, now) < maxReserved;
  return { ...event, reserving: { ...event.reserving, begins: mayBegin } };
}

/**
 * A call that was sent under a grant which the state does not have holds its place again. A ticket that was granted anew meanwhile keeps
 * that grant: its owner goes on under it.
 */
function putBack({ bucket: key, lease: token, admission }: SentCall, run: Run): void {
  const { replica, now } = run;
  change(run, key, admission.setting, (bucket) => {
    applySettings(bucket, admission.setting, now);
    const lane = laneFor(bucket, admission.lane, admission);
    const ticket =
      bucket.tickets.get(admission.ticket) ??
      scheduler.ticketOf(admission, replica, scheduler.orderOf(admission, now));
    if (ticket.lease !== null || bucket.leases.has(token)) return pumpLater(bucket, now);
    bucket.tickets.set(ticket.id, ticket);
    scheduler.grant(bucket, { lane, ticket }, now, token);
    const lease = bucket.leases.get(token);
    if (lease !== undefined) confirm(lane, lease);
    return pumpLater(bucket, now);
  });
}

/** Units of ended calls count as taken now, and what they closed is closed from now on: later than they were, so for rather too long. */
function charge(used: UsedUnits, run: Run): void {
  const { now } = run;
  const { bucket: key, setting, costs, closeMs } = used;
  change(run, key, setting, (bucket) => {
    applySettings(bucket, setting, now);
    for (const [name, units] of costEntries(costs)) {
      const meter = ensureMeter(bucket, name, now);
      markAnswered(meter, take(meter, units, now), false);
    }
    if (closeMs > 0) closeFor(bucket, closeMs, now);
    noteClosed(run, key, bucket, used);
    return pumpLater(bucket, now);
  });
}

/** What waits is looked at after all events of the entry. */
const pumpLater = (bucket: Bucket, now: number): Effects => ({
  grants: [],
  nextAt: allWaiting(bucket) > 0 ? now : null,
});

/** The replica has said all that it has to say in this term. */
function awaitNoMore({ state, replica, now }: Run): void {
  const { term } = state;
  if (term?.awaited.includes(replica) !== true) return;
  state.term = { ...term, awaited: term.awaited.filter((one) => one !== replica) };
  if (state.term.awaited.length > 0) return;
  // Lanes may be asleep that would have waited for others.
  for (const key of state.grantsDue.names()) state.grantsDue.set(key, now);
}

/** What is withheld by now, as it is not known which calls all replicas have under way. */
function withheldBy({ term, leaseMs, aloneSince }: SharedState, now: number): Withheld | null {
  const withheld = (what: Withheld['what'], until: number): Withheld | null =>
    now < until ? { what, until } : null;
  if (aloneSince !== undefined) return withheld('capped_lanes_alone', aloneSince + leaseMs);
  if (term === null || term.awaited.length === 0) return null;
  // After that the leases of a replica that is not heard of have ended.
  return withheld('all', term.beganAt + holdMs) ?? withheld('capped_lanes', term.beganAt + leaseMs);
}

/** Visits buckets in which something is due, as far as the work of one entry goes. */
function visitDue(run: Run): void {
  const { grantsDue, upkeepDue } = run.state;
  for (; run.left > 0; run.left -= 1) {
    const grant = withheldBy(run.state, run.now)?.what === 'all' ? undefined : grantsDue.first();
    const due = [grant, upkeepDue.first()].find((each) => each !== undefined && each.score <= run.now);
    if (due === undefined) return;
    visit(run, due.name);
  }
}

function visit(run: Run, key: BucketKey): void {
  const { state, now } = run;
  const hasUpkeep = (state.upkeepDue.scoreOf(key) ?? now) <= now;
  const known = state.buckets.get(key);
  if (known === undefined || (hasUpkeep && isUnused(known))) return forgetBucket(state, key);
  if (hasUpkeep) state.upkeepDue.delete(key);
  change(run, key, null, (bucket) => {
    const { grants, nextAt } = hasUpkeep ? scheduler.upkeep(bucket, now) : scheduler.pump(bucket, now);
    const isLeft = nextAt !== null && nextAt <= now;
    // What could not be done now is not tried again within this entry.
    return { grants, nextAt: isLeft ? (grants.length > 0 ? now : now + retryMs) : nextAt };
  });
}

/**
 * Changes a bucket, and notes when more is due in it. Where there is none, one begins under `setting` (`null`: nothing is changed then). What
 * fails there is a defect, and the bucket is discarded: at every replica alike, so that their states stay equal.
 */
function change(
  run: Run,
  key: BucketKey,
  setting: BucketSetting | null,
  act: (bucket: Bucket) => Effects,
): void {
  const { state, now } = run;
  try {
    const bucket = state.buckets.get(key) ?? (setting === null ? null : createBucket(setting.probe, now));
    if (bucket === null) return;
    state.buckets.set(key, bucket);
    bringUpToDate(state, bucket, now);
    if (isClosedWithAll(state, bucket, now))
      run.closed.push({ bucket: key, closedMs: closedMs(bucket, now) });
    const { grants, nextAt } = act(bucket);
    run.left -= grants.length;
    for (const granted of grants) run.grants.push({ ...granted, bucket: key, at: now });
    schedule(run, key, bucket, nextAt);
  } catch (error) {
    forgetBucket(state, key);
    run.failures.push(error);
  }
}

/** Tells a bucket what the log knows and the bucket needs now: who lives, which leases go on, and what is withheld. */
function bringUpToDate(state: SharedState, bucket: Bucket, now: number): void {
  for (const replica of bucket.replicas.between(-Infinity, now - scheduler.replicaLifeMs)) {
    const heardAt = state.replicas.scoreOf(replica);
    if (heardAt !== null) bucket.replicas.set(replica, heardAt);
  }
  renewLeases(state, bucket, now);
  // A lease's number is never given again, also where entries with leases were lost: the log's time goes on.
  bucket.sequence = Math.max(bucket.sequence, Math.floor(now * sequencePerMs));
  const before = bucket.withheld;
  bucket.withheld = withheldBy(state, now);
  if (before === null || bucket.withheld !== null) return;
  for (const lane of bucket.asleep.names()) wake(bucket, laneOf(bucket, { lane }), ['term']);
}

/** Closes a bucket until the time to which all buckets are closed; false: it is closed as long, or none is. */
function isClosedWithAll({ closed }: SharedState, bucket: Bucket, now: number): boolean {
  if (closed === null || closed.until <= Math.max(now, bucket.closedUntil ?? now)) return false;
  bucket.closedUntil = closed.until;
  bucket.closedAt = closed.at;
  return true;
}

/** A lease lives for one lease after its replica was last heard of; that is noted when the lease would end before the next upkeep. */
function renewLeases({ replicas }: SharedState, bucket: Bucket, now: number): void {
  for (const token of bucket.expiries.between(-Infinity, now + upkeepMs)) {
    const lease = bucket.leases.get(token);
    if (lease === undefined || lease.stage === 'abandoned') continue;
    const { replica, leaseMs } = lease.ticket;
    const heardAt = replicas.scoreOf(replica);
    if (heardAt === null || heardAt + leaseMs <= lease.expiresAt) continue;
    lease.expiresAt = heardAt + leaseMs;
    bucket.expiries.set(token, lease.expiresAt);
  }
}

function schedule({ state, now }: Run, key: BucketKey, bucket: Bucket, nextAt: number | null): void {
  if (bucket.reservations.size > 0) state.reserving.add(key);
  else state.reserving.delete(key);
  // Looked at as soon as nothing is withheld any more.
  const grantAt = bucket.withheld?.what === 'all' && allWaiting(bucket) > 0 ? now : nextAt;
  if (grantAt === null) state.grantsDue.delete(key);
  else state.grantsDue.set(key, grantAt);
  const upkeepAt = isUnused(bucket)
    ? Math.max(
        now + memoryMs(bucket, now) + closedMs(bucket, now),
        ...bucket.reservations.values().map(({ until }) => until),
      )
    : Math.min(state.upkeepDue.scoreOf(key) ?? Infinity, now + upkeepMs);
  state.upkeepDue.set(key, upkeepAt);
}

/** Nothing waits and nothing is in flight: only what was learned is left, and what is kept for clients that come back. */
const isUnused = ({ tickets, leases }: Bucket): boolean => tickets.size === 0 && leases.size === 0;

function forgetBucket({ buckets, reserving, grantsDue, upkeepDue }: SharedState, key: BucketKey): void {
  buckets.delete(key);
  reserving.delete(key);
  grantsDue.delete(key);
  upkeepDue.delete(key);
}

/** How long the state is of use if no entry comes any more, milliseconds; `null` = calls wait or are in flight. */
export function memoryMsOf({ buckets, closed, upkeepDue }: SharedState, now: number): number | null {
  let until = Math.max(now, closed?.until ?? now);
  for (const [key, bucket] of buckets) {
    if (!isUnused(bucket)) return null;
    until = Math.max(until, upkeepDue.scoreOf(key) ?? now);
  }
  return until - now;
}

/** When a waiting call may have room. */
function nextGrantAt(state: SharedState, now: number): number | null {
  const first = state.grantsDue.first();
  if (first === undefined) return null;
  const withheld = withheldBy(state, now);
  return withheld?.what === 'all' ? Math.max(first.score, withheld.until) : first.score;
}

// How long an unused bucket is kept. Clients can create buckets: each model name is one, and each credential that a client brings itself. A
// bucket with an invented name must not be kept as long as one about which something was learned.

/** How long a bucket with a learned level or limit is kept after its last use: longer than any call waits. Milliseconds. */
export const bucketMemoryMs = 3_600_000;
/** How long a bucket is kept whose responses taught nothing: the next burst need not probe again. Milliseconds. */
export const blankMemoryMs = 60_000;
/** How long a bucket without any response is kept: it equals a new one, but replicas may still refer to it. Milliseconds. */
export const unansweredMemoryMs = 5_000;

/** Milliseconds after `now`, the bucket's last use, at which it may be forgotten. The time for which it is closed comes on top. */
export function memoryMs(bucket: Bucket, now: number): number {
  const meters = [...bucket.meters.values()];
  const isOfUse =
    bucket.closedAt !== null || meters.some(({ reported, heardAt }) => reported !== null || heardAt !== null);
  const blankMs = bucket.opened ? blankMemoryMs : unansweredMemoryMs;
  let longest = isOfUse ? bucketMemoryMs : blankMs;
  for (const meter of meters) {
    // A drained meter equals a new one, so the bucket is kept until then. Without a known limit a meter holds no call back.
    const drainedMs = meter.limit === null ? 0 : meter.at + meter.level / drainRate(meter) - now;
    longest = Math.max(
      longest,
      Math.min(drainedMs, bucketMemoryMs),
      meter.log === null ? 0 : logMemoryMs(meter, now),
    );
  }
  return longest;
}

/** How many reservations of the ceiling are kept. */
export function reservedIn({ buckets, reserving }: SharedState, ceiling: CeilingKey, now: number): number {
  let count = 0;
  for (const key of reserving) {
    const bucket = buckets.get(key);
    if (bucket !== undefined) count += countUnder(bucket, ceiling, now);
  }
  return count;
}

// The state that every replica has of one log: the buckets of one upstream credential. It changes only by `fold`, and
// everything that decides is in it: two replicas with the same state and the same entry do the same.

/** One term of the log: until every replica has said what it has under way, too little may be known of what was granted before. */
export interface Term {
  readonly number: number;
  /** Time of its first entry. */
  readonly beganAt: number;
  /** Replicas that were known when it began and have not said `here` in it. */
  readonly awaited: readonly ReplicaId[];
}

/** All times are the log's, milliseconds since 1970. Changed by `fold` alone. */
export interface SharedState {
  /** How long a lease lives after its replica was last heard of, milliseconds. */
  readonly leaseMs: number;
  /** Since when the replica of this state goes on alone (`alone.ts`); absent in the log of all replicas. */
  readonly aloneSince?: number;
  /** `null` before the first entry. */
  term: Term | null;
  /** Replicas that may have leases, by the time of their last entry. */
  readonly replicas: SortedNames<ReplicaId>;
  readonly buckets: Map<BucketKey, Bucket>;
  /** A response closed all buckets at once; each hears of it when something is done in it. `null` = none did. */
  closed: { readonly at: number; readonly until: number } | null;
  /** The buckets that have reservations. */
  readonly reserving: Set<BucketKey>;
  /** Buckets by the time at which a waiting call may have room. */
  readonly grantsDue: SortedNames<BucketKey>;
  /** All buckets: those in use by the time of their next upkeep, the others by the time at which they are forgotten. */
  readonly upkeepDue: SortedNames<BucketKey>;
}

/** A call that was sent under a grant which the state does not have. */
export interface SentCall {
  readonly bucket: BucketKey;
  readonly lease: LeaseToken;
  /** With its position. */
  readonly admission: StoredAdmission;
}

/** What ended calls did to a bucket that may have been lost with the entries that granted them. */
export interface UsedUnits {
  readonly bucket: BucketKey;
  readonly setting: BucketSetting;
  readonly costs: Costs;
  /** For how long the bucket is closed yet, milliseconds; 0 = it is not. */
  readonly closeMs: number;
  /** What closed it closed all buckets of the log. */
  readonly closesCredential?: true;
}

/** What a replica appends. */
export type LogEvent =
  /** Something happens in one bucket. A bucket that does not exist begins with an `admit`, and is passed over otherwise. */
  | {
      readonly kind: 'in';
      readonly bucket: BucketKey;
      readonly event: Exclude<BucketEvent, { kind: 'admit' }>;
    }
  | { readonly kind: 'admit'; readonly bucket: BucketKey; readonly admission: StoredAdmission }
  /** Time goes on: whatever is due happens. Also says that the replica lives. */
  | { readonly kind: 'tick' }
  /** What the state lacks: the replica has these calls under way, and these have ended. */
  | { readonly kind: 'report'; readonly sent: readonly SentCall[]; readonly used: readonly UsedUnits[] }
  /** In this term the replica has reported whatever of its own was lost, in the log and under the ceilings. */
  | { readonly kind: 'here'; readonly term: number }
  /** The replica has nothing under way and leaves: it has nothing to say in later terms. */
  | { readonly kind: 'leave' };

/** A grant, and in which bucket. */
export interface SharedGrant extends Granted {
  readonly bucket: BucketKey;
  /** The log's time, milliseconds. */
  readonly at: number;
}

/** What an entry did. */
export interface EntryEffects {
  /**
   * One for each event. `null` = no bucket knew of it, the event is answered by nothing (`tick`, `report`, `here`), or it failed.
   */
  readonly replies: readonly (EventReply | null)[];
  /** Of all replicas, in the order in which they were made. */
  readonly grants: readonly SharedGrant[];
  /** Buckets that a response closed, and for how long from the entry's time. */
  readonly closed: readonly { readonly bucket: BucketKey; readonly closedMs: number }[];
  /**
   * What failed in a bucket, which is a defect: the bucket was emptied, at every replica alike. Whoever has a call in it enters that again, or
   * reports it in a `report` if it was sent.
   */
  readonly failures: readonly unknown[];
  /** When a waiting call may have room, so that an entry is needed; `null` = none before the next event. At once where it is past. */
  readonly nextAt: number | null;
  /** A new term has begun with this entry: every replica says `here`. */
  readonly beginsTerm: boolean;
}

/** The state as it is now. Takes about three milliseconds for a thousand calls that wait. */
export const snapshot = (state: SharedState): string => JSON.stringify(state, plain);

/** @throws SyntaxError for what `snapshot` did not write */
export function restore(text: string): SharedState {
  // What is JSON was written by `snapshot`.
  const state = JSON.parse(text, revived) as SharedState;
  for (const { leases, tickets } of state.buckets.values()) {
    for (const [token, lease] of leases) {
      const ticket = tickets.get(lease.ticket.id);
      // The bucket may have the ticket no more (the fate of its call is unknown), or another one of its name.
      if (ticket?.lease === token) leases.set(token, { ...lease, ticket });
    }
  }
  return state;
}

/** What JSON has no form for becomes an object of one member, which no state has. */
function plain(_name: string, value: unknown): unknown {
  if (value instanceof Map) return { $map: [...value] };
  if (value instanceof Set) return { $set: [...value] };
  if (value instanceof SortedNames)
    return { $sorted: value.names().map((name) => [name, value.scoreOf(name)]) };
  return value;
}

function revived(_name: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if ('$map' in value) return new Map(value.$map as [unknown, unknown][]);
  if ('$set' in value) return new Set(value.$set as unknown[]);
  if (!('$sorted' in value)) return value;
  const names = new SortedNames();
  for (const [name, number] of value.$sorted as [string, number][]) names.set(name, number);
  return names;
}
