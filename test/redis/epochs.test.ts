/**
 * When replicas take the data of Redis for lost: once for each loss, whoever notices it, and never for what loses nothing
 * (a backup, a replica that attaches, cut connections, the promotion of a replica that has everything).
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer as createHttpServer, request } from 'node:http';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { replicasKey } from '../../src/limiter/redis/presence.ts';
import type { Service } from '../../src/service.ts';
import { ceilingKey } from '../../src/ids.ts';
import { sendsKey } from '../../src/limiter/redis/ceilings.ts';
import { admission } from '../support/admission.ts';
import { serviceOf } from '../support/gateway.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

const run = promisify(execFile);
const lossWarning = 'Redis has lost data';

const enders: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of enders.splice(0).toReversed()) await end();
});

async function server(args: readonly string[] = [], port?: number): Promise<RedisServer> {
  const more = ['--repl-diskless-sync-delay', '0', ...args];
  const started = await startRedis({ ...(port === undefined ? {} : { port }), args: more });
  enders.push(() => started.stop());
  return started;
}

function client({ port }: { readonly port: number }): Redis<'legacy'> {
  const made = new Redis<'legacy'>(port, '127.0.0.1', { replyMapping: 'legacy' });
  made.on('error', () => {});
  enders.push(() => made.disconnect());
  return made;
}

/** One address for whichever server is the primary now, as a DNS name or a virtual address gives it. */
async function address(first: RedisServer) {
  let target = first.port;
  const sockets = new Set<Socket>();
  const listener: Server = createServer((near) => {
    const far = connect(target, '127.0.0.1');
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on('error', () => {});
      from.on('close', () => {
        sockets.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  enders.push(() => {
    cut();
    listener.close();
  });
  const { port } = listener.address() as AddressInfo;
  return {
    url: `redis://127.0.0.1:${port}`,
    leadTo: (to: { readonly port: number }): void => {
      target = to.port;
      cut();
    },
  };
}

/** A replica of this server that has everything the server has. */
async function replicaOf(primary: RedisServer): Promise<RedisServer> {
  const second = await server(['--replicaof', '127.0.0.1', String(primary.port)]);
  const asked = client(second);
  await until(async () => /master_link_status:up/.test(await asked.info('replication')));
  return second;
}

/** All replicas that are known have sent so many heartbeats since; the first of them tells each of a loss. */
async function beats(redis: Redis<'legacy'>, rounds: number): Promise<void> {
  for (let round = 0; round < rounds; round += 1) {
    const [seconds, micros] = await redis.time();
    const since = Number(seconds) * 1_000 + Number(micros) / 1_000;
    const haveBeaten = async (): Promise<boolean> => {
      const known = await redis.zrangebyscore(replicasKey, '-inf', '+inf');
      const heard = await redis.zcount(replicasKey, since, '+inf');
      return known.length > 0 && heard === known.length;
    };
    await until(haveBeaten, 20);
  }
}

describe('serialized calls under load', () => {
  /** Two gateways, and an upstream that knows how many of the serialized calls it has at once. */
  async function world(redisUrl: string) {
    let busy = 0;
    const seen = { most: 0, served: 0 };
    const upstream = createHttpServer((_, response) => {
      busy += 1;
      seen.most = Math.max(seen.most, busy);
      setTimeout(() => {
        busy -= 1;
        seen.served += 1;
        response.end('{}');
      }, 20);
    });
    await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
    enders.push(() => {
      upstream.closeAllConnections();
      upstream.close();
    });
    const { key, hash } = createKey();
    const yaml = [
      'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }',
      `redis: { url: "${redisUrl}", whenDown: deny }`,
      'privacy: { labelKey: "a label key for tests only" }',
      'upstreams:',
      `  api: { origins: ["http://127.0.0.1:${(upstream.address() as AddressInfo).port}"], allowPrivateAddresses: true, credential: "x", limits: { maxInFlight: 1 } }`,
      `workspaces: { acme: { keys: ["${hash}"], requestsPerMinute: { api: 100000 } } }`,
    ].join('\n');
    const logs: string[] = [];
    const gateways: Service[] = [];
    const start = async (): Promise<Service> => {
      const service = await serviceOf(yaml, logs);
      enders.push(() => service.close());
      return service;
    };
    gateways.push(await start(), await start());
    const statuses = new Map<number, number>();
    let isOver = false;
    const call = ({ dataAddress: { port } }: Service): Promise<void> =>
      new Promise((resolve) => {
        const sent = request(
          { host: '127.0.0.1', port, path: '/via/api/x', headers: { 'sluice-key': key } },
          (response) => {
            statuses.set(response.statusCode ?? 0, (statuses.get(response.statusCode ?? 0) ?? 0) + 1);
            response.resume().on('close', resolve);
          },
        );
        sent.on('error', () => {
          statuses.set(0, (statuses.get(0) ?? 0) + 1);
          resolve();
        });
        sent.end();
      });
    const clients = gateways.flatMap((gateway) =>
      [1, 2].map(async () => {
        while (!isOver) await call(gateway);
      }),
    );
    return {
      seen,
      start,
      statuses,
      /** Calls go on: so many more were served. */
      goesOn: async (): Promise<void> => {
        const before = seen.served;
        await until(() => seen.served >= before + 10);
      },
      losses: () => logs.filter((line) => line.includes(lossWarning)).length,
      end: async (): Promise<void> => {
        isOver = true;
        await Promise.all(clients);
      },
    };
  }

  test('go on one by one, and no data is taken for lost, through a backup, a replica that comes, cut connections and its promotion, whoever starts meanwhile', async () => {
    const primary = await server();
    const at = await address(primary);
    const { seen, start, statuses, goesOn, losses, end } = await world(at.url);
    let control = client(primary);
    const anotherStarts = async (): Promise<void> => {
      const third = await start();
      await beats(control, 1);
      await goesOn();
      expect(losses()).toBe(0);
      await third.close();
    };
    const replicationId = async (): Promise<string> =>
      /master_replid:(\w+)/.exec(await control.info('replication'))?.[1] ?? '';
    await goesOn();

    const before = await replicationId();
    const folder = await mkdtemp(join(tmpdir(), 'sluice-backup-'));
    enders.push(() => rm(folder, { recursive: true, force: true }));
    await run('redis-cli', ['-p', String(primary.port), '--rdb', join(folder, 'backup.rdb')]);
    expect(await replicationId()).not.toBe(before);
    await anotherStarts();

    const second = await replicaOf(primary);
    await anotherStarts();

    for (const line of String(await control.client('LIST')).split('\n')) {
      const [, id] = /^id=(\d+) .*name=sluice/.exec(line) ?? [];
      if (id === undefined) continue;
      await control.call('CLIENT', 'KILL', 'ID', id);
      await goesOn();
    }
    await anotherStarts();

    // As a planned failover does it: nothing is written until the replica has everything.
    await control.call('CLIENT', 'PAUSE', '10000', 'WRITE');
    const promoted = client(second);
    const offsetOf = async (redis: Redis<'legacy'>, field: string): Promise<string | undefined> =>
      new RegExp(`${field}:(\\d+)`).exec(await redis.info('replication'))?.[1];
    await until(
      async () =>
        (await offsetOf(control, 'master_repl_offset')) === (await offsetOf(promoted, 'slave_repl_offset')),
    );
    await promoted.replicaof('NO', 'ONE');
    at.leadTo(second);
    control = promoted;
    await beats(control, 2);
    await goesOn();
    expect(losses()).toBe(0);
    await anotherStarts();

    await primary.stop();
    await anotherStarts();
    await end();
    expect(seen.most).toBe(1);
    expect([...statuses.keys()].filter((status) => status !== 200 && status !== 503)).toEqual([]);
    expect(losses()).toBe(0);
  });
});

test('a planned failover of either shard of a Cluster is no loss, and serialized calls go on', async () => {
  /** The bus port is 10,000 above the port. */
  const node = async (): Promise<RedisServer> => {
    for (;;) {
      const made = await server(['--cluster-enabled', 'yes', '--cluster-node-timeout', '5000']);
      if (made.port < 55_000) return made;
    }
  };
  const nodes = await Promise.all([node(), node(), node(), node()]);
  const operators = nodes.map((one) => client(one));
  const [first, second, ...others] = operators;
  if (first === undefined || second === undefined) throw new Error('no nodes');
  await first.call('CLUSTER', 'ADDSLOTSRANGE', 0, 8_000);
  await second.call('CLUSTER', 'ADDSLOTSRANGE', 8_001, 16_383);
  // Each needs an epoch of its own, or they argue about it first.
  for (const [at, operator] of operators.entries())
    await operator.call('CLUSTER', 'SET-CONFIG-EPOCH', at + 1);
  await askUntil(
    async () => {
      const infos = await Promise.all(operators.map((one) => one.call('CLUSTER', 'INFO')));
      return infos.every((info) => String(info).includes('cluster_known_nodes:4'));
    },
    async () => {
      for (const { port } of nodes.slice(1)) await first.call('CLUSTER', 'MEET', '127.0.0.1', port);
    },
  );
  const ids = await Promise.all(
    [first, second].map(async (one) => String(await one.call('CLUSTER', 'MYID'))),
  );
  for (const [at, operator] of others.entries()) {
    await until(async () => String(await operator.call('CLUSTER', 'NODES')).includes(ids[at] ?? '?'));
    await operator.call('CLUSTER', 'REPLICATE', ids[at] ?? '');
    await until(async () => /master_link_status:up/.test(await operator.info('replication')));
  }
  for (const operator of operators)
    await until(async () => /cluster_state:ok/.test(String(await operator.call('CLUSTER', 'INFO'))));

  const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`).join(',');
  const replicas = [
    await startReplica(`url: "redis+cluster://${addresses}"`),
    await startReplica(`url: "redis+cluster://${addresses}"`),
  ];
  for (const replica of replicas) enders.push(() => replica.close());
  let calls = 0;
  /** One serialized call of each replica in some buckets, on both shards. */
  const callsGoOn = async (): Promise<void> => {
    for (const replica of replicas) {
      for (const bucket of ['a', 'b', 'c', 'd']) {
        const ticket = `t${(calls += 1)}`;
        const granted = replica.granted(ticket);
        const reply = await replica.limiter.admit(
          admission(ticket, { bucket, maxInFlight: 1, maxWaitMs: 60_000 }),
        );
        if (reply.kind !== 'granted' && reply.kind !== 'queued')
          throw new Error(`a call was not accepted: ${JSON.stringify(reply)}`);
        const grant = reply.kind === 'granted' ? reply.grant : await granted;
        await replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);
      }
    }
  };
  await callsGoOn();
  for (const operator of others) {
    await promote(operator);
    await callsGoOn();
    await callsGoOn();
  }
  expect(replicas.flatMap(({ warnings }) => warnings.filter((line) => line === lossWarning))).toEqual([]);
  // A lease may run out on a machine that stands still for its length: that is no loss of Redis.
  expect(replicas.flatMap(({ noted }) => noted.filter((line) => line === 'lost epoch'))).toEqual([]);
});

async function promote(operator: Redis<'legacy'>): Promise<void> {
  const isPrimary = async (): Promise<boolean> => /role:master/.test(await operator.info('replication'));
  await askUntil(isPrimary, () =>
    operator.call('CLUSTER', 'FAILOVER').catch(async (reason: unknown) => {
      if (!(await isPrimary())) throw reason;
    }),
  );
}

/**
 * Asks a Cluster for something until it is so. On a busy machine Redis gives up what is not done within the time-out of a node
 * (a handshake, a planned failover), without a word, and has to be asked again.
 */
async function askUntil(isSo: () => Promise<boolean>, ask: () => Promise<unknown>): Promise<void> {
  while (!(await isSo())) {
    await ask();
    const givenUpAt = performance.now() + 6_000;
    await until(async () => performance.now() > givenUpAt || (await isSo()), 20);
  }
}

describe('a loss is noticed by each replica', () => {
  const lossesOf = (replicas: readonly TestReplica[]): number[] =>
    replicas.map(({ warnings }) => warnings.filter((line) => line === lossWarning).length);

  async function replicasOn(url: string): Promise<TestReplica[]> {
    const replicas = [await startReplica(`url: "${url}"`), await startReplica(`url: "${url}"`)];
    for (const replica of replicas) enders.push(() => replica.close());
    return replicas;
  }

  test('FLUSHALL, once', async () => {
    const primary = await server();
    const replicas = await replicasOn(primary.url);
    const control = client(primary);
    await beats(control, 1);
    await control.flushall();
    await until(() => lossesOf(replicas).every((losses) => losses > 0), 50);
    await beats(control, 2);
    expect(lossesOf(replicas)).toEqual([1, 1]);
  });

  test('a promoted replica that lacks a grant: its lane waits for the call that may be under way', async () => {
    const primary = await server();
    const at = await address(primary);
    const second = await replicaOf(primary);
    const [one, other] = await replicasOn(at.url);
    const [before, after] = [client(primary), client(second)];
    await beats(before, 1);
    const capped = { maxInFlight: 1, bucket: 'b' };
    // A call that ended, so that the promoted replica knows the bucket.
    const earlier = await one?.limiter.admit(admission('earlier', capped));
    if (one === undefined || other === undefined || earlier?.kind !== 'granted') throw new Error('no grant');
    await one.limiter.settle(earlier.grant, { kind: 'succeeded', spent: null }, null);
    await before.wait(1, 1_000);
    await after.replicaof('NO', 'ONE');
    expect((await one.limiter.admit(admission('lost', capped))).kind).toBe('granted');
    const isGranted = other.granted('next');
    at.leadTo(second);
    const reply = await other.limiter.admit(admission('next', { ...capped, maxWaitMs: 60_000 }));
    expect(reply.kind).toBe('queued');
    // Longer than replicas wait for each other after a loss.
    await beats(after, 3);
    let wasGranted = false;
    void isGranted.then(() => (wasGranted = true));
    await Promise.resolve();
    // The call of the lost grant is still under way: its lease has not run out.
    expect(wasGranted).toBe(false);
  });
});

test('sends of the last minute count on a server that lacks them, whatever took them away', async () => {
  const primary = await server();
  const at = await address(primary);
  const replica = await startReplica(`url: "${at.url}"`);
  enders.push(() => replica.close());
  const ceiling = { key: ceilingKey('c'), perMinute: 2, perDay: null };
  for (let n = 0; n < 2; n += 1) expect((await replica.ceilings.take(ceiling)).kind).toBe('taken');
  const isBack = async (redis: Redis<'legacy'>): Promise<boolean> => (await redis.zcard(sendsKey('c'))) === 2;
  await beats(client(primary), 1);
  await client(primary).flushall();
  await until(() => isBack(client(primary)), 50);
  const second = await server();
  at.leadTo(second);
  await until(() => isBack(client(second)), 50);
  expect((await replica.ceilings.take(ceiling)).kind).toBe('refused');
});
