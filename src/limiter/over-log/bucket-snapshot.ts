/** What a bucket shows of itself, at one time. Pure: it changes nothing. */
import type { CallerKey, LaneKey } from '../../ids.ts';
import type { BucketKey, BucketSnapshot, CallerNow, MeterSnapshot } from '../limiter.ts';
import { allWaiting, type Bucket, closedMs } from '../policy/bucket-state.policy.ts';
import { maxInFlightOf } from '../policy/in-flight.policy.ts';
import { levelAt } from '../policy/meter.policy.ts';

/** Meters of which no limit is known are left out. */
export const snapshotOf = (key: BucketKey, bucket: Bucket, now: number): BucketSnapshot => ({
  bucket: key,
  closedMs: closedMs(bucket, now),
  waiting: allWaiting(bucket),
  inFlight: bucket.leases.size,
  reserved: bucket.reservations.size,
  maxInFlightTotal: maxInFlightOf(bucket, now),
  meters: metersOf(bucket, now),
});

function metersOf(bucket: Bucket, now: number): MeterSnapshot[] {
  const meters: MeterSnapshot[] = [];
  for (const meter of bucket.meters.values()) {
    const { name, limit, windowMs, log, reported } = meter;
    if (limit === null) continue;
    const shown = { meter: name, limit, level: levelAt(meter, now), windowMs, isReported: reported !== null };
    meters.push(log === null ? shown : { ...shown, counts: log.counts });
  }
  return meters;
}

/** The calls of each caller that calls of the lane name; those that name none are left out. */
export function callersIn({ tickets }: Bucket, lane: LaneKey): CallerNow[] {
  const callers = new Map<CallerKey, CallerNow>();
  for (const ticket of tickets.values()) {
    const { caller, lease } = ticket;
    if (caller === undefined || ticket.lane !== lane) continue;
    const { waiting, inFlight } = callers.get(caller) ?? { waiting: 0, inFlight: 0 };
    const isWaiting = lease === null;
    callers.set(caller, {
      caller,
      waiting: isWaiting ? waiting + 1 : waiting,
      inFlight: isWaiting ? inFlight : inFlight + 1,
    });
  }
  return [...callers.values()];
}
