/** What the scripts of a log promise, asked one by one of a real Redis. */
import { beforeEach, expect, test } from '@jest/globals';
import type { Redis } from 'ioredis';
import { replicaId } from '../../src/ids.ts';
import {
  firstMark,
  append,
  begin,
  namesOf,
  read,
  save,
  type AppendReply,
  type Batch,
  type CopyEnd,
} from '../../src/log/redis-commands.ts';
import { closers, operator, ownRedis } from '../support/own-redis.ts';
import { until } from '../support/until.ts';
import { keys, testName } from './replicas.ts';

const names = namesOf(testName);
const start: CopyEnd = { life: 'one', sequence: 0, mark: firstMark, term: 1, at: 0 };

let redis: Redis<'legacy'>;
beforeEach(async () => {
  redis = operator(await ownRedis());
});

const beginning = (life: Partial<Parameters<typeof begin>[2]>): Promise<boolean> =>
  begin(redis, names, { over: '', life: 'one', end: null, snapshot: '', isForced: false, ...life });
const beginOne = (): Promise<boolean> => beginning({});

const ask = (end: CopyEnd, batch: Partial<Batch> = {}): Promise<AppendReply> =>
  append(redis, names, end, {
    replica: replicaId('r1'),
    number: 1,
    events: '[1]',
    maxMs: 1_000,
    returns: false,
    maxBytes: 1e6,
    keptMs: null,
    ...batch,
  });

type Whole = Extract<AppendReply, { kind: 'whole' | 'more' }>;

async function whole(end: CopyEnd, batch: Partial<Batch> = {}): Promise<Whole> {
  const reply = await ask(end, batch);
  if (reply.kind !== 'whole' && reply.kind !== 'more') throw new Error(`not whole: ${reply.kind}`);
  return reply;
}

/** The end of a copy that has these entries. */
function endOf(entries: readonly string[]): CopyEnd {
  const [sequence = '', mark = '', term = '', at = ''] = (entries.at(-1) ?? '').split(' ');
  return { life: 'one', sequence: Number(sequence), mark, term: Number(term), at: Number(at) };
}

test('what is appended last says for how long the log is kept, and what comes then after all renews it for an hour', async () => {
  const lives = async (): Promise<number> =>
    Math.min(await redis.pttl(keys.head), await redis.pttl(keys.log));
  await beginOne();
  const first = await whole(start, { keptMs: 7_200_000 });
  expect(await lives()).toBeGreaterThan(7_000_000);
  const second = await whole(endOf(first.entries), { number: 2, keptMs: 60_000 });
  expect(await redis.pttl(keys.head)).toBeLessThanOrEqual(60_000);
  expect(await redis.pttl(keys.log)).toBeLessThanOrEqual(60_000);
  await whole(endOf(second.entries), { number: 3 });
  expect(await lives()).toBeGreaterThan(3_000_000);
});

test('a batch is appended once, however often it is sent', async () => {
  await beginOne();
  const first = await whole(start);
  const again = await whole(start);
  expect(first.appendedAt).not.toBeNull();
  expect(again.appendedAt).toBeNull();
  expect(again.entries).toEqual(first.entries);
  expect(await redis.llen(keys.log)).toBe(1);
});

test('an entry is published once, as it stands in the log', async () => {
  const heard: string[] = [];
  const subscriber = redis.duplicate();
  closers.push(() => subscriber.disconnect());
  await subscriber.subscribe(keys.channel);
  subscriber.on('message', (_, text) => void heard.push(text));
  await beginOne();
  const { entries } = await whole(start);
  await whole(start);
  await redis.publish(keys.channel, 'the end');
  await until(() => heard.includes('the end'));
  expect(heard).toEqual([...entries, 'the end']);
});

test('an attempt that arrives after a later batch of its replica appends nothing, and one of another replica does', async () => {
  await beginOne();
  await whole(start, { number: 7 });
  await whole(start, { number: 6 });
  expect(await redis.llen(keys.log)).toBe(1);
  await whole(start, { number: 6, replica: replicaId('r2') });
  expect(await redis.llen(keys.log)).toBe(2);
});

test('a copy that is far behind gets its entries in several replies before anything is appended', async () => {
  await beginOne();
  let end = start;
  for (let number = 1; number <= 250; number += 1) end = endOf((await whole(end, { number })).entries);
  let far = start;
  const kinds: string[] = [];
  for (let isBehind = true; isBehind;) {
    const reply = await whole(far, { number: 1, replica: replicaId('r2') });
    kinds.push(reply.kind);
    far = endOf(reply.entries);
    isBehind = reply.kind === 'more';
  }
  expect(kinds.length).toBeGreaterThan(1);
  expect(far.sequence).toBe(251);
});

test('the time never goes back, and goes on by no more than the caller allows, whatever the clock of the server does', async () => {
  await beginOne();
  const hourMs = 3_600_000;
  const first = endOf((await whole(start)).entries);
  await redis.hset(keys.head, 'clock', Date.now() + hourMs);
  const back = endOf((await whole(first, { number: 2 })).entries);
  expect(back.at).toBe(first.at);
  await redis.hset(keys.head, 'clock', Date.now() - hourMs);
  const ahead = endOf((await whole(back, { number: 3, maxMs: 1_500 })).entries);
  expect(ahead.at).toBe(back.at + 1_500);
});

test('another server begins a term, and so does a replica that was without Redis, once for all that return together', async () => {
  await beginOne();
  const first = await whole(start);
  expect(first.term).toBe(1);
  await redis.hset(keys.head, 'server', 'another', 'termAt', 0);
  const second = await whole(endOf(first.entries), { number: 2 });
  expect(second.term).toBe(2);
  expect(endOf(second.entries).term).toBe(2);
  await redis.hset(keys.head, 'termAt', 0);
  const third = await whole(endOf(second.entries), { number: 3, returns: true });
  expect(third.term).toBe(3);
  // At the same time of the log, however long this process takes.
  const together = { number: 1, returns: true, replica: replicaId('r2'), maxMs: 0 };
  const fourth = await whole(endOf(third.entries), together);
  expect(fourth.term).toBe(3);
});

test('a copy that the log does not continue learns why', async () => {
  expect((await ask(start)).kind).toBe('none');
  await beginOne();
  const end = endOf((await whole(start)).entries);
  expect((await ask({ ...end, mark: '0123456789' })).kind).toBe('fork');
  expect((await ask({ ...start, mark: '0123456789' })).kind).toBe('fork');
  expect(await ask({ ...end, sequence: 9 })).toEqual({ kind: 'short', life: 'one' });
  await redis.hset(keys.head, 'began', 1);
  expect((await ask({ ...end, sequence: 9 })).kind).toBe('short');
  expect((await ask({ ...end, sequence: 9, life: 'two' })).kind).toBe('fork');
});

test('a life begins only in place of the one that was seen, and only from a longer copy', async () => {
  expect(await beginOne()).toBe(true);
  expect(await beginOne()).toBe(true);
  const end = endOf((await whole(start)).entries);
  const longer = { ...end, sequence: 5 };
  expect(await beginning({ over: 'one', life: 'two', end })).toBe(false);
  expect(await beginning({ over: 'zero', life: 'two', end: longer })).toBe(false);
  // Another copy may have begun terms that this one has not heard of.
  await redis.hset(keys.head, 'term', 7);
  expect(await beginning({ over: 'one', life: 'two', end: longer, snapshot: 'copy' })).toBe(true);
  const place = { life: 'two', sequence: 5, term: 8 };
  expect(await read(redis, names)).toMatchObject({ kind: 'saved', end: place, snapshot: 'copy' });
  expect(await redis.pttl(keys.head)).toBeGreaterThan(0);
  expect(await redis.exists(keys.log)).toBe(0);
});

test('a snapshot moves forward only, and the entries before the one before it go', async () => {
  await beginOne();
  const ends: CopyEnd[] = [start];
  for (let number = 1; number <= 9; number += 1)
    ends.push(endOf((await whole(ends.at(-1) ?? start, { number })).entries));
  const saved = async (at: number, life = 'one') => {
    await save(redis, names, { ...(ends[at] ?? start), life }, `of ${at}`, 10);
    const found = await read(redis, names);
    return [found.kind === 'saved' ? found.snapshot : found.kind, await redis.llen(keys.log)];
  };
  expect(await saved(4)).toEqual(['of 4', 9]);
  expect(await saved(3)).toEqual(['of 4', 9]);
  expect(await saved(8, 'another')).toEqual(['of 4', 9]);
  expect(await saved(8)).toEqual(['of 8', 5]);
  expect((await ask(ends[3] ?? start)).kind).toBe('far');
  const behind = await whole(ends[4] ?? start, { number: 10 });
  expect(behind.entries).toHaveLength(6);
});

test('one replica at a time is asked for a snapshot', async () => {
  await beginOne();
  const first = await whole(start, { maxBytes: 1 });
  const second = await whole(endOf(first.entries), { maxBytes: 1, number: 2 });
  expect(first.dueBytes).toBeGreaterThan(1);
  expect(second.dueBytes).toBeNull();
});

test('a Redis that takes no writes is not taken for a damaged log', async () => {
  await beginOne();
  await redis.config('SET', 'maxmemory', '1');
  await expect(ask(start)).rejects.toThrow(/OOM/);
  await redis.config('SET', 'maxmemory', '0');
  await redis.config('SET', 'min-replicas-to-write', '1');
  await expect(ask(start)).rejects.toThrow(/NOREPLICAS/);
});
