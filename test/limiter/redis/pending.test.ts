/** Settlements that were made while Redis was unavailable are sent when it is back. */
import { afterEach, expect, test } from '@jest/globals';
import { kill } from 'node:process';
import { systemClock } from '../../../src/clock.ts';
import { startRedis } from '../../support/redis.ts';
import { admission } from '../../support/admission.ts';
import { startReplica } from '../../support/redis-replica.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

const pause = (): Promise<void> => new Promise((resolve) => void systemClock.after(20, resolve));

test('a capped lane is free as soon as Redis is back when its call ended while Redis was unavailable', async () => {
  const server = await startRedis();
  closers.push(() => server.stop());
  const replica = await startReplica(`url: "${server.url}", whenDown: deny`, { leaseMs: 600_000 });
  closers.push(() => replica.close());
  const capped = { maxInFlight: 1 };
  const first = await replica.limiter.admit(admission('first', capped));
  if (first.kind !== 'granted') throw new Error(first.kind);

  kill(server.pid, 'SIGSTOP');
  const until = async (mode: string): Promise<void> => {
    while (replica.noted.findLast((line) => line.startsWith('mode')) !== `mode ${mode}`) {
      await pause();
    }
  };
  await until('deny');
  await replica.limiter.settle(first.grant, { kind: 'succeeded', spent: null }, null);
  kill(server.pid, 'SIGCONT');
  await until('redis');
  // The time limit of the test is far shorter than the lease.
  let second = await replica.limiter.admit(admission('second', capped));
  // The log is joined after Redis has come back.
  while (second.kind === 'refused') {
    await pause();
    second = await replica.limiter.admit(admission('second', capped));
  }
  const grant = second.kind === 'granted' ? second.grant : await replica.granted('second');
  expect(grant.ticket).toBe('second');
});
