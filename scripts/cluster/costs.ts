/** A GraphQL document whose cost only the upstream's responses tell, sent again and again over three replicas. */
import { Bucket } from '../../simulators/bucket.ts';
import { count, makespan } from '../../test/support/redis-fleet.ts';
import { drive } from './load.ts';
import { startSimulator, type Simulator } from './processes.ts';
import { allSucceeded, makespanOf, noneLost, ratio, summary, type Row, type Scenario } from './row.ts';
import { overRedis, wait } from './worlds.ts';

const calls = 20;
const asked = 500;
const latencyMs = 300;
const atBest = 1.15;
/** What the way through a gateway adds to each of the calls that follow one another. Milliseconds. */
const passageMs = 10;

interface Costs {
  readonly name: string;
  /** Points that the upstream keeps of those asked for. */
  readonly charged: number;
  readonly capacity: number;
  readonly restorePerSecond: number;
  /** Each has one call in flight at a time. */
  readonly workspaces: number;
}

/**
 * How long all calls take when each is sent as soon as the upstream has room for it, milliseconds to the last sending. The first
 * goes alone: what room there is only its response tells.
 */
function bestMs({ charged, capacity, restorePerSecond, workspaces }: Costs): number {
  const bucket = new Bucket({ limit: capacity, windowMs: (capacity / restorePerSecond) * 1_000 }, 0);
  const ends: number[] = [];
  let now = 0;
  for (let sent = 0; ;) {
    const atOnce = now === 0 ? 1 : workspaces;
    while (ends.length < atOnce && sent < calls && bucket.waitMs(asked, now) === 0) {
      bucket.take(asked, now);
      ends.push(now + latencyMs + passageMs);
      sent += 1;
    }
    if (sent === calls) return now;
    const [end = Infinity] = ends;
    const roomAt = ends.length < atOnce ? now + bucket.waitMs(asked, now) : Infinity;
    now = Math.min(end, roomAt);
    if (now !== end) continue;
    ends.shift();
    bucket.take(charged - asked, now);
  }
}

/** A store with these points. */
const startStore = ({ capacity: max, restorePerSecond: restore }: Costs): Promise<Simulator> =>
  startSimulator('commerce', {
    latency: { minMs: latencyMs, maxMs: latencyMs },
    stores: {
      '127.0.0.1': { plan: { limit: 40, leak: 2, max, restore }, apps: { 'app-sim': ['shpat_sim'] } },
    },
  });

const repeated = (costs: Costs): Scenario => ({
  name: `GraphQL over three replicas: ${costs.name}`,
  async run(): Promise<Row> {
    const simulator = await startStore(costs);
    const workspaces = Array.from({ length: costs.workspaces }, (_, n) => `w${n}`);
    const { fleet, end } = await overRedis({
      shopUrl: simulator.url,
      shopLimits: 'requestsPerMinute: 1000',
      workspaces,
    });
    const responses = await drive({
      to: fleet.gateways,
      calls,
      everyMs: 0,
      path: '/via/shop/admin/api/2026-10/graphql.json',
      key: (n) => fleet.keys[workspaces[n % workspaces.length] ?? ''] ?? '',
      body: {
        query: `# sim: requested=${asked} actual=${costs.charged}\n{ products(first: 50) { nodes { id } } }`,
      },
      headers: wait(300),
    });
    const entries = await simulator.log();
    await end(simulator);
    const [tookMs, optimumMs] = [makespan(entries), bestMs(costs)];
    return {
      holds: noneLost(responses),
      holdsWhenQuiet: allSucceeded(responses) && tookMs <= atBest * optimumMs,
      figures: `makespan ${ratio(tookMs, optimumMs)}; ${summary(responses)}; throttled upstream ${count(entries, 'throttled')}`,
      measured: [makespanOf(tookMs, optimumMs)],
    };
  },
});

export const oneDocument: readonly Scenario[] = [
  repeated({
    name: '20 times one document of 500 points, 1,000 points at 500/s',
    charged: 500,
    capacity: 1_000,
    restorePerSecond: 500,
    workspaces: 1,
  }),
  repeated({
    name: '20 workspaces ask one document of 500 points of which 10 are charged, 1,200 points at 60/s',
    charged: 10,
    capacity: 1_200,
    restorePerSecond: 60,
    workspaces: 20,
  }),
];
