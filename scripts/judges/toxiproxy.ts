/**
 * toxiproxy between three replicas, their Redis and their upstreams: delays of 0 to 300 ms, slow closing, cut data, resets, 10 KB/s. No
 * call is lost or made twice, calls that are sent one after the other keep their order where Redis is in time, and neither the
 * upstream nor Redis is asked much more often than without it.
 */
import { createKey } from '../../src/cli/keys.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { redisBinary } from '../../test/support/redis.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, startServer, until } from '../cluster/processes.ts';
import type { Report } from '../observability/report.ts';
import { Clients } from '../soak/clients.ts';
import { Ledger } from '../soak/ledger.ts';
import { startReplicas } from '../soak/replicas.ts';
import { startUpstream } from '../soak/upstream.ts';
import { fromGo } from './tools.ts';
import { startToxiproxy, type Proxy, type Toxic } from './toxics.ts';

const toxics: readonly (readonly [string, Toxic])[] = [
  ['0 to 300 ms of delay', { type: 'latency', attributes: { latency: 150, jitter: 150 } }],
  ['slow closing', { type: 'slow_close', attributes: { delay: 1_000 } }],
  ['cut data', { type: 'limit_data', attributes: { bytes: 20_000 } }],
  ['resets', { type: 'reset_peer', attributes: { timeout: 500 } }],
  ['10 KB/s', { type: 'bandwidth', attributes: { rate: 10 } }],
];

const callsPerSecond = 10;
const phaseMs = 10_000;
/** Requests to the upstream per call, and connections to Redis per second and replica, above which it is a storm. */
const maxRequestsPerCall = 1.5;
const maxConnectsPerSecond = 5;
const replicaCount = 3;
/** Clients that send so far apart have an order. Milliseconds. */
const apartMs = 250;

async function startWorld(program: string) {
  const ledger = new Ledger();
  const redis = await startServer();
  const upstream = await startUpstream(ledger, new SeededRandom(1));
  const proxies = await startToxiproxy(program);
  const toRedis = await proxies.before('redis', redis.port);
  const toUpstreams = await Promise.all(
    upstream.origins.map((origin, n) => proxies.before(`upstream-${n}`, Number(new URL(origin).port))),
  );
  const [open, held] = [createKey(), createKey()];
  const origin = (n: number): string => `http://127.0.0.1:${toUpstreams[n]?.port ?? 0}`;
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    `redis: { url: "redis://127.0.0.1:${toRedis.port}" }`,
    'privacy: { labelKey: "a label key of the judges" }',
    'log: { level: info, sampleSuccesses: 0 }',
    'upstreams:',
    `  open: { origins: ["${origin(0)}"], allowPrivateAddresses: true, credential: "Bearer open" }`,
    `  serial: { origins: ["${origin(1)}"], allowPrivateAddresses: true, credential: "Bearer serial", limits: { maxInFlight: 1 } }`,
    'workspaces:',
    `  open: { keys: ["${open.hash}"] }`,
    `  held: { keys: ["${held.hash}"] }`,
  ].join('\n');
  const replicas = await startReplicas(replicaCount, yaml);
  const keys = { open: open.key, held: held.key };
  const newClients = (name: string) =>
    new Clients({ name, replicas, ledger, keys, random: new SeededRandom(2) });
  return { ledger, redis, upstream, toRedis, toUpstreams, replicas, newClients };
}

type World = Awaited<ReturnType<typeof startWorld>>;

const connects = async (port: number): Promise<number> =>
  Number(/total_connections_received:(\d+)/.exec(await cli(port, 'info', 'stats'))?.[1]);

interface Phase {
  readonly words: string;
  readonly toxic: Toxic;
  readonly on: readonly Proxy[];
  readonly side: 'Redis' | 'the upstreams';
}

async function phase(report: Report, world: World, { words, toxic, on, side }: Phase): Promise<void> {
  const { ledger, redis, upstream } = world;
  const clients = world.newClients(`${toxic.type}-${side === 'Redis' ? 'redis' : 'upstream'}`);
  const serialized = new Set<string>();
  const before = {
    arrived: upstream.arrived,
    connects: await connects(redis.port),
    lost: ledger.lost().length,
    twice: ledger.twice().length,
  };
  const breaks = side === 'the upstreams' && (toxic.type === 'limit_data' || toxic.type === 'reset_peer');
  const startedAt = performance.now();
  if (breaks) ledger.harm(true);
  for (const proxy of on) await proxy.poison(toxic);
  while (performance.now() < startedAt + phaseMs) {
    const { nonce, kind } = clients.send();
    if (kind === 'held') serialized.add(nonce);
    await pause(1_000 / callsPerSecond);
  }
  for (const proxy of on) await proxy.heal();
  await clients.settled();
  if (breaks) ledger.harm(false);
  const tookS = (performance.now() - startedAt) / 1_000;
  const perCall = (upstream.arrived - before.arrived) / Math.max(1, clients.sent);
  const perSecond = ((await connects(redis.port)) - before.connects) / tookS / replicaCount;
  const [lost, twice] = [ledger.lost().slice(before.lost), ledger.twice().slice(before.twice)];
  const name = `toxiproxy: ${words} on the way to ${side}`;
  report.check(`${name}: no call is lost`, lost.length === 0, lost.slice(0, 10).join('\n         '));
  report.check(`${name}: none is made twice`, twice.length === 0, twice.slice(0, 10).join('\n         '));
  const overtaken = ledger.overtaken(serialized, apartMs);
  // Without Redis in time, replicas go on alone: no order between them is promised.
  if (side === 'the upstreams' && !breaks)
    report.check(
      `${name}: calls sent one after the other keep their order`,
      overtaken === 0,
      `${overtaken} overtaken`,
    );
  report.check(
    `${name}: no storm`,
    perCall <= maxRequestsPerCall && perSecond <= maxConnectsPerSecond,
    `${perCall.toFixed(2)} requests a call, ${perSecond.toFixed(1)} connections to Redis a second and replica`,
  );
  report.figure(
    `${words}, ${side}: ${clients.sent} calls, ${perCall.toFixed(2)} requests each, ${overtaken} overtaken, ${perSecond.toFixed(2)} connections to Redis a second and replica`,
  );
  const modes = async (): Promise<boolean> => {
    const texts = await Promise.all(
      world.replicas.taking.map(async ({ gateway }) => (await fetch(`${gateway.adminUrl}/metrics`)).text()),
    );
    return texts.every((text) => /^sluice_limiter_mode\{mode="redis"\} 1$/m.test(text));
  };
  report.check(`${name}: all replicas are back on Redis`, await until(modes, 30_000));
}

export async function judgeByToxiproxy(report: Report): Promise<void> {
  const tool = await fromGo('toxiproxy');
  if ('why' in tool) return report.skipped('toxiproxy', tool.why);
  const binary = await redisBinary().catch((failure: unknown) => String(failure));
  if (!binary.startsWith('/')) return report.skipped('toxiproxy', binary);
  const world = await startWorld(tool.path);
  for (const [words, toxic] of toxics) {
    await phase(report, world, { words, toxic, on: [world.toRedis], side: 'Redis' });
    await phase(report, world, { words, toxic, on: world.toUpstreams, side: 'the upstreams' });
  }
  report.figure(`toxiproxy: ${world.ledger.summary()}`);
  await world.replicas.stop();
  world.upstream.stop();
}
