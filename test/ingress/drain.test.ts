/** The end of a replica's life: a driven clock, real sockets. */
import { setImmediate as turn } from 'node:timers/promises';
import { describe, expect, test } from '@jest/globals';
import { PassThrough } from 'node:stream';
import type { Call, Outcome } from '../../src/call.ts';
import { manualClock } from '../support/manual-clock.ts';
import { outcomeOf, settled, startDataServer } from './data-server-fixture.ts';

const get = (n: number): string => `GET /proxy?${n} HTTP/1.1\r\nHost: a\r\n\r\n`;

/** A server whose time stands still until the test moves it. */
async function start(handle?: (call: Call) => Promise<Outcome>) {
  const clock = manualClock();
  const server = await startDataServer(handle, { clock });
  const advance = async (ms: number): Promise<void> => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(Math.min(left, 100));
      // Sockets move between the ticks of this clock.
      for (let turns = 0; turns < 5; turns += 1) await turn();
    }
  };
  return { ...server, advance };
}

describe('a drain', () => {
  test('keeps accepting for its delay, and announces the end in every response', async () => {
    const { client, data, advance } = await start();
    const old = await client();
    await old.send(get(0));
    expect((await old.responses(1))[0]?.field('connection')).toBe('keep-alive');
    const drained = data.drain(5_000, 25_000);
    await old.send(get(1));
    expect((await old.responses(2))[1]?.field('connection')).toBe('close');
    await old.closed;
    await advance(4_999);
    const fresh = await client();
    await fresh.send(get(2));
    expect((await fresh.responses(1))[0]).toMatchObject({ status: 200 });
    await fresh.closed;
    await advance(1);
    expect(await drained).toBe(0);
    await expect(client()).rejects.toThrow('ECONNREFUSED');
  });

  test('lets waiting calls and streams end, and ends then', async () => {
    const hold = Promise.withResolvers<void>();
    const body = new PassThrough();
    const { client, data, calls, advance } = await start(async ({ rawUrl }) => {
      if (rawUrl.endsWith('1')) return outcomeOf({ body });
      await hold.promise;
      return outcomeOf();
    });
    const [waiting, streaming, idle] = await Promise.all([client(), client(), client()]);
    await waiting.send(get(0));
    await streaming.send(get(1));
    await idle.send(get(2));
    await settled(() => calls.length === 3);
    const drained = data.drain(0, 25_000);
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
    expect(await drained).toBe(0);
    expect(data.stats().connections).toBe(0);
  });

  test('closes connections without any request', async () => {
    const { client, data, advance } = await start();
    const [silent, half] = [await client(), await client()];
    await half.send('GET /proxy HTT');
    await settled(() => data.stats().connections === 2);
    const drained = data.drain(0, 25_000);
    await advance(2_000);
    expect(await drained).toBe(0);
    await Promise.all([silent.closed, half.closed]);
  });

  test('ends at once when its signal aborts', async () => {
    const { data } = await start();
    const stop = new AbortController();
    const drained = data.drain(60_000, 60_000, stop.signal);
    stop.abort();
    expect(await drained).toBe(0);
  });
});
