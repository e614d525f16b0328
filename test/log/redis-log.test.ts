/** A log in a real Redis: replicas that follow it have the same state at the same place, whatever happens to Redis. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../src/ids.ts';
import { append, namesOf } from '../../src/log/redis-commands.ts';
import { until } from '../support/until.ts';
import { agree, keys, testName, type Replica } from './replicas.ts';
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

test('a batch has a bounded number of events and of characters', async () => {
  const redis = await server();
  const a = await installation(redis).add();
  await until(() => a.isJoined);
  const before = a.sequence;
  for (let n = 0; n < 300; n += 1) a.say(`a${n}`);
  await until(() => a.hasOwn);
  expect(a.sequence).toBe(before + 2);
  for (const letter of ['x', 'y']) a.say(letter.repeat(40_000));
  await until(() => a.hasOwn);
  expect(a.sequence).toBe(before + 4);
});

/** An entry of somebody else whose message nobody hears. */
async function appendUnheard(
  control: ReturnType<typeof operator>,
  a: Replica,
  word: string,
): Promise<string> {
  const [sequence = '', mark = ''] = a.place.split(' ');
  const life = String(await control.hget(keys.head, 'life'));
  const names = { ...namesOf(testName), channel: 'nobody hears' };
  const batch = { replica: replicaId('r9'), number: 1, events: `["${word}"]`, maxMs: 1e6 };
  const reply = await append(control, names, {
    end: { life, sequence: Number(sequence), mark, term: a.term, at: a.at },
    batch: { ...batch, returns: false, maxBytes: 1e6, keptMs: null },
  });
  if (reply.kind !== 'whole') throw new Error(reply.kind);
  return reply.entries.at(-1) ?? '';
}

test('an entry whose message was lost is read when the next one is heard', async () => {
  const redis = await server();
  const all = installation(redis);
  const [a, b] = [await all.add(), await all.add()];
  await until(() => a.isJoined && b.isJoined && a.place === b.place);
  await appendUnheard(operator(redis), a, 'unheard');
  b.say('heard');
  await until(() => a.said.includes('heard'));
  expect(a.said).toEqual(['unheard', 'heard']);
});

test('an entry that came while a replica was not subscribed is read when it is again', async () => {
  const redis = await server();
  const control = operator(redis);
  const a = await installation(redis).add();
  await until(() => a.isJoined);
  await appendUnheard(control, a, 'unheard');
  await control.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
  await until(() => a.said.includes('unheard'));
});

test('a copy is as old as the message that it was told by', async () => {
  const redis = await server();
  const control = operator(redis);
  const a = await installation(redis).add();
  await until(() => a.isJoined);
  const entry = await appendUnheard(control, a, 'late');
  const lateMs = 300;
  const isLate = (): boolean => a.log.now() > Number(entry.split(' ')[3]) + lateMs;
  await until(isLate);
  await control.publish(keys.channel, entry);
  await until(() => a.said.includes('late'));
  expect(a.log.staleMs()).toBeGreaterThanOrEqual(lateMs);
});

test('what nobody waits for goes with what is appended next, in order, or by itself a little later', async () => {
  const redis = await server();
  const all = installation(redis);
  const a = await all.add();
  await until(() => a.isJoined);
  // On a busy machine a turn may take longer than an event is held back for.
  const entriesOfBoth = async (): Promise<number> => {
    const before = a.sequence;
    a.say('may wait', 'soon');
    await new Promise(setImmediate);
    a.say('may not');
    await until(() => a.hasOwn);
    expect(a.said.slice(-2)).toEqual(['may wait', 'may not']);
    return a.sequence - before;
  };
  while ((await entriesOfBoth()) !== 1);
  a.say('alone', 'soon');
  await until(() => a.hasOwn);
  a.say('at the end', 'soon');
  await a.log.close();
  expect(a.said).not.toContain('at the end');
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

test('a replica whose last entries make a snapshot due leaves it to the others', async () => {
  const redis = await server();
  const all = installation(redis, { maxLogBytes: 2_000 });
  const [stays, leaves] = [await all.add(), await all.add()];
  await until(() => stays.isJoined && leaves.isJoined);
  leaves.say('last '.repeat(1_000));
  await leaves.log.close();
  await until(() => stays.said.length === 1);
  const newcomer = await all.add();
  await until(() => newcomer.isJoined);
  await agree([stays, newcomer]);
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
