/**
 * Quotas that a gateway learns from responses: a document whose cost only they tell, tokens stated to the nearest thousand and GraphQL cost
 * beside two processes that never rest; and an upstream that is closed just when the second minute of a ceiling begins.
 */
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { busiestWindow, chatBody, chatPath, pause } from '../../test/support/redis-fleet.ts';
import { start } from '../fleet/processes.ts';
import { chatModel, seconds, startWorld, store, warmingModel, type Row, type Seen } from './row.ts';

const graphqlPath = '/via/shop/admin/api/2026-10/graphql.json';
const shopLimits = 'requestsPerMinute: 1000';

/** One document of 500 points, asked for again and again. */
function repeated(
  name: string,
  costs: { charged: number; capacity: number; perSecond: number; workspaces: number; bestMs: number },
): Row {
  const { charged, capacity, perSecond, workspaces: count, bestMs } = costs;
  const workspaces = Array.from({ length: count }, (_, n) => `w${n}`);
  const plan = { limit: 40, leak: 2, max: capacity, restore: perSecond };
  const query = `# sim: requested=500 actual=${charged}\n{ products(first: 50) { nodes { id } } }`;
  return {
    name: `GraphQL over three replicas: ${name}`,
    world: () => startWorld('commerce', store(plan, 300), { limits: shopLimits, options: { workspaces } }),
    load: ({ keys }) => ({
      calls: 20,
      everyMs: 0,
      path: graphqlPath,
      key: (n) => keys[workspaces[n % count] ?? ''] ?? '',
      body: () => ({ query }),
      waitSeconds: 300,
    }),
    best: () => bestMs,
    atBest: 1.15,
    maxThrottled: Infinity,
  };
}

/** Processes that never rest end by themselves after this, milliseconds. */
const busySource = 'const end = Date.now() + 120_000; while (Date.now() < end);';

const sizes = (seed: number, calls: number, [min, max]: readonly [number, number]): readonly number[] => {
  const random = new SeededRandom(seed);
  return Array.from({ length: calls }, () => min + Math.round(random.next() * (max - min)));
};

/** One call in so many may be refused by the upstream. */
const callsPerRefusal = 20;
const minUsed = 0.97;

/** Calls of one process that cost `units` each, of which the upstream has `limit` and `perSecond`. */
const paced = (
  row: Pick<Row, 'name' | 'world'> & {
    readonly path: string;
    readonly limit: number;
    readonly perSecond: number;
    readonly units: readonly number[];
    readonly body: (units: number) => unknown;
    /** In the upstream's log. */
    readonly dimension: string;
  },
): Row => {
  const usedOf = ({ entries }: Seen): number =>
    entries
      .filter(({ decision }) => decision === 'admitted')
      .reduce((sum, { cost }) => sum + (cost[row.dimension] ?? 0), 0);
  return {
    name: `${row.name}, beside two busy processes`,
    world: row.world,
    load: ({ keys }) => ({
      calls: row.units.length,
      everyMs: 5,
      path: row.path,
      key: keys['acme'] ?? '',
      body: (n) => row.body(row.units[n] ?? 0),
      waitSeconds: 300,
    }),
    beside() {
      const busy = [1, 2].map(() => start(process.execPath, ['-e', busySource]));
      return { end: () => busy.forEach((one) => one.signal('SIGKILL')) };
    },
    best: (seen) => ((usedOf(seen) - row.limit) / row.perSecond) * 1_000,
    atBest: 1.05,
    maxThrottled: Infinity,
    also(seen) {
      const share = usedOf(seen) / (row.limit + (row.perSecond * seen.tookMs) / 1_000);
      return {
        holds: share >= minUsed && seen.throttled <= row.units.length / callsPerRefusal,
        words: `used ${(100 * share).toFixed(1)} % of the quota`,
        measured: [{ name: 'refusals by the upstream', value: seen.throttled, unit: 'calls' }],
      };
    },
  };
};

const large = 100_000_000;
const wordsOf = (tokens: number) => [{ role: 'user', content: 'word'.repeat(Math.max(1, tokens - 3)) }];

const tokens = paced({
  name: 'tokens stated to the nearest thousand',
  limit: 50_000,
  perSecond: 50_000 / 60,
  world: () =>
    startWorld(
      'language-model',
      {
        dialect: 'anthropic',
        models: {
          'claude-sonnet-5': { rpm: 100_000, itpm: 50_000, otpm: large },
          [warmingModel]: { rpm: 100_000, itpm: large, otpm: large },
        },
        latency: { baseMs: 300, perTokenMs: 0, jitter: 0 },
      },
      { limits: 'requestsPerMinute: 100000, requestsPerDay: 10000000', replicas: 1 },
    ),
  path: '/via/openai/v1/messages',
  units: sizes(1, 90, [300, 2_000]),
  body: (units) => ({ model: 'claude-sonnet-5', max_tokens: 50, messages: wordsOf(units) }),
  dimension: 'itpm',
});

const points = paced({
  name: 'GraphQL cost',
  limit: 2_000,
  perSecond: 100,
  world: () =>
    startWorld('commerce', store({ limit: 40, leak: 2, max: 2_000, restore: 100 }, 100), {
      limits: shopLimits,
      replicas: 1,
    }),
  path: graphqlPath,
  units: sizes(2, 60, [1, 6]).map((kind) => kind * 40),
  body: (units) => ({
    query: `# sim: requested=${units} actual=${units}\nquery Of${units} { products(first: 50) { nodes { id } } }`,
  }),
  dimension: 'graphql',
});

const ceiling = 120;
/** The upstream is closed from here to there, milliseconds after the first call; it counts 6,000 per minute. */
const [closedFromMs, closedUntilMs] = [58_000, 70_000];
/** So much longer than a minute is the window that the limiter keeps (ADR 2). Milliseconds. */
const marginMs = 150;

const closing: Row = {
  name: `ceiling ${ceiling}/min and an upstream closed from second 58 to 70`,
  world: () =>
    startWorld('language-model', chatModel(6_000), {
      limits: `requestsPerMinute: ${ceiling}, requestsPerDay: 1000000, tokensPerMinute: ${large}`,
    }),
  load: ({ keys }) => ({
    calls: 358,
    everyMs: 0,
    path: chatPath,
    key: keys['acme'] ?? '',
    body: () => chatBody,
    waitSeconds: 150,
  }),
  beside({ simulator }) {
    const closed = pause(closedFromMs).then(() =>
      simulator.configure({ close: { forMs: closedUntilMs - closedFromMs } }),
    );
    return { end: () => closed };
  },
  // 120 leave at once, 120 after the closing, at the 100 per second of the upstream, 118 a minute later.
  best: () => closedUntilMs + 61_200,
  atBest: 1.01,
  maxThrottled: Infinity,
  also({ entries, stalledMs }) {
    // What the upstream refused was sent, and counts.
    const arrivals = entries.map((entry) => ({ ...entry, decision: 'admitted' as const }));
    const windowMs = 60_000 - Math.max(0, stalledMs - marginMs);
    const most = busiestWindow(arrivals, windowMs);
    return { holds: most <= ceiling, words: `arrivals in the busiest ${seconds(windowMs)} ${most}` };
  },
};

/** Their best makespans are those of a client that sends each call as soon as the upstream has room for it, and takes 10 ms each. */
export const quotas: readonly Row[] = [
  repeated('20 times one document of 500 points, 1,000 points at 500/s', {
    charged: 500,
    capacity: 1_000,
    perSecond: 500,
    workspaces: 1,
    bestMs: 18_000,
  }),
  repeated('20 workspaces ask one document of 500 points of which 10 are charged, 1,200 points at 60/s', {
    charged: 10,
    capacity: 1_200,
    perSecond: 60,
    workspaces: 20,
    bestMs: 3_100,
  }),
  tokens,
  points,
  closing,
];
