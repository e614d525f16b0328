import { expect, test } from '@jest/globals';
import { Overload, type LoadSample } from '../../src/ingress/overload.ts';

const late = (delayMs: number): LoadSample => ({ delayMs, memoryRatio: 0.1 });
const full = (memoryRatio: number): LoadSample => ({ delayMs: 0, memoryRatio });
const times = <T>(n: number, value: T): T[] => Array.from({ length: n }, () => value);

test.each([
  ['one pause, however long', [late(20_000), ...times(20, late(0))], []],
  ['four late samples', [...times(4, late(150)), late(99), ...times(4, late(150))], []],
  ['a delay of five samples', times(5, late(150)), ['event_loop']],
  ['a full memory', times(5, full(0.9)), ['memory']],
  [
    'a delay that falls just below the bound',
    [...times(5, late(150)), ...times(9, late(90))],
    ['event_loop'],
  ],
  ['a delay that ends', [...times(5, late(150)), late(0)], ['event_loop', null]],
])('new calls are refused after %s as after %j: %j', (_, samples, expected) => {
  const shedding: unknown[] = [];
  new Overload({
    settings: { maxEventLoopDelayMs: 100, maxMemoryRatio: 0.8 },
    load(onSample) {
      samples.forEach(onSample);
      return () => {};
    },
    onOverload: () => {},
    onShedding: (cause) => shedding.push(cause),
  });
  expect(shedding).toEqual(expected);
});
