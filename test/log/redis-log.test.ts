/** A log in a real Redis: replicas that follow it have the same state at the same place. */
import { setTimeout as pause } from 'node:timers/promises';
import { expect, test } from '@jest/globals';
import type { Redis } from 'ioredis';
import { replicaId } from '../../src/ids.ts';
import { append, begin, namesOf } from '../../src/log/redis-commands.ts';
import { MalformedReply } from '../../src/redis/scripts.ts';
import { operator, ownRedis, wireTo } from '../support/own-redis.ts';
import { until } from '../support/until.ts';
import { agree, goOn, installation, keys, talk, testName, three, type Replica } from './replicas.ts';

const names = namesOf(testName);

/** One replica, and what a test does to its Redis itself. */
async function alone() {
  const redis = await ownRedis();
  const all = installation(redis);
  const a = await all.add();
  return { ...all, a, redis, control: operator(redis) };
}

test('what is appended in one turn, and while an append is under way, is one batch each, of a bounded number of events', async () => {
  const { a } = await alone();
  const entriesOf = async (...words: readonly string[]): Promise<number> => {
    const before = a.sequence;
    for (const word of words) a.say(word);
    await until(() => a.hasOwn);
    return a.sequence - before;
  };
  expect(await entriesOf(...Array.from({ length: 50 }, (_, n) => `a${n}`))).toBe(1);
  expect(await entriesOf(...Array.from({ length: 300 }, (_, n) => `b${n}`))).toBe(2);
});

/** An entry of somebody else whose message nobody hears. */
async function appendUnheard(control: Redis<'legacy'>, a: Replica, word: string): Promise<string> {
  const [sequence = '', mark = ''] = a.place.split(' ');
  const life = String(await control.hget(keys.head, 'life'));
  const end = { life, sequence: Number(sequence), mark, term: a.term, at: a.at };
  const batch = { replica: replicaId('r9'), number: 1, events: `["${word}"]`, maxMs: 1e6, returns: false };
  const unheard = { ...names, channel: 'nobody hears' };
  const reply = await append(control, unheard, end, { ...batch, maxBytes: 1e6, keptMs: null });
  if (reply.kind !== 'whole') throw new Error(reply.kind);
  return reply.entries.at(-1) ?? '';
}

test('an entry whose message was lost is read when the next one is heard', async () => {
  const { a, add, control } = await alone();
  const b = await add();
  await until(() => a.place === b.place);
  await appendUnheard(control, a, 'unheard');
  b.say('heard');
  await until(() => a.said.includes('heard'));
  expect(a.said).toEqual(['unheard', 'heard']);
});

test('an entry that came while a replica was not subscribed is read when it is again', async () => {
  const { a, control } = await alone();
  await appendUnheard(control, a, 'unheard');
  await control.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
  await until(() => a.said.includes('unheard'));
});

test('what nobody waits for goes with what is appended next, in order, or by itself a little later', async () => {
  const { a, add } = await alone();
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
  const b = await add();
  await until(() => b.said.includes('at the end'));
});

test('a replica that leaves the log and follows it again says nothing in vain', async () => {
  const { a: stays, add } = await alone();
  for (const word of ['first', 'second', 'third']) {
    const replica = await add('comes-and-goes');
    replica.say(word);
    await until(() => replica.hasOwn && stays.said.includes(word));
    await replica.log.close();
  }
});

test('connections that are killed while entries are appended lose and repeat nothing', async () => {
  const redis = await ownRedis();
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

test('a batch whose reply is lost is not sent again where its message was heard', async () => {
  const redis = await ownRedis();
  let isLost = false;
  const wire = await wireTo(redis, {
    toClient(bytes, client) {
      if (!isLost || !bytes.includes('whole')) return true;
      isLost = false;
      void until(() => a.said.includes('heard')).then(() => client.destroy());
      return false;
    },
  });
  const { replicas, a } = await three(wire);
  isLost = true;
  a.say('heard');
  await until(() => !isLost);
  a.say('after');
  await agree(replicas);
});

test('every key has an expiry, and all are renewed together', async () => {
  const redis = await ownRedis();
  const { replicas, a } = await three(redis, { maxLogBytes: 2_000 });
  const control = operator(redis);
  const stop = talk(replicas);
  await until(async () => Number(await control.hget(keys.head, 'saved')) > 0);
  stop();
  await agree(replicas);
  for (const key of await control.keys('*')) {
    expect(await control.pttl(key)).toBeGreaterThan(0);
    await control.pexpire(key, 100_000);
  }
  // As if the last renewal had been long ago.
  await control.hset(keys.head, 'renewed', 0);
  a.tick();
  await until(async () => (await control.pttl(keys.log)) > 3_000_000);
  expect(await control.pttl(keys.head)).toBeGreaterThan(3_000_000);
});

test('a log that alone failed is joined again, although Redis never went away: in a new term, since its replica may have acted alone', async () => {
  const { a } = await alone();
  await until(() => a.isJoined);
  const run = a.health.run.bind(a.health);
  const failing: typeof run = (command, _send, options) =>
    run(command, () => Promise.reject(new MalformedReply()), options);
  // A term that has just begun is taken by all who come back.
  await pause(1_500);
  a.health.run = failing;
  a.say('heard later');
  await until(() => a.events.includes('away'));
  a.health.run = run;
  expect(a.health.isUp).toBe(true);
  await until(() => a.events.at(-1) === 'joined');
  expect(a.events).toEqual(['restored', 'joined', 'away', 'joined']);
  expect(a.joins.at(-1)).toBe((a.joins[0] ?? 0) + 1);
});

test('a copy that is replaced by that of another replica takes its time', async () => {
  const { a, replicas, control } = await alone();
  a.say('kept');
  await until(() => a.hasOwn);
  // The other copy ends here, and has seen an hour less.
  const [sequence, at] = [a.sequence, a.at - 3_600_000];
  const life = String(await control.hget(keys.head, 'life'));
  const end = { life, sequence, mark: a.place.split(' ')[1] ?? '', term: a.term, at };
  const snapshot = JSON.stringify([a.digest, sequence, a.term, at, a.place, a.said]);
  a.say('lost');
  await until(() => a.hasOwn);
  await control.flushall();
  const beginning = { over: '', life: 'other', end, snapshot, isForced: false };
  expect(await begin(control, names, beginning)).toBe(true);
  for (const number of [1, 2]) {
    const of = { replica: replicaId('r9'), number, events: '[""]', maxMs: 1, returns: false };
    const [, mark = ''] = String((await control.lindex(keys.log, -1)) ?? '').split(' ');
    const known = number === 1 ? end : { ...end, sequence: sequence + 1, mark };
    const batch = { ...of, maxBytes: 1e6, keptMs: null };
    await append(control, names, { ...known, life: 'other' }, batch);
  }
  a.say('after');
  await agree(replicas);
  expect(a.joins.at(-1)).toBe(2);
  expect(a.log.now()).toBeLessThan(at + 3_000_000);
});
