/** How the nightly run compares its figures with the committed ones. */
import { describe, expect, test } from '@jest/globals';
import {
  compare,
  figuresIn,
  merged,
  rowsOf,
  type Figure,
  type Measured,
} from '../../scripts/nightly/figures.ts';

const figure = (name: string, value: number, unit: string): Figure => ({ name, value, unit });
const measured = (figures: readonly Figure[], machine = '2 × one'): Measured => ({
  machine,
  node: '24.0.0',
  day: '2026-01-31',
  load: 0.1,
  figures,
});

describe('a figure beside its committed value', () => {
  test.each([
    ['a ratio that is a little worse', '× plain', 1.5, 1.6, true, ''],
    ['a ratio that is much worse', '× plain', 1.5, 1.7, true, 'WORSE by more than 10 %'],
    ['a ratio that is much worse, on another machine', '× plain', 1.5, 1.7, false, 'WORSE by more than 10 %'],
    ['a ratio that is better', '× plain', 1.5, 0.5, true, ''],
    ['an absolute figure that is a little worse', 'µs', 100, 120, true, ''],
    ['an absolute figure that is much worse', 'µs', 100, 130, true, 'WORSE by more than 25 %'],
    ['an absolute figure of another machine', 'µs', 100, 130, false, 'of another machine'],
    ['one that was nothing and still is', 'calls', 0, 0, true, ''],
    ['one that was nothing', 'calls', 0, 1, true, 'WORSE by more than 25 %'],
  ])('%s', (_what, unit, before, now, isSameMachine, remark) => {
    const former = measured([figure('a', before, unit)], isSameMachine ? '2 × one' : '4 × other');
    const [compared] = compare(measured([figure('a', now, unit)]), former);
    expect(compared).toEqual({ name: 'a', unit, before, now, remark });
  });

  test('is missed when it is not measured any more, and new when it was not', () => {
    const compared = compare(
      measured([figure('a', 1, 'µs'), figure('b', 1, 'ms')]),
      measured([figure('b', 1, 'µs')]),
    );
    expect(compared.map(({ name, unit, remark }) => [name, unit, remark])).toEqual([
      ['a', 'µs', 'new'],
      ['b', 'ms', 'new'],
      ['b', 'µs', 'not measured'],
    ]);
  });

  test('is shown with both values and their ratio', () => {
    const before = [figure('a', 0.5, '× plain'), figure('none', 0, 'calls'), figure('gone', 3, 's')];
    const now = [figure('a', 0.123456, '× plain'), figure('none', 12_345, 'calls')];
    expect(rowsOf('cost', compare(measured(now), measured(before)))).toEqual([
      '| cost | a, × plain | 0.5 | 0.123 | 0.25 |  |',
      '| cost | none, calls | 0 | 12345 | – | WORSE by more than 25 % |',
      '| cost | gone, s | 3 | – | – | not measured |',
    ]);
  });
});

test('new figures replace those of their part only, with where they come from', () => {
  const old = measured([figure('a', 1, 's')], '4 × other');
  const fresh = measured([figure('b', 2, 's')]);
  const before = { cost: old, held: old };
  expect(merged(before, { cost: fresh, soak: measured([]) })).toEqual({ cost: fresh, held: old });
  expect(compare(fresh, null).map(({ remark }) => remark)).toEqual(['new']);
});

test('what a part records is read back', () => {
  const figures = [figure('a', 1.5, '× plain'), figure('b', 2, 'µs')];
  expect(figuresIn(figures.map((each) => `${JSON.stringify(each)}\n`).join(''))).toEqual(figures);
  expect(figuresIn('')).toEqual([]);
});
