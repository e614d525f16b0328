/** More than the process can take: what is turned away, with which words, and that accepted calls end as if nothing was. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { OverloadBound } from '../../src/errors.ts';
import { memoryRatio, watchProcess, type LoadWatch } from '../../src/ingress/overload.ts';
import {
  held as heldBytes,
  later,
  outcomeOf,
  serverSettings,
  settled,
  startDataServer,
} from '../ingress/data-server-fixture.ts';
import { startGateway } from '../support/gateway.ts';
import type { RawClient } from '../support/raw-client.ts';

const get = (more = ''): string => `GET /proxy?1 HTTP/1.1\r\nHost: a\r\n${more}\r\n`;
const ends: (() => void)[] = [];
afterEach(() => ends.splice(0).forEach((end) => end()));

/** A server that tells what it refused, holding calls until they are released. */
async function crowded(settings: Partial<typeof serverSettings>, load?: LoadWatch) {
  const hold = later<void>();
  const refused: OverloadBound[] = [];
  const shedding: (OverloadBound | null)[] = [];
  const fixture = await startDataServer(
    async (call) => {
      await call.readBody('w');
      await hold.promise;
      return outcomeOf();
    },
    {
      settings: { ...serverSettings, ...settings },
      random: { ...systemRandom, next: () => 0 },
      onOverload: (bound) => refused.push(bound),
      onShedding: (cause) => shedding.push(cause),
      ...(load === undefined ? {} : { load }),
    },
  );
  return { ...fixture, refused, shedding, release: () => hold.resolve() };
}

const firstResponse = async (raw: RawClient) => (await raw.responses(1))[0];

describe('a bound that is counted', () => {
  test('connections: one above the bound is refused and closed, open ones go on, and a closed one makes room for another', async () => {
    const { client, calls, data, refused, release } = await crowded({ maxConnections: 2 });
    const [first, second] = [await client(), await client()];
    await first.send(get());
    await second.send(get());
    await settled(() => calls.length === 2);
    const third = await client();
    await third.send(get());
    const response = await firstResponse(third);
    expect([response?.status, response?.field('sluice-error'), response?.field('connection')]).toEqual([
      503,
      'overloaded',
      'close',
    ]);
    expect(response?.field('retry-after')).toMatch(/^\d+$/);
    expect(refused).toEqual(['connections']);
    expect(data.stats().overloadRefusals).toBe(1);
    await third.closed;
    release();
    expect((await firstResponse(first))?.status).toBe(200);
    expect((await firstResponse(second))?.status).toBe(200);
    first.socket.destroy();
    await settled(() => data.stats().connections === 1);
    const fourth = await client();
    await fourth.send(get());
    expect((await firstResponse(fourth))?.status).toBe(200);
  });

  test('heads count as bytes, and their bytes come back', async () => {
    const { client, calls, data, refused, release } = await crowded({
      maxHeldBytes: 20_000,
      maxBodyBytes: 100,
    });
    const big = get(`X-Big: ${'x'.repeat(9_000)}\r\n`);
    const [first, second] = [await client(), await client()];
    await first.send(big);
    await settled(() => calls.length === 1);
    // One owner may hold half of it: the second head of the same one is too much.
    await second.send(big);
    expect((await firstResponse(second))?.field('sluice-error')).toBe('overloaded');
    expect(refused).toEqual(['bytes']);
    release();
    await firstResponse(first);
    await settled(() => heldBytes(data) === 0);
  });
});

describe('load', () => {
  test('refuses new calls while it stands, ends by itself, and touches no call that was let in', async () => {
    let sample: Parameters<LoadWatch>[0] = () => {};
    const { client, calls, data, refused, shedding, release } = await crowded({}, (onSample) => {
      sample = onSample;
      return () => {};
    });
    const [held, raw] = [await client(), await client()];
    await held.send(get());
    await settled(() => calls.length === 1);
    for (let n = 0; n < 6; n += 1) sample({ delayMs: 500, memoryRatio: 0 });
    await raw.send(get());
    const response = await firstResponse(raw);
    expect([response?.status, response?.field('sluice-error')]).toEqual([503, 'overloaded']);
    // From 0.4 at 0.02 each 100 ms: 2 s.
    expect(response?.field('retry-after')).toBe('2');
    expect(refused).toEqual(['event_loop']);
    expect(data.stats().overloadRefusals).toBe(1);
    expect(calls).toHaveLength(1);
    release();
    expect((await firstResponse(held))?.status).toBe(200);
    for (let n = 0; n < 25; n += 1) sample({ delayMs: 0, memoryRatio: 0 });
    expect(shedding).toEqual(['event_loop', null]);
    await held.send(get());
    expect((await held.responses(2))[1]?.status).toBe(200);
  });

  test('of this process is seen: an event loop that is kept busy, and a heap that is in use', async () => {
    const seen = crowded({ maxEventLoopDelayMs: 10 }, watchProcess(systemClock));
    const { data, shedding } = await seen;
    let isBusy = true;
    const spin = (): void => {
      const until = performance.now() + 40;
      while (performance.now() < until);
      if (isBusy) setImmediate(spin);
    };
    ends.push(() => (isBusy = false));
    spin();
    await settled(() => data.stats().sheddingShare > 0);
    expect(shedding).toEqual(['event_loop']);
    expect(data.stats().eventLoopDelayMs).toBeGreaterThan(10);
    const ratio = memoryRatio(0);
    expect(ratio).toBeGreaterThan(0);
    expect(ratio).toBeLessThan(1);
    // In a container of 200 MB the same bytes are a larger share.
    expect(memoryRatio(200_000_000)).toBeGreaterThan(ratio);
  });
});

test('the admin port answers while calls are shed; readiness stays, and metrics name the bound', async () => {
  let sample: Parameters<LoadWatch>[0] = () => {};
  const gateway = await startGateway({
    upstreams: '  api: { origins: ["http://127.0.0.1:9"], allowPrivateAddresses: true }',
    load: (onSample) => {
      sample = onSample;
      return () => {};
    },
  });
  try {
    for (let n = 0; n < 40; n += 1) sample({ delayMs: 0, memoryRatio: 0.95 });
    const response = await fetch(`${gateway.url}/activity`);
    expect([response.status, response.headers.get('sluice-error')]).toEqual([503, 'overloaded']);
    expect((await fetch(`${gateway.adminUrl}/readyz`)).status).toBe(200);
    const page = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
    expect(page).toContain('sluice_overload_total{bound="memory"} 1');
    expect(page).toContain('sluice_shed_total{workspace="none",upstream="none",reason="overloaded"} 1');
    expect(page).toContain('sluice_shedding_ratio 1');
    expect(page).toContain('sluice_memory_used_ratio 0.95');
    expect(gateway.logs.join('')).toContain('"bound":"memory"');
  } finally {
    await gateway.close();
  }
});
