/** What a forecast costs Redis: other lanes are read one by one only for a call that would be refused, all in one command. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { bucketKey, replicaId, ticketId } from '../../../src/ids.ts';
import { applied } from '../../support/bucket-store.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { loadInto } from '../../support/loaded-scripts.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';

let server: RedisServer;
let redis: Redis;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

/** How often the server has read records of several lanes. */
async function reads(): Promise<number> {
  const stats = await redis.info('commandstats');
  return Number(/cmdstat_hmget:calls=(\d+)/.exec(stats)?.[1] ?? 0);
}

test('a call that is granted or may wait reads no other lane, one that is refused reads all of them at once', async () => {
  const scripts = await loadInto(redis, 'library');
  const by = { bucket: bucketKey('b'), replica: replicaId('r'), now: 1_000 };
  const enter = (id: string, options: AdmissionOptions) =>
    applied<'admit'>(scripts, by, {
      kind: 'admit',
      admission: { ...admission(id, { limit: 10, ...options }), position: { kind: 'arrival', at: 0 } },
    });
  const kinds: string[] = [];
  for (let at = 0; at < 100; at += 1) {
    const { kind } = await enter(`t${at}`, { lane: `l${at % 25}`, maxWaitMs: 1e6 });
    kinds.push(kind);
  }
  expect(kinds.filter((kind) => kind === 'granted')).toHaveLength(10);
  expect(kinds.filter((kind) => kind === 'queued')).toHaveLength(90);
  expect(await reads()).toBe(0);
  const { kind } = await enter('late', { lane: 'l3', maxWaitMs: 1_000 });
  expect(kind).toBe('refused');
  expect(await reads()).toBe(1);
  await applied<'forecast'>(scripts, by, { kind: 'forecast', ticket: ticketId('t99') });
  expect(await reads()).toBe(2);
});
