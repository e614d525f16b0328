/**
 * Invariant 12: the policy and the Redis scripts are the same state machine. Random histories go through both; every
 * reply, every published message and the whole state after every step must agree to the last bit. One batch of histories
 * goes through the function library, the next one through the script of older servers.
 *
 * `SLUICE_PARITY_HISTORIES` (120) and `SLUICE_PARITY_SEED` (1) ask for more, or for one again.
 */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { loadInto, type Form } from '../support/loaded-scripts.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { historyOf, type Step } from './parity-history.ts';
import { startOf } from './parity-model.ts';
import { plain } from './parity-plain.ts';
import { differences, Messages, prepare, shrink, type Bench } from './parity-run.ts';

const histories = Number(process.env['SLUICE_PARITY_HISTORIES'] ?? 120);
const firstSeed = Number(process.env['SLUICE_PARITY_SEED'] ?? 1);
const perBatch = 20;

let server: RedisServer;
let redis: Redis;
let subscriber: Redis;
let benches: Record<Form, Bench>;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  subscriber = new Redis(server.port, '127.0.0.1');
  const messages = await Messages.on(subscriber);
  benches = {
    library: { redis, messages, loaded: await loadInto(redis, 'library') },
    script: { redis, messages, loaded: await loadInto(redis, 'script') },
  };
});

afterAll(async () => {
  subscriber.disconnect();
  redis.disconnect();
  await server.stop();
});

test(
  `policy and scripts agree in every reply and in state over ${histories} random histories`,
  async () => {
    for (let seed = firstSeed; seed < firstSeed + histories; seed += perBatch) {
      const count = Math.min(perBatch, firstSeed + histories - seed);
      const batch = Array.from({ length: count }, (_, n) => ({ seed: seed + n, steps: historyOf(seed + n) }));
      const bench = benches[((seed - firstSeed) / perBatch) % 2 === 0 ? 'library' : 'script'];
      const results = await differences(
        bench,
        batch.map(({ seed: one, steps }) => prepare(one, steps)),
      );
      const at = results.findIndex((result) => result !== null);
      const failing = batch[at];
      if (failing === undefined) continue;
      const { steps, found } = await shrink(bench, failing.seed, failing.steps);
      const shown = steps.map((step) => JSON.stringify(step)).join('\n');
      const from = `by a clock that begins at ${startOf(failing.seed)} ms`;
      throw new Error(`seed ${failing.seed}, ${from}: ${found}\nshrunk history:\n${shown}`);
    }
    expect(await redis.dbsize()).toBe(0);
  },
  300_000 + histories * 300,
);

test.each(['library', 'script'] as const)(
  'policy and scripts agree while the calls of a dead replica leave a long line, a bounded number at a time: %s',
  async (form) => {
    const common = { afterMs: 10, twice: false, joins: false };
    const setting = {
      meters: [{ meter: 'requests', limit: 1, windowMs: 60_000 }],
      learn: true,
      probe: 0,
    } as const;
    const entering = { kind: 'admit', ...plain, maxWaitMs: 1e8, leaseMs: 15_000, setting } as const;
    const crowds = [1, 0, 2].flatMap((lane, at): Step[] => [
      { ...common, ...entering, replica: 'killed', lane, ticket: 1_000 * at, count: 60 },
      { ...common, ...entering, replica: 'alive', lane, ticket: 1_000 * at + 500, count: 20 },
    ]);
    const tick = { ...common, kind: 'tick', replica: 'alive', renew: 0 } as const;
    const ticks: Step[] = [{ ...tick, afterMs: 4_900 }, { ...tick, afterMs: 200 }, tick, tick, tick, tick];
    const prepared = prepare(1, [...crowds, ...ticks]);
    const [found] = await differences(benches[form], [prepared]);
    expect(found).toBeNull();
    const left = prepared.plan.planned.slice(-ticks.length).map(({ reply }) => reply?.bucket.nextInMs === 0);
    expect(left).toEqual([false, true, true, true, false, false]);
  },
);
