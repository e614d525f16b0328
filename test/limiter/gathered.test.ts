/** What is asked of one key while a command is under way goes together in the next one. */
import { expect, test } from '@jest/globals';
import { setImmediate } from 'node:timers/promises';
import { Gathered } from '../../src/limiter/redis/gathered.ts';

/** A store that answers when told to. */
function store(max = 3) {
  const sent: { readonly asked: string; readonly answer: (fails?: boolean) => void }[] = [];
  const gathered = new Gathered<number, number>(
    (key, asked) =>
      new Promise((resolve, reject) => {
        const answer = (fails = false): void =>
          fails ? reject(new Error('away')) : resolve(asked.map((one) => one * 10));
        sent.push({ asked: `${key} ${asked.join(' ')}`, answer });
      }),
    max,
  );
  return { gathered, sent };
}

test('the first is sent at once, the others together, in order, at most so many', async () => {
  const { gathered, sent } = store();
  const asked = [1, 2, 3, 4, 5].map((one) => gathered.ask('a', one));
  expect(sent.map((each) => each.asked)).toEqual(['a 1']);
  sent[0]?.answer();
  expect(await asked[0]).toBe(10);
  await setImmediate();
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'a 2 3 4']);
  sent[1]?.answer();
  await setImmediate();
  sent[2]?.answer();
  expect(await Promise.all(asked)).toEqual([10, 20, 30, 40, 50]);
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'a 2 3 4', 'a 5']);
});

test('keys do not wait for each other, and one that was idle is sent at once again', async () => {
  const { gathered, sent } = store();
  const [a, b] = [gathered.ask('a', 1), gathered.ask('b', 2)];
  expect(sent.map((each) => each.asked)).toEqual(['a 1', 'b 2']);
  for (const { answer } of sent) answer();
  expect(await Promise.all([a, b])).toEqual([10, 20]);
  await setImmediate();
  void gathered.ask('a', 3);
  expect(sent.at(-1)?.asked).toBe('a 3');
});

test('a failure is that of all who asked together, and of nobody else', async () => {
  const { gathered, sent } = store();
  const asked = [1, 2, 3].map((one) => gathered.ask('a', one).catch(String));
  sent[0]?.answer();
  await setImmediate();
  const later = gathered.ask('a', 4);
  sent[1]?.answer(true);
  await setImmediate();
  sent[2]?.answer();
  expect(await Promise.all(asked)).toEqual([10, 'Error: away', 'Error: away']);
  expect(await later).toBe(40);
});
