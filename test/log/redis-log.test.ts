/** A log in a real Redis: replicas that follow it have the same state at the same place, whatever happens to Redis. */
import { expect, test } from '@jest/globals';
import { until } from '../support/until.ts';
import { agree, keys } from './replicas.ts';
import { goOn, installation, operator, server, talk, three } from './world.ts';

test('three replicas have the same state at every place, and every word once', async () => {
  const redis = await server();
  const { replicas, a, b } = await three(redis);
  expect(a.events).toEqual(['restored', 'joined']);
  expect(b.events).toEqual(['restored', 'joined']);
  expect(replicas.flatMap(({ bugs }) => bugs)).toEqual([]);
  expect(b.log.staleMs()).toBeGreaterThanOrEqual(0);
  expect(Math.abs(a.log.now() - Date.now())).toBeLessThan(60_000);
});

test('what is appended in one turn, and while an append is under way, is one batch each', async () => {
  const redis = await server();
  const all = installation(redis);
  const a = await all.add();
  await until(() => a.isJoined);
  const before = a.sequence;
  for (let n = 0; n < 50; n += 1) a.say(`a${n}`);
  await until(() => a.hasOwn);
  expect(a.sequence).toBe(before + 1);
});

test('what nobody waits for goes with what is appended next, in order, or by itself a little later', async () => {
  const redis = await server();
  const all = installation(redis);
  const a = await all.add();
  await until(() => a.isJoined);
  const before = a.sequence;
  a.say('may wait', 'soon');
  await new Promise(setImmediate);
  a.say('may not');
  await until(() => a.hasOwn);
  expect([a.sequence, a.said]).toEqual([before + 1, ['may wait', 'may not']]);
  a.say('alone', 'soon');
  await until(() => a.hasOwn);
  a.say('at the end', 'soon');
  await a.log.close();
  const b = await all.add();
  await until(() => b.said.includes('at the end'));
});

test('a replica that joins later has the state of the others', async () => {
  const redis = await server();
  const { replicas, add, a } = await three(redis);
  const d = await add();
  d.say('lost, since the copy has not joined');
  await agree(replicas);
  expect(d.events).toEqual(['restored', 'joined']);
  expect(a.events).toEqual(['restored', 'joined']);
});

test('a replica that leaves the log and follows it again says nothing in vain', async () => {
  const redis = await server();
  const all = installation(redis);
  const stays = await all.add();
  for (const word of ['first', 'second', 'third']) {
    const replica = await all.add(undefined, 'comes-and-goes');
    await until(() => replica.isJoined);
    replica.say(word);
    await until(() => replica.hasOwn && stays.said.includes(word));
    await replica.log.close();
  }
});

test('connections that are killed while entries are appended lose and repeat nothing', async () => {
  const redis = await server();
  const { replicas } = await three(redis);
  const control = operator(redis);
  const stop = talk(replicas);
  for (let n = 0; n < 15; n += 1) {
    await control.call('CLIENT', 'KILL', 'TYPE', n % 2 === 0 ? 'normal' : 'pubsub', 'SKIPME', 'yes');
    await goOn(replicas);
  }
  stop();
  await agree(replicas);
});

test('every key has an expiry, and all are renewed together', async () => {
  const redis = await server();
  const { replicas, a } = await three(redis, { maxLogBytes: 2_000 });
  const control = operator(redis);
  const stop = talk(replicas);
  await until(async () => (await control.keys('*')).filter((key) => key.startsWith(keys.saved)).length >= 2);
  stop();
  await agree(replicas);
  for (const key of await control.keys('*')) expect(await control.pttl(key)).toBeGreaterThan(0);
  for (const key of await control.keys('*')) await control.pexpire(key, 100_000);
  // As if the last renewal had been long ago.
  await control.hset(keys.head, 'renewed', 0);
  a.tick();
  await until(async () => (await control.pttl(keys.log)) > 3_000_000);
  expect(await control.pttl(keys.head)).toBeGreaterThan(3_000_000);
  const [life, saved] = await control.hmget(keys.head, 'life', 'saved');
  expect(await control.pttl(`${keys.saved}${String(life)}.${String(saved)}`)).toBeGreaterThan(3_000_000);
});
