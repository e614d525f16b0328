/** A burst a little over the minute ceiling, from clients that ask for nothing: the default wait is enough for all. */
import { chatBody, chatPath, count, ordersPath } from '../../test/support/redis-fleet.ts';
import { drive } from './load.ts';
import { startSimulator } from './processes.ts';
import { allSucceeded, noneLost, seconds, summary, type Row, type Scenario } from './row.ts';
import { common, run, setups, type Setup } from './setups.ts';

const calls = 70;
const perMinute = 40;

const overTheCeiling = (setup: Setup): Scenario => ({
  name: `${calls} calls at once on a ceiling of ${perMinute}, default wait, ${setup}`,
  async run(): Promise<Row> {
    const model = await startSimulator('language-model', {
      models: { 'gpt-4o': { rpm: 10_000, tpm: 100_000_000 } },
    });
    const shop = await startSimulator('commerce', {
      stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
    });
    const world = await run(
      setup,
      common({
        modelUrl: model.url,
        modelLimits: `requestsPerMinute: ${perMinute}`,
        shopUrl: shop.url,
      }),
    );
    const load = { to: world.fleet.gateways, calls, everyMs: 0, key: world.fleet.keys['acme'] ?? '' };
    const [chats, orders] = await Promise.all([
      drive({ ...load, path: chatPath, body: chatBody }),
      drive({ ...load, path: ordersPath }),
    ]);
    const throttled = count([...(await model.log()), ...(await shop.log())], 'throttled');
    await world.end(model, shop);
    const slowest = Math.max(...[...chats, ...orders].map(({ tookMs }) => tookMs));
    return {
      holds: noneLost([...chats, ...orders]),
      holdsWhenQuiet: allSucceeded([...chats, ...orders]),
      figures: `chat: ${summary(chats)}; commerce: ${summary(orders)}; slowest ${seconds(slowest)}; upstream 429s ${throttled}`,
    };
  },
});

export const defaultWaits = {
  embedded: overTheCeiling(setups.embedded),
  replicas: overTheCeiling(setups.replicas),
};
