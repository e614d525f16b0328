/**
 * The protocol of a bucket as a fold: every event is applied as if it had come alone, all at one time. Part of the
 * specification in `scheduler.policy.ts`; `lua/apply.lua` mirrors it.
 */
import type { BucketEvent, EventReply, LeaseReply, StoredAdmission } from './bucket-events.ts';
import { type Bucket } from './bucket-state.policy.ts';
import { meterNames } from './meter-names.policy.ts';
import type { LeaseToken, ReplicaId } from '../../ids.ts';
import type { MeterSnapshot } from '../limiter.ts';
import type { BucketAdmission } from './admit.policy.ts';
import { levelAt } from './meter.policy.ts';
import { maxPerPump, type Effects, type Granted } from './pump.policy.ts';
import * as scheduler from './scheduler.policy.ts';
import type { TimedLesson } from './scheduler.policy.ts';

export interface BatchResult {
  /** Replies to the first events. The others were not applied, so that one batch with many grants does not hold up the store. */
  readonly replies: readonly EventReply[];
  /** In the order in which they were made, also those that replies report. */
  readonly grants: readonly Granted[];
  /** Earliest time at which another pump may grant; `null` = no pump grants before the next event. */
  readonly nextAt: number | null;
  /** True when any event ended in a pump; `nextAt` means nothing otherwise. */
  readonly pumped: boolean;
  /** Leases that events named and that were there: their grants need not be reported again. */
  readonly named: readonly LeaseToken[];
  /** An event closed the bucket. */
  readonly closes: boolean;
}

/** What one event did. */
interface Done {
  readonly reply: EventReply;
  readonly effects: Effects | null;
  readonly named?: readonly LeaseToken[];
  readonly closes?: boolean;
}

/** What events are applied to, by whom and when. */
interface Run {
  readonly bucket: Bucket;
  readonly replica: ReplicaId;
  readonly now: number;
}

/** Applies events to a bucket that is there, in order. At least the first one is applied. */
export function apply(
  bucket: Bucket,
  { replica, events }: { readonly replica: ReplicaId; readonly events: readonly BucketEvent[] },
  now: number,
): BatchResult {
  const at: Run = { bucket, replica, now };
  const replies: EventReply[] = [];
  const grants: Granted[] = [];
  const named: LeaseToken[] = [];
  let nextAt: number | null = null;
  let pumped = false;
  let closes = false;
  for (const event of events) {
    if (grants.length >= maxPerPump) break;
    const done = applyOne(at, event);
    replies.push(done.reply);
    named.push(...(done.named ?? []));
    closes ||= done.closes === true;
    if (done.effects === null) continue;
    grants.push(...done.effects.grants);
    ({ nextAt } = done.effects);
    pumped = true;
  }
  // What a search for tickets of dead replicas has left is for the next tick, which is due at once.
  if (bucket.searchedTo !== null) nextAt = now;
  return { replies, grants, nextAt, pumped, named, closes };
}

function applyOne(run: Run, event: BucketEvent): Done {
  const { bucket, now } = run;
  switch (event.kind) {
    case 'admit':
      return admitted(run, event.admission);
    case 'settle': {
      const { lease, settlement, lesson } = event;
      const held = bucket.leases.get(lease);
      const isHeld = held !== undefined && held.stage !== 'abandoned';
      const learned = lesson === null ? null : notAfter(lesson, now);
      return {
        ...onLease(isHeld, lease, scheduler.settle(bucket, { lease, settlement, lesson: learned }, now)),
        closes: isHeld && settlement.kind === 'throttled' && settlement.closeMs > 0,
      };
    }
    case 'learn': {
      const { lease, lesson } = event;
      const isKnown = bucket.leases.has(lease);
      return onLease(isKnown, lease, scheduler.learn(bucket, { lease, lesson: notAfter(lesson, now) }, now));
    }
    case 'charge': {
      const isKnown = bucket.leases.has(event.lease);
      return onLease(isKnown, event.lease, scheduler.charged(bucket, event, now));
    }
    case 'cancel':
      return { reply: { kind: 'cancel' }, effects: scheduler.cancel(bucket, event.ticket, now) };
    case 'forecast': {
      const forecast = scheduler.forecast(bucket, event.ticket, now);
      return { reply: { kind: 'forecast', forecast }, effects: null };
    }
    case 'tick':
      return ticked(run, event.leases);
    case 'reconfigure':
      return { reply: { kind: 'reconfigure' }, effects: scheduler.reconfigure(bucket, event, now) };
    case 'wake':
      return { reply: { kind: 'wake' }, effects: scheduler.wakeForSlot(bucket, event.lane, now) };
    case 'open':
      return { reply: { kind: 'open' }, effects: scheduler.open(bucket, event.before, now) };
  }
}

function onLease(known: boolean, lease: LeaseToken, effects: Effects): Done & { readonly reply: LeaseReply } {
  return { reply: { kind: 'lease', known }, effects, named: known ? [lease] : [] };
}

function admitted({ bucket, replica, now }: Run, asked: StoredAdmission): Done {
  const admission = onStoreClock(asked, now);
  const { effects, ...reply } = scheduler.admit(bucket, { admission, replica }, now);
  return { reply, effects };
}

function onStoreClock(admission: StoredAdmission, now: number): BucketAdmission {
  const { position } = admission;
  if (position.kind === 'kept') return { ...admission, position };
  return { ...admission, position: { kind: 'arrival', at: position.at ?? now } };
}

function ticked({ bucket, replica, now }: Run, leases: readonly LeaseToken[]): Done {
  const named = leases.filter((token) => {
    const lease = bucket.leases.get(token);
    return lease?.ticket.replica === replica && lease.stage !== 'abandoned';
  });
  const effects = scheduler.tick(bucket, { replica, leases }, now);
  let waitingHere = 0;
  for (const ticket of bucket.tickets.values()) {
    if (ticket.replica === replica && ticket.lease === null) waitingHere += 1;
  }
  const missing = leases.filter((token) => !named.includes(token));
  return { reply: { kind: 'tick', waitingHere, meters: metersOf(bucket, now), missing }, effects, named };
}

/** As of now, without moving the meters themselves. */
function metersOf(bucket: Bucket, now: number): MeterSnapshot[] {
  const meters: MeterSnapshot[] = [];
  for (const name of meterNames) {
    const meter = bucket.meters.get(name);
    if (meter === undefined || meter.limit === null) continue;
    const { limit, windowMs } = meter;
    meters.push({ meter: name, limit, level: levelAt(meter, now), windowMs });
  }
  return meters;
}

/** Cuts the lesson's times at `now`: a replica knows the store's clock only to half of a round trip, and may state a later time. */
const notAfter = ({ feedback, sentAt, headAt }: TimedLesson, now: number): TimedLesson => ({
  feedback,
  sentAt: Math.min(sentAt, now),
  headAt: Math.min(headAt, now),
});
