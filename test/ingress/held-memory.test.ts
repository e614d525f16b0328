import { afterEach, expect, test } from '@jest/globals';
import { startGatewayHolder, startPlainHolder, type Holder } from '../../bench/holding.ts';

/** What is allocated once, by the first calls, and code as it is compiled, are not a held call's. */
const warmUp = 1_000;
const held = 1_000;

const holders: Holder[] = [];
afterEach(() => Promise.all(holders.splice(0).map(({ end }) => end())));

/** Bytes of the heap that each held request keeps reachable. */
async function heapOf(holder: Holder): Promise<number> {
  holders.push(holder);
  await holder.holdUntil(warmUp);
  const before = await holder.memory();
  await holder.holdUntil(warmUp + held);
  const after = await holder.memory();
  return (after.heapUsed - before.heapUsed) / held;
}

test('a held call keeps less than 1.8 times the heap of a request that plain Express holds', async () => {
  const plain = await heapOf(await startPlainHolder([]));
  const ours = await heapOf(await startGatewayHolder([]));
  expect(plain).toBeGreaterThan(0);
  expect(ours / plain).toBeLessThan(1.8);
});
