import { afterEach, expect, test } from '@jest/globals';
import type { LogEntry } from '../../simulators/log.ts';
import { until } from '../support/until.ts';
import { closeAll, insideRetryAfter, many, nonces, refuseOnce, startWorld, tally } from './world.ts';

afterEach(closeAll);

/** Time between a call's two attempts at the upstream. */
const pauseOf = ([first, second]: readonly LogEntry[]): number =>
  (second?.arrivedT ?? NaN) - (first?.t ?? NaN);

test('a 429 that states a time is waited out, and one that states none by a pause of its own', async () => {
  const soon = new Date(Date.now() + 2_000).toUTCString();
  // One model, and so one bucket, for each spelling, so that all of them wait side by side.
  const spellings: readonly (readonly [fields: Record<string, string>, minMs: number])[] = [
    [{ 'retry-after-ms': '350', 'retry-after': '9' }, 350],
    [{ 'retry-after': '0.4' }, 400],
    [{ 'retry-after': soon }, 0],
    [{ 'retry-after': '-1' }, 450],
  ];
  const models = Object.fromEntries(spellings.map((_, at) => [`m${at}`, { rpm: 500 }]));
  const { chat, model } = await startWorld({ model: { models } });
  for (const [at, [fields]] of spellings.entries()) refuseOnce(model, fields, { match: { model: `m${at}` } });
  const replies = await Promise.all(spellings.map((_, at) => chat(1, { model: `m${at}` })));
  for (const { status, admission } of replies) {
    expect([status, admission]).toEqual([
      200,
      expect.stringMatching(/attempts=2, absorbed=1, held=\(closed;ms=\d+/),
    ]);
  }
  const attempts = spellings.map((_, at) => model.log.filter((entry) => entry.model === `m${at}`));
  expect(attempts[2]?.[1]?.at).toBeGreaterThanOrEqual(Date.parse(soon));
  for (const [at, [, minMs]] of spellings.entries()) {
    expect(attempts[at]?.map(({ status }) => status)).toEqual([429, 200]);
    expect(pauseOf(attempts[at] ?? [])).toBeGreaterThanOrEqual(minMs);
  }
});

test('a closed bucket holds all calls: none is sent before the stated time, then all leave in order', async () => {
  const { chat, model, settled } = await startWorld();
  await chat(0);
  refuseOnce(model, { 'retry-after-ms': '700' });
  const calls = [chat(1)];
  await until(() => model.log.length === 2);
  await settled(1, 0);
  for (let at = 2; at < 12; at += 1) {
    calls.push(chat(at));
    await settled(at, 0);
  }
  expect(model.log).toHaveLength(2);
  expect(tally(await Promise.all(calls))).toEqual({ 200: 11 });
  expect(nonces(model.log.slice(2))).toEqual(many(11, (at) => `${at + 1}`));
  expect(pauseOf(model.log.slice(1))).toBeGreaterThanOrEqual(700);
  expect(insideRetryAfter(model.log)).toEqual([]);
});

test('a 429 that never ends is passed on when the wait of the call is over, and never makes the wait longer', async () => {
  const { chat, model } = await startWorld();
  refuseOnce(model, { 'retry-after-ms': '800' }, { times: 100 });
  const reply = await chat(1, { headers: { prefer: 'wait=1' } });
  expect(reply).toMatchObject({ status: 429, json: { error: { code: expect.any(String) } } });
  expect(model.log.length).toBeLessThanOrEqual(3);
});
