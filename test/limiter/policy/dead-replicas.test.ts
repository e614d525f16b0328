/** Calls that waited on replicas which are not heard of any more leave their lines, a bounded number at a time. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { maxPerPump, replicaLifeMs, type Effects } from '../../../src/limiter/policy/pump.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica, tick } from './scheduling.ts';

const killed = replicaId('killed');
const ofReplica = (bucket: Bucket, name: string): number =>
  [...bucket.tickets.values()].filter((ticket) => ticket.replica === name).length;
const ticked = (bucket: Bucket, now: number): Effects => tick(bucket, { replica, leases: [] }, now);

atOrigins('calls that waited on a replica that is not heard of any more', (instant) => {
  const deadAt = instant(1_001 + replicaLifeMs);

  /** A closed bucket, into which so many calls of either replica came in turn, into three lanes. */
  function crowd(calls: number): Bucket {
    const bucket = newBucket(instant);
    bucket.closedUntil = instant(60_000);
    for (let at = 0; at < calls; at += 1) {
      const options = { lane: `l${at % 3}` };
      admit(bucket, call(`k${at}`, options), killed, instant(1_000));
      admit(bucket, call(`r${at}`, options), replica, instant(1_000));
    }
    return bucket;
  }

  test('are looked for among a bounded number of waiting calls at a tick, and the next tick is due at once', () => {
    const bucket = crowd(2 * maxPerPump);
    const left: number[] = [];
    let result = ticked(bucket, deadAt);
    for (; result.nextAt === deadAt; result = ticked(bucket, deadAt)) left.push(ofReplica(bucket, killed));
    // Every second waiting call is one of them, but for where a lane begins anew.
    expect(left.map((calls, at) => Math.abs(calls - (3 - at) * (maxPerPump / 2)) <= 1)).toEqual([
      true,
      true,
      true,
      true,
    ]);
    expect(ofReplica(bucket, killed)).toBe(0);
    expect(ofReplica(bucket, replica)).toBe(2 * maxPerPump);
    expect(result.nextAt).toBe(instant(60_000));
  });

  test('are found where the search has been already, when their replica dies while it is under way', () => {
    const bucket = crowd(2 * maxPerPump);
    const later = replicaId('later');
    admit(bucket, call('first', { lane: 'l0', urgency: 0 }), later, instant(1_500));
    ticked(bucket, deadAt);
    expect(ofReplica(bucket, later)).toBe(1);
    const now = instant(1_501 + replicaLifeMs);
    for (let time = 0; time < 5; time += 1) ticked(bucket, now);
    expect([ofReplica(bucket, killed), ofReplica(bucket, later)]).toEqual([0, 0]);
  });

  test('stay where the replica is heard of again before they are found', () => {
    const bucket = crowd(maxPerPump);
    ticked(bucket, deadAt);
    const before = ofReplica(bucket, killed);
    expect(before).toBe(maxPerPump / 2);
    bucket.replicas.set(killed, deadAt);
    for (let time = 0; time < 3; time += 1) ticked(bucket, deadAt);
    expect(ofReplica(bucket, killed)).toBe(before);
  });

  test('begin no search where none waited', () => {
    const bucket = newBucket(instant);
    bucket.closedUntil = instant(60_000);
    bucket.replicas.set(killed, instant(1_000));
    admit(bucket, call('own'), replica, instant(1_000));
    expect(ticked(bucket, deadAt).nextAt).toBe(instant(60_000));
    expect(bucket.replicas.scoreOf(killed)).toBeNull();
  });
});
