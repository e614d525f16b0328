/**
 * What happens to a log in Redis when something happens to Redis. Afterwards all replicas have the same state at the same place, with
 * everything that a living replica said in it once (`agree`).
 */
import { expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { redisWire } from '../support/redis-wire.ts';
import { holdMs } from '../../src/limiter/over-log/fold.ts';
import { until } from '../support/until.ts';
import { agree, keys } from './replicas.ts';
import { closers, goOn, installation, operator, server, talk, three } from './world.ts';

const run = promisify(execFile);

async function folder(): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), 'sluice-log-'));
  closers.push(() => rm(made, { recursive: true, force: true }));
  return made;
}

test('FLUSHALL loses nothing that a living replica knows, and a newcomer gets it', async () => {
  const redis = await server();
  const { replicas, add } = await three(redis);
  const control = operator(redis);
  const stop = talk(replicas);
  for (let n = 0; n < 5; n += 1) {
    await control.flushall();
    await goOn(replicas);
  }
  stop();
  await agree(replicas);
  const terms = replicas.map(({ term }) => term);
  expect(Math.min(...terms)).toBeGreaterThan(1);
  await control.flushall();
  await add();
  await agree(replicas);
});

test('a Redis that comes back empty gets the log from the replicas, in a new term', async () => {
  const redis = await server();
  const { replicas } = await three(redis);
  const before = Math.max(...replicas.map(({ term }) => term));
  const stop = talk(replicas);
  await goOn(replicas);
  await redis.stop();
  const stoppedAt = performance.now();
  const lastAt = Math.max(...replicas.map(({ at }) => at));
  await until(() => replicas.every(({ events }) => events.includes('away')));
  const absenceMs = performance.now() - stoppedAt;
  await server(redis.port);
  await until(() => replicas.every(({ isJoined }) => isJoined));
  // The log's time has gone on, as far as replicas know it.
  for (const { at } of replicas) expect(at - lastAt).toBeGreaterThan(absenceMs / 2);
  await goOn(replicas);
  stop();
  await agree(replicas);
  for (const { term, events } of replicas) {
    expect(term).toBeGreaterThan(before);
    expect(events.filter((event) => event === 'away')).toHaveLength(1);
  }
});

test('a Redis that comes back with an old backup gets the log from the replicas', async () => {
  const dir = await folder();
  const redis = await server(undefined, ['--dir', dir]);
  const { replicas, a } = await three(redis);
  await operator(redis).save();
  const saved = a.sequence;
  const stop = talk(replicas);
  await goOn(replicas);
  await redis.stop();
  const backup = await server(redis.port, ['--dir', dir]);
  await goOn(replicas);
  stop();
  await agree(replicas);
  expect(Number(await operator(backup).hget(keys.head, 'began'))).toBeGreaterThan(saved);
});

test('a backup, and a replica of Redis that attaches, are no events', async () => {
  const redis = await server(undefined, ['--repl-diskless-sync-delay', '0']);
  const { replicas } = await three(redis);
  const terms = replicas.map(({ term }) => term);
  const stop = talk(replicas);
  const dir = await folder();
  await run('redis-cli', ['-p', String(redis.port), '--rdb', join(dir, 'backup.rdb')]);
  await goOn(replicas);
  const second = await server(undefined, ['--replicaof', '127.0.0.1', String(redis.port)]);
  const asked = operator(second);
  await until(async () => /master_link_status:up/.test(await asked.info('replication')));
  await goOn(replicas);
  stop();
  await agree(replicas);
  expect(replicas.map(({ term }) => term)).toEqual(terms);
  for (const { events } of replicas) expect(events).toEqual(['restored', 'joined']);
});

test('a primary that lacks the last entries gets them from the replicas, in a new term', async () => {
  const first = await server(undefined, ['--repl-diskless-sync-delay', '0']);
  let isCut = false;
  const replication = await redisWire(
    () => first.port,
    (replica, primary) => {
      replica.pipe(primary);
      primary.on('data', (bytes) => void (isCut || replica.write(bytes)));
    },
  );
  closers.push(() => replication.close());
  const second = await server(undefined, ['--replicaof', '127.0.0.1', String(replication.port)]);
  let target = first.port;
  const wire = await redisWire(
    () => target,
    (client, redis) => void client.pipe(redis).pipe(client),
  );
  closers.push(() => wire.close());
  const promoted = operator(second);
  await until(async () => /master_link_status:up/.test(await promoted.info('replication')));
  const { replicas, a } = await three(wire);
  const terms = Math.max(...replicas.map(({ term }) => term));
  const stop = talk(replicas);
  await goOn(replicas);
  isCut = true;
  await goOn(replicas, 100);
  const had = a.sequence;
  target = second.port;
  await first.stop();
  await promoted.replicaof('NO', 'ONE');
  await goOn(replicas);
  stop();
  await agree(replicas);
  for (const { term } of replicas) expect(term).toBeGreaterThan(terms);
  expect(Number(await promoted.hget(keys.head, 'began'))).toBeGreaterThanOrEqual(had);
});

test('a promoted server that lacks nothing begins a term and no life', async () => {
  const first = await server(undefined, ['--repl-diskless-sync-delay', '0']);
  const second = await server(undefined, ['--replicaof', '127.0.0.1', String(first.port)]);
  let target = first.port;
  const wire = await redisWire(
    () => target,
    (client, redis) => void client.pipe(redis).pipe(client),
  );
  closers.push(() => wire.close());
  const promoted = operator(second);
  const { replicas, a } = await three(wire);
  const place = a.place;
  await until(async () => (await promoted.hget(keys.head, 'mark')) === place.split(' ')[1]);
  await promoted.replicaof('NO', 'ONE');
  target = second.port;
  await first.stop();
  await until(() => a.isJoined);
  a.say('after');
  await agree(replicas);
  expect(a.term).toBe(2);
  expect(Number(await promoted.hget(keys.head, 'began'))).toBe(0);
});

test('a Redis that hangs for a while is left once and joined again, in a new term', async () => {
  const redis = await server();
  const { replicas } = await three(redis);
  const terms = Math.max(...replicas.map(({ term }) => term));
  const stop = talk(replicas);
  await goOn(replicas);
  // One term serves for all who come back within the time for which it withholds grants.
  const began = Math.max(...replicas.map(({ log }) => log.now()));
  await until(() => replicas.every(({ log }) => log.now() > began + 2 * holdMs));
  process.kill(redis.pid, 'SIGSTOP');
  await until(() => replicas.every(({ events }) => events.includes('away')));
  process.kill(redis.pid, 'SIGCONT');
  await goOn(replicas);
  stop();
  await agree(replicas);
  for (const { term, log, events } of replicas) {
    expect(term).toBeGreaterThan(terms);
    expect(log.staleMs()).toBeLessThan(Infinity);
    expect(events).toEqual(['restored', 'joined', 'away', 'joined']);
  }
});

test('a batch that Redis has appended is in the log once, however often its reply and its message are lost', async () => {
  const redis = await server();
  let lost = 0;
  let toLose = 0;
  const wire = await redisWire(
    () => redis.port,
    (client, to) => {
      client.pipe(to);
      to.on('data', (bytes) => {
        if (lost >= toLose) return void client.write(bytes);
        lost += 1;
        client.destroy();
      });
    },
  );
  closers.push(() => wire.close());
  const { replicas, a, add } = await three(redis);
  const far = await add(wire);
  await until(() => far.isJoined);
  for (let n = 0; n < 10; n += 1) {
    await until(() => far.isJoined && far.hasOwn && far.connection.isReady());
    // That of the commands, and that of the messages.
    toLose = lost + 2;
    far.say(`far${n}`);
    a.say(`near${n}`);
    await until(() => lost === toLose);
  }
  await agree(replicas);
});

test('old entries are replaced by a snapshot, from which newcomers join and with which all go on', async () => {
  const redis = await server();
  const { replicas, add } = await three(redis, { maxLogBytes: 2_000 });
  const control = operator(redis);
  const stop = talk(replicas);
  const base = async (): Promise<number> => Number(await control.hget(keys.head, 'base'));
  await until(async () => {
    // One replica after the other makes one; the next is not due for half a minute after it began.
    await control.hset(keys.head, 'saving', 0);
    return (await base()) > 100;
  });
  const newcomer = await add();
  await until(() => newcomer.isJoined);
  await goOn([...replicas]);
  stop();
  await agree(replicas);
  // A snapshot may be in the making yet: what it changes is seen as a whole.
  const seen = await control
    .multi()
    .hget(keys.head, 'sequence')
    .hget(keys.head, 'base')
    .llen(keys.log)
    .exec();
  const [sequence = NaN, first = NaN, length] = (seen ?? []).map(([, value]) => Number(value));
  expect(length).toBe(sequence - first);
  expect(newcomer.joins).toHaveLength(1);
  expect(replicas.flatMap(({ bugs }) => bugs)).toEqual([]);
});

test('a replica that was kept from hearing for longer than entries are kept joins from a snapshot', async () => {
  const redis = await server();
  let isSilent = false;
  const wire = await redisWire(
    () => redis.port,
    (client, to) => {
      client.pipe(to);
      to.on('data', (bytes) => void (isSilent ? to.destroy() : client.write(bytes)));
    },
  );
  closers.push(() => wire.close());
  const { replicas, a, add } = await three(redis, { maxLogBytes: 2_000 });
  const far = await add(wire);
  await until(() => far.isJoined);
  far.say('near');
  await agree(replicas);
  isSilent = true;
  const control = operator(redis);
  await until(() => {
    far.tick();
    return !far.isJoined;
  });
  let words = 0;
  await until(async () => {
    // Its sequence may be the same as at the last look: a word is said once.
    a.say(`a${(words += 1)}`);
    await control.hset(keys.head, 'saving', 0);
    return Number(await control.hget(keys.head, 'base')) > far.sequence;
  });
  far.say('far');
  isSilent = false;
  await agree(replicas);
  expect(far.events.filter((event) => event === 'restored')).toHaveLength(2);
});

/** The last entry but one reads well, and is not the one of which its mark was made. */
async function forgeAuthor(control: ReturnType<typeof operator>): Promise<void> {
  const entry = String(await control.lindex(keys.log, -2));
  await control.lset(keys.log, -2, entry.replace(/^((?:\S+ ){4})\S+/, '$1nobody'));
}

test.each([
  ['entry', (control) => control.lset(keys.log, -1, 'nobody wrote this')],
  ['author of an entry', (control) => forgeAuthor(control)],
  ['entry too many', (control) => control.rpush(keys.log, 'nobody wrote this')],
  ['list of entries', (control) => control.set(keys.log, 'of another application')],
  ['head', (control) => control.set(keys.head, 'of another application')],
  ['field of the head', (control) => control.hset(keys.head, 'sequence', 'many')],
  ['missing list of entries', (control) => control.del(keys.log)],
] satisfies [string, (control: ReturnType<typeof operator>) => Promise<unknown>][])(
  'a malformed %s ends nobody: the log begins again from a copy',
  async (_, damage) => {
    const redis = await server();
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
  },
);

test('a snapshot that cannot be read, or is gone, does not keep a newcomer out', async () => {
  const redis = await server();
  const { replicas, a, add } = await three(redis);
  const control = operator(redis);
  await control.flushall();
  a.say('begins again');
  await until(() => a.hasOwn);
  const [key = ''] = (await control.keys('*')).filter((name) => name.startsWith(keys.saved));
  await control.hset(key, '0', 'nobody wrote this');
  const b = await add();
  await agree(replicas);
  expect(b.bugs).toContain('a snapshot of a log cannot be read');
  for (const name of await control.keys('*')) if (name.startsWith(keys.saved)) await control.del(name);
  await add();
  await agree(replicas);
});

test('messages of nobody, and of another history, are not believed', async () => {
  const redis = await server();
  const { replicas, a } = await three(redis);
  const control = operator(redis);
  const last = String(await control.lindex(keys.log, -1));
  const next = last.replace(/^\d+/, String(a.sequence + 1));
  for (const message of [
    '',
    'who',
    'nonsense',
    '999999999 x',
    next,
    `${a.sequence + 1} 0123456789 1 5 r9 1 ["x"]`,
  ])
    await control.publish(keys.channel, message);
  a.say('after');
  await agree(replicas);
  expect(replicas.flatMap(({ said }) => said)).not.toContain('x');
  for (const { events } of replicas) expect(events).toEqual(['restored', 'joined']);
});

test('a newcomer that finds no log leaves it to those who have a copy to begin one', async () => {
  const redis = await server();
  const { replicas, add } = await three(redis);
  await operator(redis).flushall();
  const newcomer = await add();
  await until(() => newcomer.isJoined);
  expect(newcomer.said.length).toBe(replicas[0]?.said.length);
  expect(Number(await operator(redis).hget(keys.head, 'began'))).toBeGreaterThan(0);
  await agree(replicas);
});

test('a log that a newcomer began with nothing gives way to a copy', async () => {
  const redis = await server();
  let isOpen = true;
  const wire = await redisWire(
    () => redis.port,
    (client, to) => {
      client.on('data', (bytes) => void (isOpen ? to.write(bytes) : to.destroy()));
      to.pipe(client);
    },
  );
  closers.push(() => wire.close());
  const { replicas, a } = await three(wire);
  const had = a.sequence;
  isOpen = false;
  for (const replica of replicas) replica.tick();
  await until(() => replicas.every(({ isJoined }) => !isJoined));
  const control = operator(redis);
  await control.flushall();
  const newcomer = await installation(redis).add();
  await until(() => newcomer.isJoined);
  newcomer.say('new');
  await until(() => newcomer.hasOwn);
  expect(newcomer.sequence).toBeLessThan(had);
  isOpen = true;
  await until(() => replicas.some(({ isJoined }) => isJoined));
  await agree([...replicas, newcomer]);
  expect(Number(await control.hget(keys.head, 'began'))).toBeGreaterThanOrEqual(had);
  expect(newcomer.bugs).toEqual([]);
  expect(newcomer.events).toEqual(['restored', 'joined', 'restored', 'joined']);
  expect(a.events).toEqual(['restored', 'joined', 'away', 'joined']);
});
