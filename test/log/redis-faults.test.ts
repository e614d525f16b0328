/** What becomes of a log in Redis when something happens to Redis: afterwards all replicas agree (`agree`). */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, expect, test } from '@jest/globals';
import type { Redis } from 'ioredis';
import { systemClock } from '../../src/clock.ts';
import { holdMs } from '../../src/limiter/over-log/fold.ts';
import { clusterNodes, closers, operator, ownRedis, replicaOf, wireTo } from '../support/own-redis.ts';
import { until } from '../support/until.ts';
import { agree, goOn, installation, keys, talk, three, type Replica } from './replicas.ts';

/** The driver of a Cluster leaves the timer of its last refresh of the slots running. */
const slotsTimerMs = 2_000;
afterAll(() => new Promise<void>((resolve) => void systemClock.after(slotsTimerMs, resolve)));

const numberIn = async (control: Redis<'legacy'>, field: string): Promise<number> =>
  Number(await control.hget(keys.head, field));
const termOf = (replicas: readonly Replica[]): number => Math.max(...replicas.map(({ term }) => term));
const undisturbed = ['restored', 'joined'];
/** Three replicas talk while this happens, and agree afterwards; `before`: their term until then. */
async function through(
  redis: { readonly port: number },
  disturb: (replicas: readonly Replica[], a: Replica) => Promise<unknown>,
) {
  const all = await three(redis);
  const { replicas, a } = all;
  const before = termOf(replicas);
  const stop = talk(replicas);
  await goOn(replicas);
  await disturb(replicas, a);
  await goOn(replicas);
  stop();
  await agree(replicas);
  return { ...all, before };
}
const attaching = { args: ['--repl-diskless-sync-delay', '0'] };

test('FLUSHALL loses nothing that a living replica knows, and a newcomer gets it', async () => {
  const redis = await ownRedis();
  const control = operator(redis);
  const { replicas, add } = await through(redis, async (talking) => {
    for (let n = 0; n < 5; n += 1) {
      await control.flushall();
      await goOn(talking);
    }
  });
  for (const { term } of replicas) expect(term).toBeGreaterThan(1);
  await control.flushall();
  const newcomer = await add();
  expect(newcomer.said.length).toBe(replicas[0]?.said.length);
  // The others began it, not the newcomer.
  expect(await numberIn(control, 'began')).toBeGreaterThan(0);
  await agree(replicas);
});

test('in a Cluster replicas agree, newcomers join from a snapshot, and FLUSHALL loses nothing', async () => {
  const nodes = await clusterNodes([0, 8_000], [8_001, 16_383]);
  const { replicas, add } = installation(nodes[0] ?? { port: 0 }, { maxLogBytes: 2_000 }, 'cluster');
  for (let count = 0; count < 3; count += 1) await add();
  const stop = talk(replicas);
  await goOn(replicas);
  // The keys of a log are on one node, and its messages and subscribers on any.
  const has = await Promise.all(nodes.map(({ control }) => control.exists(keys.head).catch(() => 0)));
  const control = nodes[has.indexOf(1)]?.control;
  if (control === undefined) throw new Error('no node has the log');
  await until(async () => (await numberIn(control, 'saved')) > 0);
  await add();
  await goOn(replicas);
  stop();
  await agree(replicas);
  await control.flushall();
  await add();
  await until(async () => (await numberIn(control, 'began')) > 0);
  await agree(replicas);
  expect(replicas.flatMap(({ bugs }) => bugs)).toEqual([]);
});

test('a Redis that comes back empty gets the log from the replicas, in a new term', async () => {
  const redis = await ownRedis();
  const { replicas, before } = await through(redis, async (talking) => {
    await redis.stop();
    const stoppedAt = performance.now();
    const lastAt = Math.max(...talking.map(({ at }) => at));
    await until(() => talking.every(({ events }) => events.includes('away')));
    const absenceMs = performance.now() - stoppedAt;
    await ownRedis({ port: redis.port });
    await until(() => talking.every(({ isJoined }) => isJoined));
    // The log's time has gone on, as far as replicas know it.
    for (const { at } of talking) expect(at - lastAt).toBeGreaterThan(absenceMs / 2);
  });
  for (const { term, events } of replicas) {
    expect(term).toBeGreaterThan(before);
    expect(events.filter((event) => event === 'away')).toHaveLength(1);
  }
});

test('a backup, and a replica of Redis that attaches, are no events', async () => {
  const redis = await ownRedis(attaching);
  const folder = await mkdtemp(join(tmpdir(), 'sluice-log-'));
  closers.push(() => rm(folder, { recursive: true, force: true }));
  const backup = join(folder, 'backup.rdb');
  const { replicas, before } = await through(redis, async (talking) => {
    await promisify(execFile)('redis-cli', ['-p', String(redis.port), '--rdb', backup]);
    await goOn(talking);
    await replicaOf(redis);
  });
  expect(termOf(replicas)).toBe(before);
  for (const { events } of replicas) expect(events).toEqual(undisturbed);
});

test('a primary that lacks the last entries gets them from the replicas, in a new term', async () => {
  const first = await ownRedis(attaching);
  let isCut = false;
  const replication = await wireTo(first, { toClient: () => !isCut });
  const second = await replicaOf(replication);
  const wire = await wireTo(first);
  const promoted = operator(second);
  let had = NaN;
  const { replicas, before } = await through(wire, async (talking, a) => {
    isCut = true;
    await goOn(talking, 100);
    had = a.sequence;
    wire.target = second.port;
    await first.stop();
    await promoted.replicaof('NO', 'ONE');
  });
  for (const { term } of replicas) expect(term).toBeGreaterThan(before);
  expect(await numberIn(promoted, 'began')).toBeGreaterThanOrEqual(had);
});

test('a promoted server that lacks nothing begins a term and no life', async () => {
  const first = await ownRedis(attaching);
  const second = await replicaOf(first);
  const wire = await wireTo(first);
  const promoted = operator(second);
  const { replicas, a } = await three(wire);
  const [, mark] = a.place.split(' ');
  await until(async () => (await promoted.hget(keys.head, 'mark')) === mark);
  await promoted.replicaof('NO', 'ONE');
  wire.target = second.port;
  await first.stop();
  await until(() => a.isJoined);
  a.say('after');
  await agree(replicas);
  expect(a.term).toBe(2);
  expect(await numberIn(promoted, 'began')).toBe(0);
});

test('a Redis that hangs for a while is left once and joined again, in a new term', async () => {
  const redis = await ownRedis();
  const { replicas, before } = await through(redis, async (talking) => {
    // One term serves for all who come back within the time for which it withholds grants.
    const began = Math.max(...talking.map(({ log }) => log.now()));
    await until(() => talking.every(({ log }) => log.now() > began + 2 * holdMs));
    process.kill(redis.pid, 'SIGSTOP');
    await until(() => talking.every(({ events }) => events.includes('away')));
    process.kill(redis.pid, 'SIGCONT');
  });
  for (const { term, events } of replicas) {
    expect(term).toBeGreaterThan(before);
    expect(events).toEqual([...undisturbed, 'away', 'joined']);
  }
});

/** The last entry but one reads well, and is not the one of which its mark was made. */
async function forgeAuthor(control: Redis<'legacy'>): Promise<void> {
  const entry = String(await control.lindex(keys.log, -2));
  await control.lset(keys.log, -2, entry.replace(/^((?:\S+ ){4})\S+/, '$1nobody'));
}

test.each<[string, (control: Redis<'legacy'>) => Promise<unknown>]>([
  ['entry', (control) => control.lset(keys.log, -1, 'nobody wrote this')],
  ['author of an entry', forgeAuthor],
  ['entry too many', (control) => control.rpush(keys.log, 'nobody wrote this')],
  ['list of entries', (control) => control.set(keys.log, 'of another application')],
  ['head', (control) => control.set(keys.head, 'of another application')],
  ['field of the head', (control) => control.hset(keys.head, 'sequence', 'many')],
  ['missing list of entries', (control) => control.del(keys.log)],
])('a malformed %s ends nobody: the log begins again from a copy', async (_, damage) => {
  const redis = await ownRedis();
  const { replicas, add } = await three(redis);
  const control = operator(redis);
  await damage(control);
  for (const replica of replicas) replica.say(`${replica.id} goes on`);
  await agree(replicas);
  await add();
  await agree(replicas);
  await damage(control);
  await add();
  for (const replica of replicas) replica.say(`${replica.id} goes on again`);
  await agree(replicas);
});

test('a snapshot that cannot be read, or is gone, does not keep a newcomer out', async () => {
  const redis = await ownRedis();
  const { replicas, a, add } = await three(redis);
  const control = operator(redis);
  await control.flushall();
  a.say('begins again');
  await until(() => a.hasOwn);
  await control.hset(keys.head, 'snapshot', 'nobody wrote this');
  const b = await add();
  await agree(replicas);
  expect(b.bugs).toContain('a snapshot of a log cannot be read');
  await control.hdel(keys.head, 'snapshot');
  await add();
  await agree(replicas);
});

test('messages of nobody, and of another history, are not believed', async () => {
  const redis = await ownRedis();
  const { replicas, a } = await three(redis);
  const control = operator(redis);
  const last = String(await control.lindex(keys.log, -1));
  const next = last.replace(/^\d+/, String(a.sequence + 1));
  const another = `${a.sequence + 1} 0123456789 1 5 r9 1 ["x"]`;
  for (const message of ['', 'who', 'nonsense', '999999999 x', next, another])
    await control.publish(keys.channel, message);
  a.say('after');
  await agree(replicas);
  expect(replicas.flatMap(({ said }) => said)).not.toContain('x');
  for (const { events } of replicas) expect(events).toEqual(undisturbed);
});

test('a log that a newcomer began with nothing gives way to a copy', async () => {
  const redis = await ownRedis();
  let isOpen = true;
  const wire = await wireTo(redis, {
    toRedis(_bytes, _client, to) {
      if (!isOpen) to.destroy();
      return isOpen;
    },
  });
  const { replicas, a } = await three(wire);
  const had = a.sequence;
  isOpen = false;
  for (const replica of replicas) replica.tick();
  await until(() => replicas.every(({ isJoined }) => !isJoined));
  const control = operator(redis);
  await control.flushall();
  const newcomer = await installation(redis).add();
  newcomer.say('new');
  await until(() => newcomer.hasOwn);
  expect(newcomer.sequence).toBeLessThan(had);
  isOpen = true;
  await until(() => replicas.some(({ isJoined }) => isJoined));
  await agree([...replicas, newcomer]);
  expect(await numberIn(control, 'began')).toBeGreaterThanOrEqual(had);
  expect(newcomer.bugs).toEqual([]);
  expect(newcomer.events).toEqual([...undisturbed, ...undisturbed]);
  expect(a.events).toEqual([...undisturbed, 'away', 'joined']);
});
