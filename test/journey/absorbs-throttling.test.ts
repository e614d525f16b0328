import { afterEach, expect, test } from '@jest/globals';
import { until } from '../support/until.ts';
import { closeAll, insideRetryAfter, many, nonces, refuseOnce, startWorld, tally } from './world.ts';

afterEach(closeAll);

test('a closed bucket holds all calls: none is sent before the stated time, then all leave in order, and the refused one says what held it', async () => {
  const { chat, model, settled } = await startWorld();
  await chat(0);
  refuseOnce(model, { 'retry-after-ms': '700', 'retry-after': '9' });
  const calls = [chat(1)];
  await until(() => model.log.length === 2);
  await settled(1, 0);
  for (let at = 2; at < 12; at += 1) {
    calls.push(chat(at));
    await settled(at, 0);
  }
  expect(model.log).toHaveLength(2);
  const replies = await Promise.all(calls);
  expect(tally(replies)).toEqual({ 200: 11 });
  expect(replies[0]?.admission).toMatch(/attempts=2, absorbed=1, held=\(closed;ms=\d+/);
  expect(nonces(model.log.slice(2))).toEqual(many(11, (at) => `${at + 1}`));
  const [refused, again] = model.log.slice(1);
  expect((again?.arrivedT ?? NaN) - (refused?.t ?? NaN)).toBeGreaterThanOrEqual(700);
  expect(insideRetryAfter(model.log)).toEqual([]);
});
