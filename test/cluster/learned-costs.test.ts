/** The cost of a GraphQL document over Redis: told by its first answer, charged to calls that wait in Redis. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../src/simulators/commerce.ts';
import { serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { fleetConfig } from '../support/redis-fleet.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
}, 30_000);
const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(() => redis.stop());

test.each(['maxInFlight: none', ''])(
  'ten dear queries at once are never throttled (%s)',
  async (shopLimits) => {
    const shop = createCommerceSimulator({
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
    const config = fleetConfig({ redis: `url: "redis://127.0.0.1:${redis.port}"`, shopUrl: url, shopLimits });
    const service = await serviceOf(config.yaml());
    open.push(() => service.close());
    const query = '# sim: requested=500 actual=500 ms=100\n{ shop { name } }';
    const ask = async (): Promise<string> => {
      const answer = await fetch(
        `http://127.0.0.1:${service.dataAddress.port}/via/shop/admin/api/2026-10/graphql.json`,
        {
          method: 'POST',
          headers: { authorization: `Bearer ${config.keys['acme']}`, 'content-type': 'application/json' },
          body: JSON.stringify({ query }),
        },
      );
      return `${answer.status} ${(await answer.text()).includes('THROTTLED')}`;
    };
    expect(new Set(await Promise.all(Array.from({ length: 10 }, ask)))).toEqual(new Set(['200 false']));
    expect(shop.log.map(({ decision }) => decision)).toEqual(Array(10).fill('admitted'));
  },
  60_000,
);
