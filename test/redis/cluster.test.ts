/** What the driver knows of a Cluster: which primaries there are, and whether each of them answers. */
import { afterAll, afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { connectRedis } from '../../src/redis/connection.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

/** The driver leaves the timer of its last refresh of the slots running. */
const slotsTimerMs = 2_000;
afterAll(() => later(slotsTimerMs));

/** A node that has these slots. */
async function startNode(from: number, to: number) {
  const args = ['--cluster-enabled', 'yes', '--cluster-require-full-coverage', 'no'];
  const server = await startRedis({ isClusterNode: true, args });
  closers.push(() => server.stop());
  const operator = new Redis(server.port, '127.0.0.1', { retryStrategy: () => null });
  operator.on('error', () => {});
  closers.push(() => operator.disconnect());
  await operator.call('CLUSTER', 'ADDSLOTSRANGE', from, to);
  return { ...server, operator };
}

test('a Redis Cluster counts as reached while all its primaries answer, and a primary that is gone stays known', async () => {
  const first = await startNode(0, 8_000);
  const second = await startNode(8_001, 16_383);
  await first.operator.call('CLUSTER', 'MEET', '127.0.0.1', second.port);
  const all = [first.port, second.port].map((port) => `127.0.0.1:${port}`).toSorted();
  const connection = connectRedis(
    plainRedis({
      mode: 'cluster',
      nodes: [{ host: '127.0.0.1', port: first.port }],
      commandTimeoutMs: 2_000,
    }),
    { clock: systemClock, random: systemRandom },
    () => {},
  );
  closers.push(() => connection.close());
  // The nodes learn of each other first, then the connection learns of them.
  await until(() => connection.primaries() === all.join(' '));
  await until(() => connection.reachAll().then(yes, no));

  await second.stop();
  await until(() => connection.reachAll().then(no, yes));
  await until(() => connection.isReady());
  expect(connection.primaries()).toBe(all.join(' '));
  await expect(connection.reachAll()).rejects.toThrow(/closed/i);
});

const yes = (): boolean => true;
const no = (): boolean => false;

/** Resolves when it holds; the time limit of the test ends what never does. */
function later(ms: number): Promise<void> {
  return new Promise((resolve) => {
    systemClock.after(ms, resolve);
  });
}
