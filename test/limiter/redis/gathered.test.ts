/** Commands for one key that come while another is under way are gathered into the next one. */
import { expect, test } from '@jest/globals';
import { setImmediate } from 'node:timers/promises';
import { Gathered } from '../../../src/limiter/redis/ceilings.ts';

/** A store that replies when the test says so. */
function store(max = 3) {
  const sent: { readonly asked: string; readonly respond: (fails?: boolean) => void }[] = [];
  const gathered = new Gathered<number, number>(
    (key, asked) =>
      new Promise((resolve, reject) => {
        const respond = (fails = false): void =>
          fails ? reject(new Error('unavailable')) : resolve(asked.map((one) => one * 10));
        sent.push({ asked: `${key} ${asked.join(' ')}`, respond });
      }),
    max,
  );
  return { gathered, sent };
}

test('a gathered command is sent at once when it is the first, and the next ones together, in order, up to the maximum', async () => {
  const { gathered, sent } = store();
  const asked = [1, 2, 3, 4, 5].map((one) => gathered.ask('a', one));
  expect(sent.map((each) => each.asked)).toEqual(['a 1']);
  sent[0]?.respond();
  expect(await asked[0]).toBe(10);
  await setImmediate();
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'a 2 3 4']);
  sent[1]?.respond();
  await setImmediate();
  sent[2]?.respond();
  expect(await Promise.all(asked)).toEqual([10, 20, 30, 40, 50]);
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'a 2 3 4', 'a 5']);
});

test('a gathered command does not wait for other keys, and is sent at once when its key is idle', async () => {
  const { gathered, sent } = store();
  const [a, b] = [gathered.ask('a', 1), gathered.ask('b', 2)];
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'b 2']);
  for (const { respond } of sent) respond();
  expect(await Promise.all([a, b])).toEqual([10, 20]);
  await setImmediate();
  void gathered.ask('a', 3);
  expect(sent.at(-1)?.asked).toBe('a 3');
});

test('a gathered command fails together with the others of its batch, and other batches do not fail with it', async () => {
  const { gathered, sent } = store();
  const asked = [1, 2, 3].map((one) => gathered.ask('a', one).catch(String));
  sent[0]?.respond();
  await setImmediate();
  const later = gathered.ask('a', 4);
  sent[1]?.respond(true);
  await setImmediate();
  sent[2]?.respond();
  expect(await Promise.all(asked)).toEqual([10, 'Error: unavailable', 'Error: unavailable']);
  expect(await later).toBe(40);
});
