/** The end of a replica's life: a driven clock, real sockets. */
import { describe, expect, test } from '@jest/globals';
import { PassThrough } from 'node:stream';
import { systemClock } from '../../src/clock.ts';
import type { Clock } from '../../src/clock.ts';
import { later, outcomeOf, settled, startDataServer } from './data-server-fixture.ts';

const get = (n: number): string => `GET /proxy?${n} HTTP/1.1\r\nHost: a\r\n\r\n`;

/** Time stands still until the test moves it. */
function drivenClock(): { clock: Clock; advance: (ms: number) => Promise<void> } {
  let now = 0;
  const timers = new Set<{ at: number; run: () => void }>();
  const nextIteration = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  return {
    clock: {
      now: () => now,
      monotonic: () => now,
      after: (ms, run) => {
        const timer = { at: now + Math.max(0, Math.ceil(ms)), run };
        timers.add(timer);
        return () => timers.delete(timer);
      },
    },
    advance: async (ms) => {
      const end = now + ms;
      for (;;) {
        const next = [...timers].filter(({ at }) => at <= end).toSorted((a, b) => a.at - b.at)[0];
        if (next === undefined) break;
        now = next.at;
        timers.delete(next);
        next.run();
        // Sockets move between the ticks of this clock.
        for (let iterations = 0; iterations < 5; iterations += 1) await nextIteration();
      }
      now = end;
    },
  };
}

describe('a drain', () => {
  test('keeps accepting for its delay, and announces the end in every response', async () => {
    const { clock, advance } = drivenClock();
    const { client, data } = await startDataServer(undefined, { clock });
    const old = await client();
    await old.send(get(0));
    expect((await old.responses(1))[0]?.field('connection')).toBe('keep-alive');
    const drained = data.drain({ delayMs: 5_000, limitMs: 25_000 });
    await old.send(get(1));
    expect((await old.responses(2))[1]?.field('connection')).toBe('close');
    await old.closed;
    await advance(4_999);
    const fresh = await client();
    await fresh.send(get(2));
    expect((await fresh.responses(1))[0]).toMatchObject({ status: 200 });
    await fresh.closed;
    await advance(1);
    expect(await drained).toEqual({ cut: 0 });
    await expect(client()).rejects.toThrow('ECONNREFUSED');
  });

  test('lets waiting calls and streams end, and ends then', async () => {
    const { clock, advance } = drivenClock();
    const hold = later<void>();
    const body = new PassThrough();
    const { client, data, calls } = await startDataServer(
      async (call) => {
        if (call.rawUrl.endsWith('1')) return outcomeOf({ body });
        await hold.promise;
        return outcomeOf();
      },
      { clock },
    );
    const [waiting, streaming, idle] = await Promise.all([client(), client(), client()]);
    await waiting.send(get(0));
    await streaming.send(get(1));
    await idle.send(get(2));
    await settled(() => calls.length === 3);
    const drained = data.drain({ delayMs: 0, limitMs: 25_000 });
    await advance(10_000);
    expect(data.stats().connections).toBe(3);
    hold.resolve();
    body.end('last');
    expect((await waiting.responses(1))[0]?.field('connection')).toBe('close');
    // Its head was sent before the drain: the connection ends all the same.
    expect((await streaming.responses(1))[0]?.body.toString()).toBe('last');
    await idle.responses(1);
    await settled(() => data.stats().openCalls === 0);
    await advance(200);
    expect(await drained).toEqual({ cut: 0 });
    expect(data.stats().connections).toBe(0);
  });

  test('does not end a connection before the pipelined calls on it have ended', async () => {
    const { clock, advance } = drivenClock();
    const holds = [later<void>(), later<void>()];
    const { client, data, calls } = await startDataServer(
      async (call) => {
        await holds[Number(call.rawUrl.at(-1))]?.promise;
        return outcomeOf();
      },
      { clock },
    );
    const raw = await client();
    await raw.send(get(0) + get(1));
    await settled(() => calls.length === 2);
    const drained = data.drain({ delayMs: 0, limitMs: 25_000 });
    holds[0]?.resolve();
    expect((await raw.responses(1))[0]?.field('connection')).toBe('keep-alive');
    holds[1]?.resolve();
    expect((await raw.responses(2))[1]?.field('connection')).toBe('close');
    await raw.closed;
    await advance(200);
    expect(await drained).toEqual({ cut: 0 });
  });

  test('closes connections without any request', async () => {
    const { clock, advance } = drivenClock();
    const { client, data } = await startDataServer(undefined, { clock });
    const silent = await client();
    const half = await client();
    await half.send('GET /proxy HTT');
    await settled(() => data.stats().connections === 2);
    const drained = data.drain({ delayMs: 0, limitMs: 25_000 });
    await advance(2_000);
    expect(await drained).toEqual({ cut: 0 });
    await silent.closed;
    await half.closed;
  });

  test('cuts what is left at its limit, and reports how much', async () => {
    const { clock, advance } = drivenClock();
    const { client, data, calls } = await startDataServer(
      (call) =>
        new Promise((_resolve, reject) => {
          call.clientGone.addEventListener('abort', () => reject(call.clientGone.reason as Error));
        }),
      { clock },
    );
    const raw = await client();
    await raw.send(get(0));
    await settled(() => calls.length === 1);
    const drained = data.drain({ delayMs: 5_000, limitMs: 25_000 });
    await advance(24_900);
    expect(data.stats().openCalls).toBe(1);
    await advance(100);
    expect(await drained).toEqual({ cut: 1 });
    expect((await raw.closed).bytes).toHaveLength(0);
  });

  test('ends at once when its signal aborts', async () => {
    const stop = new AbortController();
    const { data } = await startDataServer();
    const started = systemClock.monotonic();
    const drained = data.drain({ delayMs: 60_000, limitMs: 60_000, signal: stop.signal });
    stop.abort();
    await drained;
    expect(systemClock.monotonic() - started).toBeLessThan(30_000);
  });
});
