/** The bursts of the embedded limiter once more over three replicas, and the ceiling in every window. */
import { busiestWindow, count, ordersPath } from '../../test/support/redis-fleet.ts';
import { beyond, orderInWords, orderOf } from './order.ts';
import { startServer, stopServer } from './processes.ts';
import { allSucceeded, makespanOf, noneLost, ratio, type Row, type Scenario } from './row.ts';
import { aftermath, chat, chatWorld, see, shopWorld, wait } from './worlds.ts';

/** Makespan of the chats with nobody in the way, and of the orders: milliseconds. */
const best = { chats: 20_000, orders: 10_000 };
/** A longer makespan is too long: a multiple of the best. */
const atBest = 1.02;
/** So much longer than a minute is the window that the limiter keeps (ADR 2). Milliseconds. */
const marginMs = 150;

/** A queued call may arrive behind calls that were sent up to so much later, milliseconds; so many may behind others. */
const apartMs = 50;
const share = 0.01;

/** @param seconds in which 800 calls are sent: in two, three replicas and their surroundings saturate small machines. */
const chatBurst = (seconds: number): Scenario => ({
  name: `chat burst: 800 calls in ${seconds} s, bucket 600/min`,
  async run(): Promise<Row> {
    const redis = await startServer();
    const world = await chatWorld(`url: "${redis.url}"`, 600);
    // While the bucket has room every call is sent as it comes, by three processes: nothing waits, nothing is ordered.
    const direct = 600 + 10 * seconds;
    const seen = await see(
      world,
      { ...chat(world, 60), calls: 800, everyMs: (1_000 * seconds) / 800 },
      { ordered: (all) => all.slice(direct + 20) },
    );
    const order = orderOf(seen.responses, seen.entries, direct);
    const { count: behind } = beyond(order.behindMs, apartMs);
    const isInOrder = seen.crossed === 0 && behind <= share * order.behindMs.length;
    const after = await aftermath(world);
    await world.end();
    await stopServer(redis);
    return {
      holds: noneLost(seen.responses) && seen.twice === 0,
      holdsWhenQuiet:
        allSucceeded(seen.responses) &&
        seen.throttled === 0 &&
        seen.tookMs <= best.chats * atBest &&
        isInOrder,
      figures: `makespan ${ratio(seen.tookMs, best.chats)}; ${orderInWords(order, apartMs)}; ${seen.words}; ${after}`,
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

const ceiling: Scenario = {
  name: 'ceiling 120/min under 150 s of twice the load',
  async run(): Promise<Row> {
    const redis = await startServer();
    const limits = 'requestsPerMinute: 120, requestsPerDay: 1000000, tokensPerMinute: 100000000';
    const world = await chatWorld(`url: "${redis.url}"`, 100_000, limits);
    const seen = await see(world, { ...chat(world, 20), calls: 600, everyMs: 250 });
    const busiest = busiestWindow(seen.entries, 60_000);
    // What is sent is in the window; it may arrive up to `marginMs` later than others do, or by as much as somebody stalled.
    const lateMs = Math.max(0, Math.max(seen.stalledMs, seen.replicaStalledMs) - marginMs);
    const judged = busiestWindow(seen.entries, 60_000 - lateMs);
    const admitted = count(seen.entries, 'admitted');
    await world.end();
    await stopServer(redis);
    // Three windows begin within 150 s and 20 s of waiting.
    const used = admitted >= 355;
    const answered = seen.responses.every(({ status }) => status === 200 || status === 429);
    return {
      holds: judged <= 120 && answered,
      holdsWhenQuiet: used && seen.throttled + seen.crossed === 0,
      figures: `busiest 60 s window ${busiest} (${judged} in ${(60 - lateMs / 1000).toFixed(2)} s, for what stalled); sent ${admitted}; ${seen.words}`,
    };
  },
};

export const bursts = { chat: [chatBurst(2), chatBurst(5)], shopBurst, ceiling };
