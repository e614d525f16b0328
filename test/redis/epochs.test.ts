/**
 * What replicas take for a loss of Redis' data and what not: a backup, a replica that attaches, cut connections and the promotion of a
 * replica that has everything lose nothing. That each replica notices a loss once: `limiter/redis/presence.test.ts`.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from '@jest/globals';
import type { Redis } from 'ioredis';
import { replicasKey } from '../../src/limiter/redis/presence.ts';
import { admission } from '../support/admission.ts';
import {
  clusterNodes,
  closers,
  infoOf,
  operator,
  ownRedis,
  replicaOf,
  wireTo,
} from '../support/own-redis.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { until } from '../support/until.ts';

const atOnce = { args: ['--repl-diskless-sync-delay', '0'] };

async function joined(url: string): Promise<TestReplica> {
  const replica = await startReplica(`url: "${url}"`);
  closers.push(() => replica.close());
  return replica;
}

/** A lease may run out on a machine that stands still for its length: that is no loss of Redis. */
const lossesOf = (replicas: readonly TestReplica[]): readonly string[] =>
  replicas.flatMap(({ warnings, noted }) =>
    [...warnings, ...noted].filter((line) => line === 'Redis has lost data' || line === 'lost epoch'),
  );

/** All replicas that are known have sent so many heartbeats since; the first of them tells each of a loss. */
async function beats(redis: Redis<'legacy'>, rounds: number): Promise<void> {
  for (let round = 0; round < rounds; round += 1) {
    const [seconds, micros] = await redis.time();
    const since = Number(seconds) * 1_000 + Number(micros) / 1_000;
    await until(async () => {
      const known = await redis.zcard(replicasKey);
      return known > 0 && (await redis.zcount(replicasKey, since, '+inf')) === known;
    }, 20);
  }
}

let calls = 0;

/** One serialized call of each replica in each of these buckets. */
async function callsGoOn(replicas: readonly TestReplica[], buckets = ['a']): Promise<void> {
  for (const replica of replicas) {
    for (const bucket of buckets) {
      const ticket = `t${(calls += 1)}`;
      const granted = replica.granted(ticket);
      const asked = admission(ticket, { bucket, maxInFlight: 1, maxWaitMs: 60_000 });
      const reply = await replica.limiter.admit(asked);
      if (reply.kind !== 'granted' && reply.kind !== 'queued') throw new Error(JSON.stringify(reply));
      const grant = reply.kind === 'granted' ? reply.grant : await granted;
      await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
    }
  }
}

test('serialized calls go on, and no data is taken for lost, through a backup, a replica that comes, cut connections and its promotion, whoever starts meanwhile', async () => {
  const primary = await ownRedis(atOnce);
  const wire = await wireTo(primary);
  const replicas = [await joined(wire.url), await joined(wire.url)];
  let control = operator(primary);
  const goesOn = async (): Promise<void> => {
    const another = await joined(wire.url);
    await callsGoOn([...replicas, another]);
    await beats(control, 2);
    expect(lossesOf([...replicas, another])).toEqual([]);
    await another.close();
  };
  await goesOn();

  const before = await infoOf(control, 'replication', 'master_replid');
  const folder = await mkdtemp(join(tmpdir(), 'sluice-backup-'));
  closers.push(() => rm(folder, { recursive: true, force: true }));
  const backup = ['-p', String(primary.port), '--rdb', join(folder, 'backup.rdb')];
  await promisify(execFile)('redis-cli', backup);
  expect(await infoOf(control, 'replication', 'master_replid')).not.toBe(before);
  await goesOn();

  const second = await replicaOf(primary);
  await goesOn();
  wire.cut();
  await goesOn();

  // As a planned failover does it: nothing is written until the replica has everything.
  await control.call('CLIENT', 'PAUSE', '10000', 'WRITE');
  const promoted = operator(second);
  await until(
    async () =>
      (await infoOf(control, 'replication', 'master_repl_offset')) ===
      (await infoOf(promoted, 'replication', 'slave_repl_offset')),
  );
  await promoted.replicaof('NO', 'ONE');
  wire.target = second.port;
  wire.cut();
  control = promoted;
  await goesOn();
  await primary.stop();
  await goesOn();
});

/**
 * On a busy machine Redis gives up what is not done within the time-out of a node, without a word, and has to be asked again.
 */
async function promote(node: Redis<'legacy'>): Promise<void> {
  const isPrimary = async (): Promise<boolean> => (await infoOf(node, 'replication', 'role')) === 'master';
  while (!(await isPrimary())) {
    await node.call('CLUSTER', 'FAILOVER').catch(async (reason: unknown) => {
      if (!(await isPrimary())) throw reason;
    });
    const givenUpAt = performance.now() + 6_000;
    await until(async () => performance.now() > givenUpAt || (await isPrimary()), 20);
  }
}

test('a planned failover of either shard of a Cluster is no loss, and serialized calls go on', async () => {
  const primaries = await clusterNodes([0, 8_000], [8_001, 16_383]);
  const followers: Redis<'legacy'>[] = [];
  for (const { port, control } of primaries) {
    const id = String(await control.call('CLUSTER', 'MYID'));
    const follower = await ownRedis({
      isClusterNode: true,
      args: ['--cluster-enabled', 'yes', ...atOnce.args],
    });
    const node = operator(follower);
    await node.call('CLUSTER', 'MEET', '127.0.0.1', port);
    await until(async () => String(await node.call('CLUSTER', 'NODES')).includes(id));
    await until(async () => (await node.call('CLUSTER', 'REPLICATE', id).catch(() => '')) === 'OK');
    await until(async () => (await infoOf(node, 'replication', 'master_link_status')) === 'up');
    followers.push(node);
  }
  const addresses = primaries.map(({ port }) => `127.0.0.1:${port}`).join(',');
  const url = `redis+cluster://${addresses}`;
  const replicas = [await joined(url), await joined(url)];
  // On both shards.
  const buckets = ['a', 'b', 'c', 'd'];
  await callsGoOn(replicas, buckets);
  for (const follower of followers) {
    await promote(follower);
    await callsGoOn(replicas, buckets);
    await callsGoOn(replicas, buckets);
  }
  expect(lossesOf(replicas)).toEqual([]);
});
