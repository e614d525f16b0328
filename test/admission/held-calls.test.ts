import { stdout } from 'node:process';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from '@jest/globals';
import { ceilingKey } from '../../src/ids.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const held = 5_000;

/** Collects everything that can be collected, then counts what is left. */
function usedBytes(): number {
  setFlagsFromString('--expose-gc');
  const collect: unknown = runInNewContext('gc');
  if (typeof collect !== 'function') throw new Error('no collector to call');
  collect();
  return process.memoryUsage().heapUsed;
}

test('a waiting call needs less than 8,000 bytes in admission, and none once it has left', async () => {
  const clock = new FakeClock();
  const { queue, limiter } = embeddedQueue({ clock });
  const leaving = new AbortController();
  const hold = async (at: number, clientGone: AbortSignal): Promise<void> => {
    const options = { maxInFlight: 1, maxQueued: 10_000, perMinute: 100_000, maxWaitMs: 600_000, clientGone };
    const ticket = await queue.enter(...callOf(clock, `t${at}`, options));
    await ticket.whenGranted();
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
  expect(queue.waitingUnder(ceilingKey('w'))).toBe(held);
  const perCall = (usedBytes() - empty) / held;
  stdout.write(`${Math.round(perCall)} bytes per held call\n`);
  expect(perCall).toBeLessThan(8_000);
  leaving.abort();
  await setImmediate();
  expect(queue.waitingUnder(ceilingKey('w'))).toBe(0);
  expect(ends).toHaveLength(held);
  expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 1 }]);
  await limiter.close();
});
