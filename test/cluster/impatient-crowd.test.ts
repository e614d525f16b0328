/** Clients that ask again at once, over Redis: what their refusals cost it, and that each is counted. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { serviceOf } from '../support/gateway.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { monitorRedis } from '../support/redis-monitor.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** How long the crowd insists at most. Milliseconds. */
const insistsMs = 30_000;

test('refusals before the stated time cost Redis little, and another workspace does not wait', async () => {
  let received = 0;
  const upstream = createServer((request, response) => {
    received += 1;
    request.resume();
    response.end('ok');
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const [crowd, other] = [createKey(), createKey()];
  const service = await serviceOf(`
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
redis: { url: "${redis.url}", commandTimeoutMs: 2000 }
privacy: { labelKey: "a label key for tests only" }
upstreams:
  api:
    origins: ["http://127.0.0.1:${(upstream.address() as AddressInfo).port}"]
    allowPrivateAddresses: true
    credential: Bearer x
    limits: { requestsPerMinute: 5 }
    speaks: { windows: [{ requests: 1000, seconds: 60 }] }
workspaces:
  crowd: { keys: ["${crowd.hash}"] }
  other: { keys: ["${other.hash}"], requestsPerMinute: { api: 500 } }`);
  const monitor = await monitorRedis(redis.port);
  try {
    const url = `http://127.0.0.1:${service.dataAddress.port}/via/api/x`;
    const send = async (key: string, waitSeconds: number): Promise<Response> => {
      const headers = { authorization: `Bearer ${key}`, prefer: `wait=${waitSeconds}` };
      const response = await fetch(url, { headers });
      await response.text();
      return response;
    };
    const usedFrom = performance.now();
    for (let n = 0; n < 5; n += 1) expect((await send(crowd.key, 600)).status).toBe(200);
    const before = monitor.lines.length;
    const refused: Response[] = [];
    const startedAt = performance.now();
    // The first slot is free again after a minute, however many calls a slow machine has made by then.
    const insist = async (): Promise<void> => {
      for (let n = 0; n < 100 && performance.now() - startedAt < insistsMs; n += 1)
        refused.push(await send(crowd.key, 2));
    };
    await Promise.all([insist(), insist(), insist(), insist()]);
    const tookMs = performance.now() - startedAt;
    const soonestMs = 60_000 - (performance.now() - usedFrom);
    // Commands of scripts are listed too.
    const asked = monitor.lines.slice(before).filter((line) => !line.includes(' lua] ')).length;
    expect(new Set(refused.map(({ status }) => status))).toEqual(new Set([429]));
    const isForWait = expect.stringMatching(/^(wait_too_long|wait_expired)$/);
    for (const { headers } of refused) {
      expect(Number(headers.get('retry-after-ms'))).toBeGreaterThan(soonestMs);
      expect(headers.get('sluice-error')).toEqual(isForWait);
      expect(headers.get('ratelimit')).toMatch(/^"workspace";r=0;t=\d\d$/);
    }
    const waited = (await send(other.key, 600)).headers.get('sluice-admission');
    expect(waited).toMatch(/attempts=1/);
    expect(received).toBe(6);
    const metrics = await fetch(`http://127.0.0.1:${service.adminAddress.port}/metrics`);
    const text = await metrics.text();
    // Every 250 ms up to four calls ask log and ceiling, until the first of them knows; beside them the replica's own heartbeats.
    expect(asked).toBeLessThanOrEqual(4 * 3 * (tookMs / 250 + 1) + (tookMs / 1_000) * 20);
    const shed = text.matchAll(/^sluice_shed_total\{.*reason="wait_(?:too_long|expired)".*\} (\d+)$/gm);
    expect([...shed].reduce((sum, [, calls]) => sum + Number(calls), 0)).toBe(refused.length);
  } finally {
    monitor.stop();
    await service.close();
    upstream.close();
    upstream.closeAllConnections();
  }
});
