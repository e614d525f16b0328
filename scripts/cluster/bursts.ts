/**
 * Bursts over three replicas: 800 chats in five seconds on a bucket of 600 per minute, undisturbed, with a Redis that is far away, with a
 * replica that is stopped again and again; and orders of a lane with one call in flight.
 */
import { systemClock } from '../../src/clock.ts';
import { chatBody, chatPath, ordersPath, overtaken, pause } from '../../test/support/redis-fleet.ts';
import { firstLine, parsed, start } from '../fleet/processes.ts';
import { standStill } from '../fleet/redis.ts';
import { chatModel, startWorld, wide, type Row, type Seen, type World } from './row.ts';

const calls = 800;
const perMinute = 600;
/** Calls that find room as they come: the bucket's 600 and what drains meanwhile. Nothing of them waits, nothing is ordered. */
const direct = 650;
/** Calls sent this far apart have an order; closer ones may cross on the wire. Milliseconds. */
const apartMs = 50;

const chatWorld = (redisUrl?: (port: number) => Promise<string>) => () =>
  startWorld('language-model', chatModel(perMinute), { limits: wide, redisUrl });

/** Calls that left behind others that had come clearly later; a call has come when its replica reads it, and a stopped one reads nothing. */
function orderOf({ responses, entries, stalledMs }: Seen, unreadMs = 0) {
  const inOrder = entries.toSorted((a, b) => a.arrivedT - b.arrivedT).slice(direct + 20);
  const spacingMs = apartMs + 2 * stalledMs + unreadMs;
  const crossed = overtaken(responses, inOrder, spacingMs);
  return {
    holdsWhenQuiet: crossed === 0,
    words: `overtaken ${crossed} (by more than ${spacingMs.toFixed(0)} ms)`,
    measured: [{ name: 'queued calls behind later ones', value: crossed, unit: 'calls' }],
  };
}

const chats: Row = {
  name: `chat burst: ${calls} calls in 5 s, bucket ${perMinute}/min`,
  world: chatWorld(),
  load: ({ keys }) => ({
    calls,
    everyMs: 5_000 / calls,
    path: chatPath,
    key: keys['acme'] ?? '',
    body: () => chatBody,
    waitSeconds: 90,
  }),
  bestMs: 20_000,
  atBest: 1.02,
  also: (seen) => orderOf(seen),
};

/** Relays TCP to a port of this machine, every chunk 40 ms late, and prints its own port. */
const relaySource = `
  const net = require('node:net');
  const late = (from, to) => {
    from.on('data', (chunk) => setTimeout(() => to.writable && to.write(chunk), 40));
    from.on('close', () => setTimeout(() => to.destroy(), 40));
    from.on('error', () => {});
  };
  const server = net.createServer({ noDelay: true }, (near) => {
    const far = net.connect({ port: Number(process.argv[1]), host: '127.0.0.1', noDelay: true });
    late(near, far);
    late(far, near);
  });
  server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

async function farAway(port: number): Promise<string> {
  const relay = start(process.execPath, ['-e', relaySource, String(port)]);
  return `redis://127.0.0.1:${await firstLine(relay, (line) => parsed(line)['port'] as number | undefined)}`;
}

/** A call that finds room asks the bucket and the ceiling, one after the other, and the last ones meet full batches. */
const directWithinMs = 1_000;

const farChats: Row = {
  ...chats,
  name: `${chats.name}, Redis 80 ms away`,
  world: chatWorld(farAway),
  also(seen) {
    const order = orderOf(seen);
    const times = seen.responses.map(({ tookMs }) => tookMs).toSorted((a, b) => a - b);
    const directMs = times[Math.floor(direct * 0.99)] ?? 0;
    return {
      ...order,
      holdsWhenQuiet: order.holdsWhenQuiet && directMs <= directWithinMs,
      words: `room used within ${directMs.toFixed(0)} ms; ${order.words}`,
    };
  },
};

/** The longest stop of the replica of the row that runs, milliseconds. */
let longestStopMs = 0;

const stoppedChats: Row = {
  ...chats,
  name: `${chats.name}, one of three replicas stopped again and again`,
  beside({ fleet }) {
    let isOver = false;
    longestStopMs = 0;
    const stopping = (async () => {
      for (; !isOver; await pause(420)) {
        const from = systemClock.monotonic();
        await standStill(fleet.gateways[0]?.pid ?? 0, 80);
        longestStopMs = Math.max(longestStopMs, systemClock.monotonic() - from);
      }
    })();
    return {
      end() {
        isOver = true;
        return stopping;
      },
    };
  },
  also: (seen) => orderOf(seen, longestStopMs),
};

const standardStore = {
  latency: { minMs: 100, maxMs: 100 },
  stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
};

const orders: Row = {
  name: 'commerce: 60 calls of one workspace, bucket 40 at 2/s',
  world: () => startWorld('commerce', standardStore, { limits: 'requestsPerMinute: 1000' }),
  load: ({ keys }) => ({
    calls: 60,
    everyMs: 20,
    path: ordersPath,
    key: keys['acme'] ?? '',
    waitSeconds: 60,
  }),
  bestMs: 10_000,
  atBest: 1.02,
  also({ entries }) {
    const most = Math.max(...entries.map(({ inFlight }) => inFlight.scope));
    return { holds: most === 1, words: `in flight at most ${most}` };
  },
};

export const bursts: readonly Row[] = [orders, chats, farChats, stoppedChats];
