/**
 * Calls paced by tokens and by cost in one process beside two that never rest: what the upstream refuses by its own clock, how much of its
 * quota is used, and how long that takes beside a client that knows the quota.
 */
import { Bucket } from '../../simulators/bucket.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { systemClock } from '../../src/clock.ts';
import { fleetConfig, makespan, pause, send, type FleetOptions } from '../../test/support/redis-fleet.ts';
import { startFleet } from './fleet.ts';
import { drive } from './load.ts';
import { child, startSimulator, type Simulator } from './processes.ts';
import { allSucceeded, makespanOf, ratio, summary, type Row, type Scenario } from './row.ts';
import { wait } from './worlds.ts';

/** An upstream of two clients: each has a quota of its own there, of `limit` units that drain at `perSecond`. */
interface Paced {
  readonly name: string;
  readonly limit: number;
  readonly perSecond: number;
  readonly start: () => Promise<Simulator>;
  readonly options: (url: string) => FleetOptions;
  readonly path: string;
  readonly via: string;
  /** Credentials of the gateway, and of the client that knows the quota. */
  readonly ours: string;
  readonly plain: { readonly key: string; readonly headers: Readonly<Record<string, string>> };
  readonly units: readonly number[];
  readonly body: (units: number, isWarming: boolean) => unknown;
  /** The dimension of the quota in the upstream's log. */
  readonly dimension: string;
  /** Calls of a client in flight at a time. */
  readonly maxInFlight: number;
}

/** What has to hold: the share of the quota that is used, and the makespan beside that of the client that knows the quota. */
const minUsed = 0.97;
const maxMakespan = 1.02;
/** One call in so many may be refused at first, and none after so many that had to wait. */
const callsPerRefusal = 20;
const lastRefusedPaced = 10;
/** The busy processes end by themselves after this, milliseconds. */
const busyMs = 120_000;
const busySource = `const end = Date.now() + ${busyMs}; while (Date.now() < end);`;
/** The client that knows the quota sends so much later than it reckons, because a call is on its way for a while. Milliseconds. */
const plainMarginMs = 30;

const sizes = (seed: number, calls: number, [min, max]: readonly [number, number]): readonly number[] => {
  const random = new SeededRandom(seed);
  return Array.from({ length: calls }, () => min + Math.round(random.next() * (max - min)));
};

/** Sends each call as soon as its own reckoning has room for it, and again at the stated time where it was refused. */
async function drivePlain(paced: Paced, url: string): Promise<void> {
  const { limit, perSecond, plain, path, units, body, maxInFlight } = paced;
  const bucket = new Bucket({ limit, windowMs: (limit / perSecond) * 1_000 }, systemClock.monotonic());
  const inFlight = new Set<Promise<void>>();
  const one = async (n: number): Promise<void> => {
    for (;;) {
      const { status, retryAfterMs } = await send({
        url,
        path,
        key: '',
        nonce: `plain-${n}`,
        body: body(units[n] ?? 0, false),
        headers: plain.headers,
      });
      if (status !== 429) return;
      await pause(retryAfterMs ?? 1_000);
    }
  };
  for (const [n, cost] of units.entries()) {
    if (inFlight.size >= maxInFlight) await Promise.race(inFlight);
    const waitMs = bucket.waitMs(cost, systemClock.monotonic());
    if (waitMs > 0) await pause(waitMs + plainMarginMs);
    bucket.take(cost, systemClock.monotonic());
    const sent: Promise<void> = one(n).finally(() => inFlight.delete(sent));
    inFlight.add(sent);
  }
  await Promise.all(inFlight);
}

/** What the upstream saw of one client. */
function seenOf(entries: readonly LogEntry[], { limit, perSecond, dimension }: Paced) {
  const admitted = entries.filter(({ decision }) => decision === 'admitted');
  const tookMs = makespan(entries);
  const used = admitted.reduce((sum, { cost }) => sum + (cost[dimension] ?? 0), 0);
  // How many calls had been let in before each refusal, and before the first that had to wait.
  const refusedAfter = entries
    .filter(({ decision }) => decision === 'throttled')
    .map(({ t }) => admitted.filter((other) => other.t < t).length);
  const optimumMs = ((used - limit) / perSecond) * 1_000;
  let left = limit;
  const atOnce = admitted.findIndex(({ cost }) => (left -= cost[dimension] ?? 0) < 0);
  return {
    tookMs,
    optimumMs,
    ratio: tookMs / optimumMs,
    usedShare: used / (limit + (perSecond * tookMs) / 1_000),
    refusedAfter,
    isRefusedSeldom:
      refusedAfter.length <= admitted.length / callsPerRefusal &&
      refusedAfter.every((before) => before <= atOnce + lastRefusedPaced),
  };
}

const paced = (row: Paced): Scenario => ({
  name: `${row.name}, beside two busy processes`,
  async run(): Promise<Row> {
    const simulator = await row.start();
    const config = fleetConfig(row.options(simulator.url));
    const fleet = await startFleet(1, config);
    const load = { to: fleet.gateways, key: config.keys['acme'] ?? '', path: row.via, headers: wait(300) };
    await drive({ ...load, calls: 30, everyMs: 20, body: row.body(1, true) });
    await simulator.forget();
    const busy = [1, 2].map(() => child(process.execPath, ['-e', busySource]));
    const [responses] = await Promise.all([
      drive({
        ...load,
        calls: row.units.length,
        everyMs: 5,
        bodyOf: (n) => row.body(row.units[n] ?? 0, false),
      }),
      drivePlain(row, simulator.url),
    ]);
    for (const one of busy) one.kill('SIGKILL');
    const all = await simulator.log();
    await fleet.stop();
    simulator.stop();
    const ours = seenOf(
      all.filter(({ key }) => key === row.ours),
      row,
    );
    const plain = seenOf(
      all.filter(({ key }) => key === row.plain.key),
      row,
    );
    return {
      holds: allSucceeded(responses) && ours.isRefusedSeldom && ours.usedShare >= minUsed,
      holdsWhenQuiet: ours.ratio <= maxMakespan * plain.ratio,
      figures: `makespan ${ratio(ours.tookMs, ours.optimumMs)}, of a client that knows the quota ${ratio(plain.tookMs, plain.optimumMs)}; used ${(100 * ours.usedShare).toFixed(1)} % of the quota; refused behind ${JSON.stringify(ours.refusedAfter)} calls, that client behind ${JSON.stringify(plain.refusedAfter)}; ${summary(responses)}`,
      measured: [
        makespanOf(ours.tookMs, ours.optimumMs),
        { name: 'refusals by the upstream', value: ours.refusedAfter.length, unit: 'calls' },
      ],
    };
  },
});

const large = 100_000_000;
const wide = 'requestsPerMinute: 100000, requestsPerDay: 10000000';

export const margins: readonly Scenario[] = [
  paced({
    name: 'tokens stated to the nearest thousand',
    limit: 50_000,
    perSecond: 50_000 / 60,
    start: () =>
      startSimulator('language-model', {
        dialect: 'anthropic',
        orgs: {
          'org-sim': { projects: { proj_sim: { keys: ['sk-sim'] } } },
          'org-plain': { projects: { proj_plain: { keys: ['sk-plain'] } } },
        },
        models: {
          'claude-sonnet-5': { rpm: 100_000, itpm: 50_000, otpm: large },
          'claude-haiku-5': { rpm: 100_000, itpm: large, otpm: large },
        },
        latency: { baseMs: 300, perTokenMs: 0, jitter: 0 },
      }),
    options: (modelUrl) => ({ modelUrl, modelLimits: wide }),
    path: '/v1/messages',
    via: '/via/openai/v1/messages',
    ours: 'sk-sim',
    plain: { key: 'sk-plain', headers: { 'x-api-key': 'sk-plain' } },
    units: sizes(1, 90, [300, 2_000]),
    body: (tokens, isWarming) => ({
      model: isWarming ? 'claude-haiku-5' : 'claude-sonnet-5',
      max_tokens: 50,
      messages: [{ role: 'user', content: 'word'.repeat(Math.max(1, tokens - 3)) }],
    }),
    dimension: 'itpm',
    maxInFlight: 100,
  }),
  paced({
    name: 'GraphQL cost',
    limit: 2_000,
    perSecond: 100,
    start: () =>
      startSimulator('commerce', {
        latency: { minMs: 100, maxMs: 100 },
        stores: {
          '127.0.0.1': {
            plan: { limit: 40, leak: 2, max: 2_000, restore: 100 },
            apps: { 'app-sim': ['shpat_sim'], 'app-plain': ['shpat_plain'] },
          },
        },
      }),
    options: (shopUrl) => ({ shopUrl, shopLimits: 'requestsPerMinute: 1000' }),
    path: '/admin/api/2026-10/graphql.json',
    via: '/via/shop/admin/api/2026-10/graphql.json',
    ours: 'shpat_sim',
    plain: { key: 'shpat_plain', headers: { 'x-shopify-access-token': 'shpat_plain' } },
    units: sizes(2, 60, [1, 6]).map((kind) => kind * 40),
    body: (points) => ({
      query: `# sim: requested=${points} actual=${points}\nquery Of${points} { products(first: 50) { nodes { id } } }`,
    }),
    dimension: 'graphql',
    maxInFlight: 1,
  }),
];
