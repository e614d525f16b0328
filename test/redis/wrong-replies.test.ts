import { expect, test } from '@jest/globals';
import { WrongReplies } from '../../src/redis/troubles.ts';
import { manualClock } from '../support/manual-clock.ts';

test('wrong replies of Redis are logged once per command and interval, with the number of further ones', () => {
  const clock = manualClock();
  const lines: object[] = [];
  const wrong = new WrongReplies(clock, { bug: (_message, _cause, fields = {}) => void lines.push(fields) });
  for (let n = 0; n < 10; n += 1) {
    wrong.report('append', new Error('WRONGTYPE'));
    wrong.report('consume', new Error('WRONGTYPE'));
  }
  expect(lines).toEqual([
    { command: 'append', more: 0 },
    { command: 'consume', more: 0 },
  ]);
  clock.advance(30_000);
  wrong.report('append', new Error('WRONGTYPE'));
  expect(lines.slice(2)).toEqual([{ command: 'append', more: 9 }]);
});
