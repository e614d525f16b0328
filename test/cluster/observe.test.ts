/** Two replicas over one Redis observe one upstream: what they say is reckoned over the calls of both. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import type { Service } from '../../src/service.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import { chatBody, chatPath, fleetConfig } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

let redis: RedisServer;
let model: LanguageModelSimulator;
let replicas: Service[] = [];
beforeAll(async () => {
  redis = await startRedis();
});
afterEach(async () => {
  await Promise.all(replicas.map((replica) => replica.close()));
  replicas = [];
  await model.close();
});
afterAll(() => redis.stop());

test('calls of both replicas stand in one reckoning, leave at once, and the counters of both together hold all of them', async () => {
  // The upstream allows plenty, and takes longer than Redis: what is stated in the configuration is pinned, and would hold calls.
  model = createLanguageModelSimulator({ latency: { baseMs: 1_000, perTokenMs: 0, jitter: 0 } });
  const { url: modelUrl } = await model.listen();
  const config = fleetConfig({
    redis: `url: redis://127.0.0.1:${redis.port}`,
    modelUrl,
    modelLimits: 'requestsPerMinute: 1, learn: false, probe: 100, maxWaitSeconds: 270',
    workspace: '    requestsPerMinute: { openai: 100000 }',
  });
  const yaml = config.yaml().replace('  openai:', '  openai:\n    mode: observe');
  replicas = [await serviceOf(yaml), await serviceOf(yaml)];
  const send = async (n: number): Promise<Response> => {
    const { port } = replicas[n % 2]?.dataAddress ?? { port: 0 };
    const response = await fetch(`http://127.0.0.1:${port}${chatPath}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${config.keys['acme']}`, 'content-type': 'application/json' },
      body: JSON.stringify(chatBody),
    });
    await response.arrayBuffer();
    return response;
  };
  // One after the other: of calls that come at the same time no replica knows which was first.
  const responses: Response[] = [];
  for (let n = 0; n < 7; n += 1) responses.push(await send(n));
  expect(responses.map(({ status }) => status)).toEqual(responses.map(() => 200));
  const said = responses.map(({ headers }) => headers.get('sluice-admission') ?? '');
  expect(said.filter((field) => !field.startsWith('waited=0, attempts=1, absorbed=0, would='))).toEqual([]);
  const would = said.map((field) => /would=(\w+), would-wait=(\d+)/.exec(field) ?? []);
  const fates = would.map(([, kind, ms]) =>
    kind === 'refuse' ? kind : `${Math.round(Number(ms) / 60_000)}`,
  );
  // In minutes: the quota of one call a minute counts once, and not once for each replica.
  expect(fates.toSorted()).toEqual('0 1 2 3 4 refuse refuse'.split(' '));
  const total = async (name: string): Promise<number> => {
    const pages = replicas.map(async ({ adminAddress: { port } }) =>
      (await fetch(`http://127.0.0.1:${port}/metrics`)).text(),
    );
    const lines = (await Promise.all(pages)).join('\n').split('\n');
    const found = lines.filter((line) => line.startsWith(name));
    return found.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
  };
  await until(async () => (await total('sluice_would_wait_seconds_count')) >= 1);
  expect(await total('sluice_would_refuse_total{')).toBe(2);
});
