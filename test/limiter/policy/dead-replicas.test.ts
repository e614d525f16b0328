/** Calls that waited on replicas which are not heard of any more leave their lines. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { replicaLifeMs, type Effects } from '../../../src/limiter/policy/pump.policy.ts';
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

  test('are forgotten at the first tick after its life, and those of other replicas stay', () => {
    const bucket = crowd(100);
    ticked(bucket, instant(1_000 + replicaLifeMs));
    expect(ofReplica(bucket, killed)).toBe(100);
    expect(ticked(bucket, deadAt).nextAt).toBe(instant(60_000));
    expect([ofReplica(bucket, killed), ofReplica(bucket, replica)]).toEqual([0, 100]);
    expect(bucket.waiting).toBe(100);
  });

  test('need not exist for the replica to be forgotten', () => {
    const bucket = newBucket(instant);
    bucket.closedUntil = instant(60_000);
    bucket.replicas.set(killed, instant(1_000));
    admit(bucket, call('own'), replica, instant(1_000));
    expect(ticked(bucket, deadAt).nextAt).toBe(instant(60_000));
    expect(bucket.replicas.scoreOf(killed)).toBeNull();
  });
});
