/** More than the process can take: what is turned away, with which words, and that accepted calls end as if nothing was. */
import { describe, expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { OverloadBound } from '../../src/errors.ts';
import {
  type LoadSample,
  type LoadWatch,
  memoryRatio,
  Overload,
  watchProcess,
} from '../../src/ingress/overload.ts';
import { held, outcomeOf, serverSettings, settled } from '../ingress/data-server-fixture.ts';
import { closers } from '../support/closers.ts';
import { startGateway } from '../support/gateway.ts';
import { answer, get, served } from './served.ts';

/** A server that tells what it refused, holding calls until they are released. */
async function crowded(settings: Partial<typeof serverSettings>, load: LoadWatch | null = null) {
  const { promise, resolve: release } = Promise.withResolvers<void>();
  const refused: OverloadBound[] = [];
  const shedding: (OverloadBound | null)[] = [];
  const server = await served(
    async (call) => {
      await call.readBody('w');
      await promise;
      return outcomeOf();
    },
    {
      settings: { ...serverSettings, ...settings },
      random: { ...systemRandom, next: () => 0 },
      onOverload: (bound) => refused.push(bound),
      onShedding: (cause) => shedding.push(cause),
      load,
    },
  );
  return { ...server, refused, shedding, release };
}

function stated() {
  let sample: Parameters<LoadWatch>[0] = () => {};
  const load: LoadWatch = (onSample) => {
    sample = onSample;
    return () => {};
  };
  const say = (times: number, delayMs: number, ratio = 0): void => {
    for (let n = 0; n < times; n += 1) sample({ delayMs, memoryRatio: ratio });
  };
  return { load, say };
}

test('a connection above the bound is refused and closed, open ones go on, and a closed one makes room', async () => {
  const { raw, client, calls, data, refused, release } = await crowded({ maxConnections: 2 });
  const second = await client();
  await raw.send(get());
  await second.send(get());
  await settled(() => calls.length === 2);
  const third = await client();
  await third.send(get());
  expect(await answer(third)).toBe('503 overloaded close');
  expect((await third.responses(1))[0]?.field('retry-after')).toMatch(/^\d+$/);
  expect([refused, data.stats().overloadRefusals]).toEqual([['connections'], 1]);
  await third.closed;
  release();
  for (const one of [raw, second]) expect(await answer(one)).toBe('200 keep-alive');
  raw.socket.destroy();
  await settled(() => data.stats().connections === 1);
  const fourth = await client();
  await fourth.send(get());
  expect(await answer(fourth)).toBe('200 keep-alive');
});

test('heads count as bytes, and their bytes come back', async () => {
  const bounds = { maxHeldBytes: 20_000, maxBodyBytes: 100 };
  const { raw, client, calls, data, refused, release } = await crowded(bounds);
  const big = get(`X-Big: ${'x'.repeat(9_000)}`);
  await raw.send(big);
  await settled(() => calls.length === 1);
  // One owner may hold half of it: the second head of the same one is too much.
  const second = await client();
  await second.send(big);
  expect(await answer(second)).toMatch(/^503 overloaded/);
  expect(refused).toEqual(['bytes']);
  release();
  await raw.responses(1);
  await settled(() => held(data) === 0);
});

describe('load', () => {
  test('refuses new calls while it stands, ends by itself, and touches no call that was let in', async () => {
    const { load, say } = stated();
    const { raw, client, calls, data, refused, shedding, release } = await crowded({}, load);
    await raw.send(get());
    await settled(() => calls.length === 1);
    say(6, 500);
    const late = await client();
    await late.send(get());
    expect(await answer(late)).toMatch(/^503 overloaded/);
    expect((await late.responses(1))[0]?.field('retry-after')).toBe('1');
    expect([refused, data.stats().overloadRefusals, calls.length]).toEqual([['event_loop'], 1, 1]);
    release();
    expect(await answer(raw)).toBe('200 keep-alive');
    say(25, 0);
    expect(shedding).toEqual(['event_loop', null]);
    await raw.send(get());
    expect((await raw.responses(2))[1]?.status).toBe(200);
  });

  test('lets unfinished heads hold no more than at other times, and answers the client that has been here longest', async () => {
    const { load, say } = stated();
    const bounds = { maxHeldBytes: 20_000, maxBodyBytes: 100 };
    const { raw, client, data } = await crowded(bounds, load);
    say(6, 0, 1);
    for (let n = 0; n < 4; n += 1)
      await (await client()).send(`GET / HTTP/1.1\r\nX: ${'x'.repeat(9_000)}\r\n`);
    await settled(() => held(data) > 36_000);
    await raw.send(get());
    expect(await answer(raw)).toMatch(/^503 overloaded/);
    await settled(() => held(data) <= 20_000);
  });

  test('of this process is seen: an event loop that is kept busy, and a heap that is in use', async () => {
    const { data, shedding } = await crowded({ maxEventLoopDelayMs: 10 }, watchProcess(systemClock));
    let isBusy = true;
    const spin = (): void => {
      const end = performance.now() + 40;
      while (performance.now() < end);
      if (isBusy) setImmediate(spin);
    };
    closers.push(() => (isBusy = false));
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

  test('leaves the admin port and readiness as they are, and metrics name the bound', async () => {
    const { load, say } = stated();
    const upstreams = '  api: { origins: ["http://127.0.0.1:9"], allowPrivateAddresses: true }';
    const gateway = await startGateway({ upstreams, load });
    closers.push(() => gateway.close());
    say(40, 0, 0.95);
    const response = await fetch(`${gateway.url}/activity`);
    expect([response.status, response.headers.get('sluice-error')]).toEqual([503, 'overloaded']);
    expect((await fetch(`${gateway.adminUrl}/readyz`)).status).toBe(200);
    const page = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
    expect(page).toContain('sluice_overload_total{bound="memory"} 1');
    expect(page).toContain('sluice_shed_total{workspace="none",upstream="none",reason="overloaded"} 1');
    expect(page).toContain('sluice_shedding_ratio 1');
    expect(page).toContain('sluice_memory_used_ratio 0.95');
    expect(gateway.logs.join('')).toContain('"bound":"memory"');
  });
});

const late = (delayMs: number): LoadSample => ({ delayMs, memoryRatio: 0.1 });
const full = (memoryRatio: number): LoadSample => ({ delayMs: 0, memoryRatio });
const times = <T>(n: number, value: T): T[] => Array.from({ length: n }, () => value);

test.each([
  ['one pause, however long', [late(20_000), ...times(20, late(0))], []],
  ['four late samples', [...times(4, late(150)), late(99), ...times(4, late(150))], []],
  ['a delay of five samples', times(5, late(150)), ['event_loop']],
  ['a full memory', times(5, full(0.9)), ['memory']],
  [
    'a delay that falls just below the bound',
    [...times(5, late(150)), ...times(9, late(90))],
    ['event_loop'],
  ],
  ['a delay that ends', [...times(5, late(150)), late(0)], ['event_loop', null]],
])('new calls are refused after %s as after %j: %j', (_, samples, expected) => {
  const shedding: unknown[] = [];
  new Overload({
    settings: { maxEventLoopDelayMs: 100, maxMemoryRatio: 0.8 },
    load(onSample) {
      samples.forEach(onSample);
      return () => {};
    },
    onOverload: () => {},
    onShedding: (cause) => shedding.push(cause),
  });
  expect(shedding).toEqual(expected);
});
