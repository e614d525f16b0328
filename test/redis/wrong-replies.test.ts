import { expect, test } from '@jest/globals';
import { createWrongReplies } from '../../src/redis/wrong-replies.ts';
import { FakeClock } from '../support/fake-clock.ts';

test('wrong replies of Redis are logged once per command and interval, with the number of further ones', async () => {
  const clock = new FakeClock();
  const lines: string[] = [];
  const bug = (message: string, _cause: unknown, fields: object = {}): void =>
    void lines.push(`${message} ${JSON.stringify(fields)}`);
  const wrong = createWrongReplies(clock, { bug });
  for (let at = 0; at < 1_000; at += 1) {
    wrong.report('apply', new Error('WRONGTYPE'));
    wrong.report('consume', new Error('WRONGTYPE'));
    await clock.run(40 * (at + 1));
  }
  expect(lines).toEqual([
    'Redis answered a command wrongly {"command":"apply"}',
    'Redis answered a command wrongly {"command":"consume"}',
    'Redis went on answering a command wrongly {"command":"apply","count":749}',
    'Redis went on answering a command wrongly {"command":"consume","count":749}',
  ]);
  await clock.run(90_000);
  expect(lines.slice(4)).toEqual([
    'Redis went on answering a command wrongly {"command":"apply","count":250}',
    'Redis went on answering a command wrongly {"command":"consume","count":250}',
  ]);
  wrong.report('apply', new Error('WRONGTYPE'));
  expect(lines).toHaveLength(7);
  wrong.close();
  await clock.run(200_000);
  expect(lines).toHaveLength(7);
});
