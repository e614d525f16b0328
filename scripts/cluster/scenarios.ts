/**
 * What three replicas and one Redis must hold, each scenario with real processes. A scenario gives a row; it fails by
 * what it measured, never by an exception swallowed.
 */
import {
  busiestWindow,
  chatBody,
  chatPath,
  count,
  makespan,
  ordersPath,
  overtaken,
  pause,
  type Answer,
} from '../../test/support/redis-fleet.ts';
import { drive, succeeded, told, twice } from './load.ts';
import {
  cli,
  freePort,
  startFleet,
  startSentinel,
  startServer,
  startSimulator,
  stopServer,
  until,
  type Fleet,
  type Simulator,
} from './processes.ts';

export interface Row {
  readonly passed: boolean;
  readonly figures: string;
}

export interface Scenario {
  readonly name: string;
  run(): Promise<Row>;
}

/** Calls sent this far apart have an order; closer ones may cross on the wire. */
const apartMs = 50;
const wide = 'requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000';
const model = (rpm: number) => ({
  models: { 'gpt-4o': { rpm, tpm: 100_000_000 } },
  latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
});
const wait = (seconds: number) => ({ prefer: `wait=${seconds}` });

interface World {
  readonly fleet: Fleet;
  readonly simulator: Simulator;
}

async function chatWorld(redis: string, rpm: number, limits = wide): Promise<World> {
  const simulator = await startSimulator('language-model', model(rpm));
  const fleet = await startFleet(3, { redis, modelUrl: simulator.url, modelLimits: limits });
  return { fleet, simulator };
}

async function shopWorld(redis: string, latencyMs: number, limits: string): Promise<World> {
  const simulator = await startSimulator('commerce', {
    latency: { minMs: latencyMs, maxMs: latencyMs },
    stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const fleet = await startFleet(3, { redis, shopUrl: simulator.url, shopLimits: limits });
  return { fleet, simulator };
}

async function end({ fleet, simulator }: World): Promise<void> {
  await fleet.stop();
  simulator.stop();
}

const url = (port: number): string => `url: "redis://127.0.0.1:${port}"`;
const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`;

/** Tickets, leases and keys without expiry that a load left behind. */
async function leftBehind(port: number): Promise<{ tickets: number; leases: number; eternal: number }> {
  const left = { tickets: 0, leases: 0, eternal: 0 };
  for (const key of (await cli(port, '--scan')).split('\n').filter((name) => name !== '')) {
    if (Number(await cli(port, 'pttl', key)) < 0) left.eternal += 1;
    if (!key.endsWith(':order')) continue;
    const members = (await cli(port, 'zrange', key, '0', '-1')).split('\n');
    left.tickets += members.filter((member) => member.startsWith('l:')).length;
    left.leases += members.filter((member) => member.startsWith('e:')).length;
  }
  return left;
}

const chatBurst: Scenario = {
  name: 'chat burst: 800 calls in 2 s, bucket 600/min',
  async run() {
    const redis = await startServer();
    const world = await chatWorld(url(redis.port), 600);
    const { gateways, keys } = world.fleet;
    const key = keys['acme'] ?? '';
    const load = { to: gateways, path: chatPath, key, body: chatBody, headers: wait(60) };
    const answers = await drive({ ...load, calls: 800, everyMs: 2.5 });
    const entries = await world.simulator.log();
    const took = makespan(entries);
    const optimum = 20_000;
    // While the bucket has room every call is sent as it comes, by three processes: nothing waits, nothing is ordered.
    const inOrder = [...entries].sort((a, b) => a.arrivedT - b.arrivedT);
    const crossed = overtaken(answers, inOrder.slice(640), apartMs);
    const crossedBefore = overtaken(answers, inOrder.slice(0, 640), apartMs);
    const throttled = count(entries, 'throttled');
    await end(world);
    await stopServer(redis);
    return {
      passed: succeeded(answers) === 800 && throttled === 0 && took <= optimum * 1.02 && crossed === 0,
      figures: `${told(answers)}; upstream 429s ${throttled}; makespan ${seconds(took)} = ${(took / optimum).toFixed(3)} × optimum; overtaken while waiting ${crossed} (while there was room ${crossedBefore})`,
    };
  },
};

const shopBurst: Scenario = {
  name: 'commerce: 60 calls of one workspace, bucket 40 at 2/s',
  async run() {
    const redis = await startServer();
    const world = await shopWorld(url(redis.port), 100, 'requestsPerMinute: 1000');
    const key = world.fleet.keys['acme'] ?? '';
    const load = { to: world.fleet.gateways, path: ordersPath, key, headers: wait(60) };
    const answers = await drive({ ...load, calls: 60, everyMs: 20 });
    const entries = await world.simulator.log();
    const took = makespan(entries);
    const most = Math.max(...entries.map(({ inFlight }) => inFlight.scope));
    const crossed = overtaken(answers, entries, apartMs);
    const throttled = count(entries, 'throttled');
    await end(world);
    await stopServer(redis);
    return {
      passed: succeeded(answers) === 60 && throttled === 0 && most === 1 && crossed === 0 && took <= 10_200,
      figures: `${told(answers)}; upstream 429s ${throttled}; in flight at most ${most}; makespan ${seconds(took)} = ${(took / 10_000).toFixed(3)} × optimum; overtaken ${crossed}`,
    };
  },
};

const ceiling: Scenario = {
  name: 'ceiling 120/min under 150 s of twice the load',
  async run() {
    const redis = await startServer();
    const limits = 'requestsPerMinute: 120, requestsPerDay: 1000000, tokensPerMinute: 100000000';
    const world = await chatWorld(url(redis.port), 100_000, limits);
    const key = world.fleet.keys['acme'] ?? '';
    const load = { to: world.fleet.gateways, path: chatPath, key, body: chatBody, headers: wait(20) };
    const answers = await drive({ ...load, calls: 600, everyMs: 250 });
    const entries = await world.simulator.log();
    const busiest = busiestWindow(entries, 60_000);
    const crossed = overtaken(answers, entries, apartMs);
    const admitted = count(entries, 'admitted');
    await end(world);
    await stopServer(redis);
    // Three windows begin within 150 s and 20 s of waiting.
    return {
      passed:
        busiest <= 120 &&
        admitted >= 355 &&
        crossed === 0 &&
        answers.every(({ status }) => [200, 429].includes(status)),
      figures: `${told(answers)}; busiest 60 s window ${busiest}; sent ${admitted}; overtaken ${crossed}`,
    };
  },
};

/** A commerce lane whose lease a stopped or killed replica holds. */
const holder = (
  name: string,
  strike: (fleet: Fleet, holderAt: number) => Promise<void>,
  judge: (seen: {
    readonly answers: readonly Answer[];
    readonly gapMs: number;
    readonly most: number;
    readonly lost: number;
  }) => boolean,
): Scenario => ({
  name,
  async run() {
    const redis = await startServer();
    const world = await shopWorld(url(redis.port), 1_000, 'requestsPerMinute: 1000');
    const { gateways, keys } = world.fleet;
    const key = keys['acme'] ?? '';
    const first = drive({ to: gateways.slice(0, 1), calls: 1, everyMs: 0, path: ordersPath, key });
    await until(
      async () => (await world.simulator.log()).length > 0 || (await redisHolds(redis.port)),
      3_000,
    );
    const struck = strike(world.fleet, 0);
    const rest = drive({
      to: gateways.slice(1),
      calls: 6,
      everyMs: 50,
      path: ordersPath,
      key,
      headers: wait(60),
    });
    const answers = await rest;
    await struck;
    await first;
    const entries = await world.simulator.log();
    const most = Math.max(...entries.map(({ inFlight }) => inFlight.scope));
    const times = entries.map(({ arrivedT }) => arrivedT).sort((a, b) => a - b);
    const gapMs = Math.max(...times.slice(1).map((at, index) => at - (times[index] ?? at)));
    await pause(1_500);
    const lost = await world.fleet.metric('sluice_leases_lost_total');
    await end(world);
    await stopServer(redis);
    return {
      passed: judge({ answers, gapMs, most, lost }),
      figures: `others: ${told(answers)}; longest gap ${seconds(gapMs)}; in flight at most ${most}; leases lost counted ${lost}`,
    };
  },
});

const redisHolds = async (port: number): Promise<boolean> => (await leftBehind(port)).leases > 0;

const killed = holder(
  'kill -9 of the replica that holds the lease',
  async (fleet, at) => fleet.gateways[at]?.signal('SIGKILL'),
  ({ answers, gapMs, most }) => succeeded(answers) === 6 && gapMs <= 17_000 && most === 1,
);

const stopped = holder(
  'SIGSTOP for 20 s of the replica that holds the lease (15 s)',
  async (fleet, at) => {
    fleet.gateways[at]?.signal('SIGSTOP');
    await pause(20_000);
    fleet.gateways[at]?.signal('SIGCONT');
  },
  ({ answers, most, lost }) => succeeded(answers) === 6 && (most === 1 || lost > 0) && lost > 0,
);

/** A chat load over a fault of Redis: 100 calls that fill the bucket, then 10/s for as long as it takes. */
const faultUnderLoad = (
  name: string,
  redisOf: (port: number) => string,
  strike: (port: number) => Promise<void>,
  judge: (seen: Seen) => boolean,
  calls = 300,
): Scenario => ({
  name,
  async run() {
    const redis = await startServer();
    const world = await chatWorld(redisOf(redis.port), 600);
    const key = world.fleet.keys['acme'] ?? '';
    const load = { to: world.fleet.gateways, path: chatPath, key, body: chatBody, headers: wait(90) };
    // The bucket is full afterwards: what comes now waits.
    await drive({ ...load, calls: 600, everyMs: 2 });
    const answers = await drive({
      ...load,
      calls,
      everyMs: 25,
      meanwhile: async () => {
        await pause(3_000);
        await strike(redis.port);
      },
    });
    const entries = (await world.simulator.log()).slice(600);
    const seen: Seen = {
      answers,
      throttled: count(entries, 'throttled'),
      crossed: overtaken(answers, entries, apartMs),
      twice: twice(entries),
      took: makespan(entries),
      errors: await world.fleet.metric('sluice_redis_errors_total'),
      wentLocal: logged(world.fleet, 'Redis is away'),
      slowest: Math.max(
        ...answers.filter(({ code }) => code === 'limiter_unavailable').map(({ tookMs }) => tookMs),
        0,
      ),
    };
    await end(world);
    await stopServer(redis);
    return { passed: judge(seen), figures: figuresOf(seen) };
  },
});

interface Seen {
  readonly answers: readonly Answer[];
  readonly throttled: number;
  readonly crossed: number;
  readonly twice: number;
  readonly took: number;
  readonly errors: number;
  readonly wentLocal: number;
  readonly slowest: number;
}

const logged = (fleet: Fleet, message: string): number =>
  fleet.gateways.filter(({ lines }) => lines.some((line) => line.includes(message))).length;

const figuresOf = (seen: Seen): string =>
  `${told(seen.answers)}; upstream 429s ${seen.throttled}; makespan ${seconds(seen.took)}; overtaken ${seen.crossed}; twice ${seen.twice}; replicas that noticed ${seen.wentLocal}; Redis errors ${seen.errors}${seen.slowest > 0 ? `; slowest denial ${seconds(seen.slowest)}` : ''}`;

const allThrough = (seen: Seen): boolean =>
  succeeded(seen.answers) === seen.answers.length && seen.twice === 0;

/** Redis on the same port again, as empty as after a crash without persistence. */
async function restart(port: number, afterMs: number): Promise<void> {
  await cli(port, 'shutdown', 'nosave').catch(() => '');
  await pause(afterMs);
  await startServer({ port });
}

async function hang(port: number, forMs: number): Promise<void> {
  const pid = Number(/process_id:(\d+)/.exec(await cli(port, 'info', 'server'))?.[1]);
  process.kill(pid, 'SIGSTOP');
  await pause(forMs);
  process.kill(pid, 'SIGCONT');
}

const plain = url;
const local = (port: number): string => `${url(port)}, whenDown: local`;
const deny = (port: number): string => `${url(port)}, whenDown: deny`;
const withDenials = (seen: Seen): boolean =>
  seen.twice === 0 &&
  seen.throttled === 0 &&
  seen.answers.some(({ code }) => code === 'limiter_unavailable') &&
  seen.answers.every(({ status, code }) => status === 200 || code === 'limiter_unavailable') &&
  seen.slowest <= 1_000;

const flushed = faultUnderLoad(
  'FLUSHALL under load',
  plain,
  async (port) => void (await cli(port, 'flushall')),
  (seen) => allThrough(seen) && seen.crossed === 0,
);
const restarted = faultUnderLoad(
  'Redis restarted empty under load',
  plain,
  (port) => restart(port, 100),
  (seen) => allThrough(seen) && seen.crossed === 0,
);
const awayLocal = faultUnderLoad(
  'Redis stopped for 20 s, local',
  local,
  (port) => restart(port, 20_000),
  allThrough,
  800,
);
const awayDeny = faultUnderLoad(
  'Redis stopped for 20 s, deny',
  deny,
  (port) => restart(port, 20_000),
  withDenials,
  1_000,
);
const hungLocal = faultUnderLoad(
  'Redis hung for 20 s, local',
  local,
  (port) => hang(port, 20_000),
  allThrough,
  800,
);
const hungDeny = faultUnderLoad(
  'Redis hung for 20 s, deny',
  deny,
  (port) => hang(port, 20_000),
  withDenials,
  1_000,
);

const leaving: Scenario = {
  name: 'clients leave in the middle of everything',
  async run() {
    const redis = await startServer();
    const world = await chatWorld(url(redis.port), 600);
    const key = world.fleet.keys['acme'] ?? '';
    const load = { to: world.fleet.gateways, path: chatPath, key, body: chatBody, headers: wait(60) };
    const answers = await drive({
      ...load,
      calls: 900,
      everyMs: 2,
      leaveAfterMs: (n) => (n % 3 === 0 ? null : (n * 37) % 2_500),
    });
    await pause(1_500);
    const left = await leftBehind(redis.port);
    const late = await world.fleet.metric('sluice_dispatched_after_client_gone_total');
    const stayed = answers.filter((_, n) => n % 3 === 0);
    await end(world);
    await stopServer(redis);
    return {
      passed:
        left.tickets === 0 &&
        left.leases === 0 &&
        left.eternal === 0 &&
        late === 0 &&
        succeeded(stayed) === stayed.length,
      figures: `stayed: ${told(stayed)}; left behind: ${left.tickets} tickets, ${left.leases} leases, ${left.eternal} keys without expiry; sent for gone clients ${late}`,
    };
  },
};

const sentinel: Scenario = {
  name: 'Sentinel: primary killed under load',
  async run() {
    const primary = await startServer();
    const second = await startServer({ args: ['--replicaof', '127.0.0.1', String(primary.port)] });
    const watchers = await Promise.all([1, 2, 3].map(() => startSentinel(primary.port, 2)));
    const knowsAll = async (): Promise<boolean> => {
      const told_ = await cli(watchers[0] ?? 0, 'sentinel', 'master', 'main');
      return /num-slaves\n1\n/.test(told_) && /num-other-sentinels\n2\n/.test(told_);
    };
    await until(knowsAll, 15_000);
    const nodes = watchers.map((port) => `127.0.0.1:${port}`).join(',');
    const world = await chatWorld(`url: "redis+sentinel://${nodes}/main"`, 600);
    const row = await underFailover(world, () => stopServer(primary));
    await stopServer(second);
    return row;
  },
};

const cluster: Scenario = {
  name: 'Cluster of 3 primaries: owner of the bucket killed under load',
  async run() {
    const args = [
      '--cluster-enabled',
      'yes',
      '--cluster-node-timeout',
      '1000',
      '--cluster-replica-validity-factor',
      '0',
    ];
    const servers: Awaited<ReturnType<typeof startServer>>[] = [];
    for (let n = 0; n < 6; n += 1) servers.push(await startClusterNode(args));
    const addresses = servers.map(({ port }) => `127.0.0.1:${port}`);
    const first = servers[0]?.port ?? 0;
    await cli(first, '--cluster', 'create', ...addresses, '--cluster-replicas', '1', '--cluster-yes');
    await until(async () => {
      const infos = await Promise.all(servers.map(({ port }) => cli(port, 'cluster', 'info')));
      return infos.every((info) => info.includes('cluster_state:ok'));
    }, 20_000);
    const world = await chatWorld(`url: "redis+cluster://${addresses.slice(0, 3).join(',')}"`, 600);
    const owner = async (): Promise<void> => {
      for (const server of servers.slice(0, 3)) {
        const keys = await cli(server.port, 'keys', 'sluice:{*}:1:state');
        if (keys !== '') return stopServer(server);
      }
    };
    const row = await underFailover(world, owner);
    await Promise.all(servers.map(stopServer));
    return row;
  },
};

/** Below 10,000, so that the bus port (10,000 higher) is a port. */
async function startClusterNode(args: readonly string[]) {
  for (;;) {
    const port = await freePort();
    if (port < 55_000) return startServer({ port, args });
  }
}

async function underFailover(world: World, strike: () => Promise<void>): Promise<Row> {
  const key = world.fleet.keys['acme'] ?? '';
  const load = { to: world.fleet.gateways, path: chatPath, key, body: chatBody, headers: wait(90) };
  await drive({ ...load, calls: 600, everyMs: 2 });
  const meanwhile = async (): Promise<void> => {
    await pause(3_000);
    await strike();
  };
  const answers = await drive({ ...load, calls: 300, everyMs: 25, meanwhile });
  await until(async () => (await world.fleet.metric('sluice_limiter_mode{mode="redis"}')) === 3, 10_000);
  const back = await world.fleet.metric('sluice_limiter_mode{mode="redis"}');
  const entries = (await world.simulator.log()).slice(600);
  const crossed = overtaken(answers, entries, apartMs);
  const throttled = count(entries, 'throttled');
  const doubled = twice(entries);
  const noticed = logged(world.fleet, 'Redis is away');
  await end(world);
  return {
    passed: succeeded(answers) === answers.length && doubled === 0 && back === 3,
    figures: `${told(answers)}; upstream 429s ${throttled}; overtaken ${crossed}; twice ${doubled}; replicas that noticed ${noticed}; on Redis again ${back}`,
  };
}

/** In groups: those of one group run at the same time, each with its own processes. */
export const groups: readonly (readonly Scenario[])[] = [
  [chatBurst],
  [shopBurst, leaving],
  [ceiling, killed, stopped],
  [flushed, restarted],
  [awayLocal, awayDeny],
  [hungLocal, hungDeny],
  [sentinel],
  [cluster],
];
