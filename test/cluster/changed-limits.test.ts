/** Limits that change by a reload, over two replicas on one Redis: for calls that wait on either replica, and for new ones. */
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { parseSettings } from '../../src/config/load.ts';
import type { Service } from '../../src/service.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { chatBody, chatPath, fleetConfig, type FleetConfig } from '../support/redis-fleet.ts';

let redis: RedisServer;
let url = '';
const model = createLanguageModelSimulator({ latency: { baseMs: 0, perTokenMs: 0, jitter: 0 } });
beforeAll(async () => {
  redis = await startRedis();
  ({ url } = await model.listen());
});
const open: Service[] = [];
afterEach(async () => {
  for (const service of open.splice(0)) await service.close();
});
afterAll(async () => {
  await model.close();
  await redis.stop();
});

interface Fleet {
  readonly config: FleetConfig;
  readonly replicas: readonly Service[];
}

async function startFleet(workspace: string, database: number): Promise<Fleet> {
  const config = fleetConfig({
    redis: `url: "${redis.url}/${database}", commandTimeoutMs: 2000`,
    modelUrl: url,
    workspace,
  });
  const replicas = [await serviceOf(config.yaml()), await serviceOf(config.yaml())];
  open.push(...replicas);
  return { config, replicas };
}

async function ask({ config, replicas }: Fleet, replica: number, prefer = 'wait=1'): Promise<string> {
  const port = replicas[replica]?.dataAddress.port ?? 0;
  const response = await fetch(`http://127.0.0.1:${port}${chatPath}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${config.keys['acme']}`, 'content-type': 'application/json', prefer },
    body: JSON.stringify(chatBody),
  });
  const { code, heldBy } = (await response.json()) as Record<string, unknown>;
  return response.status === 200 ? '200' : `${response.status} ${String(code)} ${String(heldBy)}`;
}

async function reload({ config, replicas }: Fleet, from: string, to: string): Promise<void> {
  const text = config.yaml();
  expect(text).toContain(from);
  const settings = parseSettings(text.replace(from, to), { path: 'test.yaml', env: {} });
  await Promise.all(replicas.map((service) => service.reload(settings)));
}

test('raising a used-up daily ceiling gives every replica room again, as much as was added', async () => {
  const fleet = await startFleet('    requestsPerDay: { openai: 2 }', 1);
  const before = [await ask(fleet, 0), await ask(fleet, 1), await ask(fleet, 0), await ask(fleet, 1)];
  const spent = '429 day_quota_exhausted ceiling_day';
  expect(before).toEqual(['200', '200', spent, spent]);
  await reload(fleet, 'requestsPerDay: { openai: 2 }', 'requestsPerDay: { openai: 4 }');
  const after = [await ask(fleet, 1), await ask(fleet, 0), await ask(fleet, 1), await ask(fleet, 0)];
  expect(after).toEqual(['200', '200', spent, spent]);
});

test('raising a ceiling of the minute lets calls go that wait on either replica', async () => {
  const fleet = await startFleet('    requestsPerMinute: { openai: 1 }', 2);
  expect(await ask(fleet, 0)).toBe('200');
  const waiting = [0, 1, 0, 1].map((replica) => ask(fleet, replica, 'wait=300'));
  const depth = (): number =>
    fleet.replicas.reduce(
      (sum, { gateway }) => sum + (gateway.parts.pressure.buckets()[0]?.snapshot.waiting ?? 0),
      0,
    );
  while (depth() < 4) await pause(5);
  await reload(fleet, 'requestsPerMinute: { openai: 1 }', 'requestsPerMinute: { openai: 20 }');
  expect(await Promise.all(waiting)).toEqual(Array(4).fill('200'));
  expect(await ask(fleet, 1)).toBe('200');
});
