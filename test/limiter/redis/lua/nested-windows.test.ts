/** The script's forecasts under several described windows at once are those of the policy. */
import { expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { bucketKey, replicaId } from '../../../../src/ids.ts';
import { admit, createBucket } from '../../../../src/limiter/policy/scheduler.policy.ts';
import { admission } from '../../../support/admission.ts';
import { applied } from '../../../support/bucket-store.ts';
import { loadInto } from '../../../support/loaded-scripts.ts';
import { startRedis } from '../../../support/redis.ts';

test.each(['rolling', 'fixed'] as const)('%s windows in one another', async (counts) => {
  const server = await startRedis();
  const redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  try {
    const scripts = await loadInto(redis, 'library');
    const now = 1_000_000;
    const replica = replicaId('r1');
    const bucket = createBucket(0, now);
    const meters = [
      { meter: 'requests_burst' as const, limit: 1, windowMs: 1_000, counts },
      { meter: 'requests' as const, limit: 40, windowMs: 60_000, counts },
    ];
    const setting = { meters, learn: true, probe: 0 };
    for (let at = 0; at < 60; at += 1) {
      const costs = { requests: 1, requests_burst: 1 };
      const position = { kind: 'arrival' as const, at: now };
      const wait = { maxWaitMs: 600_000, maxQueued: 100 };
      const asked = { ...admission(`t${at}`, { bucket: 'b', setting, costs, ...wait }), position };
      const by = { bucket: bucketKey('b'), replica, now };
      const there = await applied<'admit'>(scripts, by, { kind: 'admit', admission: asked });
      const here = admit(bucket, { admission: asked, replica }, now);
      if (at === 59 && here.kind === 'queued') expect(here.forecastMs).toBeGreaterThan(50_000);
      expect(there.kind === 'queued' ? there.forecastMs : 0).toBe(
        here.kind === 'queued' ? here.forecastMs : 0,
      );
    }
  } finally {
    redis.disconnect();
    await server.stop();
  }
});
