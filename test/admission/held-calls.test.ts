import { stdout } from 'node:process';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from '@jest/globals';
import { createDesk, type Desk } from '../../src/admission/admit.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createMemoryCeilings } from '../../src/limiter/memory-ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/memory-limiter.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { admission } from '../support/redis-replica.ts';

const held = 5_000;

/** Collects everything that can be collected, then counts what is left. */
function usedBytes(): number {
  setFlagsFromString('--expose-gc');
  const collect: unknown = runInNewContext('gc');
  if (typeof collect !== 'function') throw new Error('no collector to call');
  collect();
  return process.memoryUsage().heapUsed;
}

test('a held call costs admission a few kilobytes, and nothing when it has left', async () => {
  const clock = new FakeClock();
  const desk: Desk = createDesk({
    clock,
    limiter: () => limiter,
    ceilings: createMemoryCeilings(clock),
    onFailure: (failure) => {
      throw failure;
    },
  });
  const limiter: Limiter = createMemoryLimiter(clock, desk.listener);
  const leaving = new AbortController();
  const hold = async (at: number, clientGone: AbortSignal): Promise<void> => {
    const ticket = await desk.enter({
      admission: admission(`t${at}`, { maxInFlight: 1, maxQueued: 10_000 }),
      ceiling: { key: 'w', perMinute: 100_000, perDay: null },
      upstream: 'u',
      maxWaitMs: 600_000,
      clientGone,
      stillValid: () => true,
    });
    await ticket.granted();
  };
  await hold(0, new AbortController().signal);
  const empty = usedBytes();
  const ends: unknown[] = [];
  for (let at = 1; at <= held; at += 1) {
    const own = new AbortController();
    leaving.signal.addEventListener('abort', () => own.abort());
    void hold(at, own.signal).catch((failure: unknown) => ends.push(failure));
  }
  await setImmediate();
  expect(desk.waitingUnder('w')).toBe(held);
  const perCall = (usedBytes() - empty) / held;
  stdout.write(`${Math.round(perCall)} bytes per held call\n`);
  expect(perCall).toBeLessThan(8_000);
  leaving.abort();
  await setImmediate();
  expect(desk.waitingUnder('w')).toBe(0);
  expect(ends).toHaveLength(held);
  expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
  await limiter.close();
});
