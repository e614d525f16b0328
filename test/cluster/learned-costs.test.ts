/** The cost of a GraphQL document over Redis: stated by its first response, charged to calls that wait in Redis. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { serviceOf } from '../support/gateway.ts';
import { manualClock } from '../support/manual-clock.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { fleetConfig, type FleetConfig } from '../support/redis-fleet.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(() => redis.stop());

async function startShop(clock: Clock = systemClock) {
  const shop = createCommerceSimulator({
    clock,
    latency: { minMs: 0, maxMs: 0 },
    stores: {
      'acme.myshopify.com': {
        plan: { limit: 40, leak: 2, max: 2000, restore: 1000 },
        apps: { 'app-sim': ['shpat_sim'] },
      },
    },
  });
  const { url } = await shop.listen();
  open.push(() => shop.close());
  return { shop, url };
}

/** Starts a replica; the result sends a query through it and resolves with status and whether it was throttled. */
async function startReplica(config: FleetConfig): Promise<(query: string) => Promise<string>> {
  const service = await serviceOf(config.yaml());
  open.push(() => service.close());
  return async (query) => {
    const response = await fetch(
      `http://127.0.0.1:${service.dataAddress.port}/via/shop/admin/api/2026-10/graphql.json`,
      {
        method: 'POST',
        headers: { authorization: `Bearer ${config.keys['acme']}`, 'content-type': 'application/json' },
        body: JSON.stringify({ query }),
      },
    );
    return `${response.status} ${(await response.text()).includes('THROTTLED')}`;
  };
}

test.each(['maxInFlight: none', ''])(
  'ten expensive GraphQL queries at once are sent when their cost has been restored (%s)',
  async (shopLimits) => {
    const { shop, url } = await startShop();
    const config = fleetConfig({
      redis: `url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 2000`,
      shopUrl: url,
      shopLimits,
    });
    const ask = await startReplica(config);
    const query = '# sim: requested=500 actual=500 ms=100\n{ shop { name } }';
    const startedAt = Date.now();
    const responses = await Promise.all(Array.from({ length: 10 }, () => ask(query)));
    expect(new Set(responses)).toEqual(new Set(['200 false']));
    // 2,000 points to begin with, 1,000 more in each second. What a busy machine delivers late may meet a bucket that was full
    // meanwhile, and has lost points: then a call is throttled that was sent in time.
    let admitted = 0;
    const early = shop.log.filter(({ at, decision }) => {
      const points = (admitted + 1) * 500;
      if (decision === 'admitted') admitted += 1;
      return at < startedAt + points - 2_000;
    });
    expect(early).toEqual([]);
    expect(admitted).toBe(10);
  },
);

test('the cost of a query is known to every replica when one replica has learned it', async () => {
  const clock = manualClock();
  const { shop, url } = await startShop(clock);
  const config = fleetConfig({
    redis: `url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 2000`,
    shopUrl: url,
    shopLimits: 'maxInFlight: none',
  });
  const [one, other] = [await startReplica(config), await startReplica(config)];
  const query = '# sim: requested=400 actual=400 ms=800\n{ shop { id } }';
  /** The shop answers once all of the calls are in flight. */
  const answered = async (calls: readonly Promise<string>[]): Promise<readonly string[]> => {
    await until(() => clock.waiting === calls.length);
    clock.advance(800);
    return Promise.all(calls);
  };
  expect(await answered([one(query)])).toEqual(['200 false']);
  expect(await answered([1, 2, 3].map(() => other(query)))).toEqual(Array(3).fill('200 false'));
  // No call has to learn the cost again: the three are in flight together.
  expect(shop.log.map(({ inFlight }) => inFlight.scope)).toEqual([1, 1, 2, 3]);
});
