/**
 * Bursts over three replicas, judged by makespan and order: 800 chats in five seconds on a bucket of 600 per minute, undisturbed,
 * with a Redis that is far away, and with a replica that is stopped again and again; and orders of a lane with one call in flight.
 */
import { createInterface } from 'node:readline';
import { ordersPath } from '../../test/support/redis-fleet.ts';
import { behindMsOf } from './order.ts';
import { child, firstLine, parsed, startServer, stopServer, until } from './processes.ts';
import { allSucceeded, makespanOf, noneLost, ratio, type Row, type Scenario } from './row.ts';
import { aftermath, chat, chatWorld, see, shopWorld, wait, type World } from './worlds.ts';

const calls = 800;
const sendingMs = 5_000;
/** Calls that find room as they come: the bucket's 600 and what drains meanwhile. Nothing of them waits, nothing is ordered. */
const direct = 650;
/** Makespan of the chats with nobody in the way, and of the orders: milliseconds. */
const best = { chats: 20_000, orders: 10_000 };
/** A longer makespan is too long: a multiple of the best. */
const atBest = 1.02;
/** A queued call may arrive behind calls that were sent up to so much later, beyond what a disturbance explains: milliseconds. */
const apartMs = 50;
/** The share of the queued calls that may arrive behind others that were sent later than that, beyond what the machine explains. */
const mayBeBehind = 0.01;

/** What is in the way of a burst. */
interface Disturbance {
  /** Address of the Redis that listens on this port. */
  readonly redisUrl: (port: number) => Promise<string>;
  /** Begins with the world; its `meanwhile` runs beside the load. */
  readonly begin: (world: World) => Promise<{ meanwhile(): Promise<void>; end(): Met }>;
  /** Whether no call may leave behind others that its client had sent clearly later, whatever stalled. */
  readonly isStrict: boolean;
  /** Calls that found room at once took no longer than this, milliseconds. */
  readonly directWithinMs: number;
}

/** What was in the way of a burst. */
interface Met {
  readonly words: string;
  /** So much longer than its client did, a call may have been unread by a replica: milliseconds. */
  readonly unreadMs: number;
}

const none: Disturbance = {
  redisUrl: (port) => Promise.resolve(`redis://127.0.0.1:${port}`),
  begin: () =>
    Promise.resolve({
      meanwhile: () => Promise.resolve(),
      end: () => ({ words: 'nothing in the way', unreadMs: 0 }),
    }),
  isStrict: true,
  directWithinMs: Infinity,
};

/** Relays TCP to a port of this machine, every chunk 40 ms late, and prints its own port. */
const relaySource = `
  const net = require('node:net');
  const port = Number(process.argv[1]);
  const late = (from, to) => {
    from.on('data', (chunk) => setTimeout(() => to.writable && to.write(chunk), 40));
    from.on('close', () => setTimeout(() => to.destroy(), 40));
    from.on('error', () => {});
  };
  const server = net.createServer({ noDelay: true }, (near) => {
    const far = net.connect({ port, host: '127.0.0.1', noDelay: true });
    late(near, far);
    late(far, near);
  });
  server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

const farRedis: Disturbance = {
  ...none,
  async redisUrl(port) {
    const relay = child(process.execPath, ['-e', relaySource, String(port)]);
    const own = await firstLine(relay, [], (line) => Number(parsed(line)['port']) || null);
    return `redis://127.0.0.1:${own}`;
  },
  // A call that finds room asks the bucket and the ceiling, one after the other, and the last ones meet full batches.
  directWithinMs: 1_000,
};

/** Stops a process for 80 ms, twice a second, and prints how long each stop was; SIGUSR2: the next one comes 200 ms later. */
const stoppingSource = `
  const pid = Number(process.argv[1]);
  let dueAt = performance.now();
  const stop = () => {
    const from = performance.now();
    dueAt = Math.max(from, dueAt + 500);
    process.kill(pid, 'SIGSTOP');
    setTimeout(() => { process.kill(pid, 'SIGCONT'); console.log(performance.now() - from); }, 80);
    timer = setTimeout(stop, dueAt - from);
  };
  let timer = setTimeout(stop, 0);
  process.on('SIGUSR2', () => {
    clearTimeout(timer);
    dueAt = performance.now() + 200;
    timer = setTimeout(stop, 200);
  });`;

const stoppedReplica: Disturbance = {
  ...none,
  async begin({ fleet }) {
    const [gateway] = fleet.gateways;
    if (gateway === undefined) throw new Error('no gateway');
    const stopping = child(process.execPath, ['-e', stoppingSource, String(gateway.pid)]);
    if (stopping.stdout === null) throw new Error('the stopping process has no output');
    const stops: number[] = [];
    createInterface({ input: stopping.stdout }).on('line', (line) => stops.push(Number(line)));
    await until(() => Promise.resolve(stops.length > 0), 10_000);
    return {
      meanwhile: () => Promise.resolve(void stopping.kill('SIGUSR2')),
      end() {
        stopping.kill('SIGKILL');
        gateway.signal('SIGCONT');
        const longestMs = Math.max(0, ...stops);
        const words = `stopped ${stops.length} times, 80 to ${longestMs.toFixed(0)} ms`;
        // A call has come when its replica reads it, and a stopped one reads nothing.
        return { words, unreadMs: longestMs };
      },
    };
  },
  isStrict: false,
};

const chatBurst = (what: string, disturbance: Disturbance): Scenario => ({
  name: `chat burst: ${calls} calls in ${sendingMs / 1_000} s, bucket 600/min${what}`,
  async run(): Promise<Row> {
    const { redisUrl, begin, isStrict, directWithinMs } = disturbance;
    const redis = await startServer();
    const world = await chatWorld(`url: "${await redisUrl(redis.port)}"`, 600);
    const { meanwhile, end } = await begin(world);
    const load = { ...chat(world, 60), calls, everyMs: sendingMs / calls, meanwhile };
    const seen = await see(world, load, { ordered: (all) => all.slice(direct + 20) });
    const met = end();
    const behindMs = behindMsOf(seen.responses, seen.entries, direct);
    const explainedMs = apartMs + met.unreadMs;
    const behind = behindMs.filter((ms) => ms > explainedMs).length;
    const times = seen.responses.map(({ tookMs }) => tookMs).toSorted((a, b) => a - b);
    const directMs = times[Math.floor(direct * 0.99)] ?? 0;
    const after = await aftermath(world);
    await world.end();
    await stopServer(redis);
    return {
      holds: noneLost(seen.responses) && seen.twice === 0,
      holdsWhenQuiet:
        allSucceeded(seen.responses) &&
        seen.throttled === 0 &&
        (seen.crossed === 0 || !isStrict) &&
        seen.tookMs <= best.chats * atBest &&
        directMs <= directWithinMs &&
        behind <= mayBeBehind * behindMs.length,
      figures: `makespan ${ratio(seen.tookMs, best.chats)}; room used within ${directMs.toFixed(0)} ms; queued calls that arrived behind one sent more than ${explainedMs.toFixed(0)} ms after them ${behind} of ${behindMs.length}, at most ${Math.max(0, ...behindMs).toFixed(0)} ms; ${met.words}; ${seen.words}; ${after}`,
      measured: [
        makespanOf(seen.tookMs, best.chats),
        { name: 'queued calls behind later ones', value: behind, unit: 'calls' },
      ],
    };
  },
});

const shopBurst: Scenario = {
  name: 'commerce: 60 calls of one workspace, bucket 40 at 2/s',
  async run(): Promise<Row> {
    const redis = await startServer();
    const world = await shopWorld(`url: "${redis.url}"`, 100);
    const { gateways, keys } = world.fleet;
    const load = { to: gateways, path: ordersPath, key: keys['acme'] ?? '', headers: wait(60) };
    const seen = await see(world, { ...load, calls: 60, everyMs: 20 });
    const most = Math.max(...seen.entries.map(({ inFlight }) => inFlight.scope));
    await world.end();
    await stopServer(redis);
    return {
      holds: noneLost(seen.responses) && most === 1,
      holdsWhenQuiet:
        allSucceeded(seen.responses) &&
        seen.throttled + seen.crossed === 0 &&
        seen.tookMs <= best.orders * atBest,
      figures: `in flight at most ${most}; makespan ${ratio(seen.tookMs, best.orders)}; ${seen.words}`,
      measured: [makespanOf(seen.tookMs, best.orders)],
    };
  },
};

export const bursts: readonly Scenario[] = [
  shopBurst,
  chatBurst('', none),
  chatBurst(', Redis 80 ms away', farRedis),
  chatBurst(', one of three replicas stopped again and again', stoppedReplica),
];
