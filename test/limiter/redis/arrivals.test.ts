/** Calls have the positions of their arrivals, also those of a replica that is slow to enter them in Redis. */
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { connectRedis } from '../../../src/redis/connection.ts';
import { admission } from '../../support/admission.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import type { Connect } from '../../../src/limiter/stores.ts';
import { startReplica, type TestReplica } from '../../support/redis-replica.ts';

let server: RedisServer;
const replicas: TestReplica[] = [];
beforeAll(async () => {
  server = await startRedis();
});
afterEach(async () => {
  for (const replica of replicas.splice(0)) await replica.close();
});
afterAll(() => server.stop());

/** A replica whose admissions leave for Redis this much later. */
async function startLate(lateMs: number): Promise<TestReplica> {
  const connect: Connect = (...parts) => {
    const connection = connectRedis(...parts);
    const { client } = connection;
    const define = client.defineCommand.bind(client);
    client.defineCommand = (name, script) => {
      define(name, script);
      if (name !== 'sluice_append') return;
      const send: (...words: readonly unknown[]) => Promise<unknown> = Reflect.get(client, name).bind(client);
      Reflect.set(client, name, (...words: readonly unknown[]) => {
        const isLate = words.some((word) => String(word).includes('"kind":"admit"'));
        return isLate ? pause(lateMs).then(() => send(...words)) : send(...words);
      });
    };
    return connection;
  };
  const replica = await startReplica(`url: "${server.url}", commandTimeoutMs: 2000`, { connect });
  replicas.push(replica);
  return replica;
}

test('calls of a replica that reaches Redis 200 ms late keep the positions of their arrivals', async () => {
  const [prompt, late] = [await startLate(0), await startLate(200)];
  const more = { bucket: 'late', maxInFlight: 1, ceilingTag: 'none.none' };
  const done = { kind: 'succeeded', spent: null } as const;
  const holder = await prompt.limiter.admit(admission('holder', more));
  if (holder.kind !== 'granted') throw new Error('not granted');
  const names: string[] = [];
  const entering: Promise<unknown>[] = [];
  // So far apart that no error of the replicas' clocks matters on a machine that is busy; all of them enter now.
  const apartMs = 500;
  const firstAt = performance.now() - 30 * apartMs;
  for (let at = 0; at < 30; at += 1) {
    // The names do not sort in the order of arrival.
    const name = `${(at * 7) % 10}c${at}`;
    names.push(name);
    const replica = at % 3 === 0 ? late : prompt;
    entering.push(replica.limiter.admit(admission(name, { ...more, arrivedAt: firstAt + at * apartMs })));
    await pause(3);
  }
  await Promise.all(entering);
  const order: string[] = [];
  let grant: Grant = holder.grant;
  let from = prompt;
  for (let at = 0; at < names.length; at += 1) {
    const next = Promise.race(
      [prompt, late].map((replica) =>
        Promise.race(
          names
            .filter((name) => !order.includes(name))
            .map((name) => replica.granted(name).then((granted) => ({ granted, replica }))),
        ),
      ),
    );
    await from.limiter.settle(grant, done, null);
    const { granted, replica } = await next;
    order.push(granted.ticket);
    [grant, from] = [granted, replica];
  }
  await from.limiter.settle(grant, done, null);
  expect(order).toEqual(names);
});
