/** Meters of a bucket as a replica shows them: when they are read. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { admission } from '../../support/admission.ts';
import { VirtualRedis, type VirtualReplica } from '../../support/virtual-redis.ts';
import { batchOf } from '../../simulation/replicas/batch-text.ts';

let redis: VirtualRedis;
let one: VirtualReplica;
let ticks: number;

beforeEach(async () => {
  redis = new VirtualRedis();
  const { server } = redis;
  const execute = server.execute.bind(server);
  server.execute = (command, words) => {
    const events = command === 'sluiceApplyV1' ? batchOf(words[4] ?? '').events : [];
    ticks += events.filter(({ kind }) => kind === 'tick').length;
    return execute(command, words);
  };
  ticks = 0;
  one = await redis.replica('one');
});
afterEach(async () => {
  const closing = one.close();
  await redis.pass(1_000);
  await closing;
});

/** A call that is over before the next tick. */
async function shortCall(ticket: string): Promise<void> {
  const asked = one.limiter.admit(admission(ticket, { limit: 100 }));
  await redis.pass(20);
  const reply = await asked;
  if (reply.kind !== 'granted') throw new Error(`not granted: ${reply.kind}`);
  void one.limiter.settle(reply.grant, { kind: 'succeeded', spent: null }, null);
}

// The live page said "No limit known yet" of a bucket whose calls were all under way between two ticks.
test('the meters of a bucket are shown although no call is under way at a tick', async () => {
  await shortCall('first');
  await redis.pass(1_500);
  expect(one.limiter.snapshot()[0]?.meters).toMatchObject([{ meter: 'requests', limit: 100 }]);
});

test('a bucket that nobody uses is read once, not again and again', async () => {
  await shortCall('only');
  await redis.pass(60_000);
  expect(ticks).toBe(1);
});
