import { describe, expect, test } from '@jest/globals';
import {
  loadAfter,
  checkEveryMs,
  noLoad,
  relievedInMs,
  type Load,
  type LoadSample,
} from '../../src/ingress/overload.ts';

const bounds = { maxEventLoopDelayMs: 100, maxMemoryRatio: 0.8 };
const late = (delayMs: number): LoadSample => ({ delayMs, memoryRatio: 0.1 });
const full = (memoryRatio: number): LoadSample => ({ delayMs: 0, memoryRatio });

const after = (samples: readonly LoadSample[], load: Load = noLoad): Load =>
  samples.reduce((known, sample) => loadAfter(known, sample, bounds), load);
const times = <T>(n: number, value: T): T[] => Array.from({ length: n }, () => value);

describe('shedding by load', () => {
  test('does not begin for one pause, however long, nor for four late samples', () => {
    expect(after([late(20_000), ...times(20, late(0))]).share).toBe(0);
    expect(after([...times(4, late(150)), late(99), ...times(4, late(150))]).share).toBe(0);
  });

  test('begins when the delay stands for five samples, and refuses more the longer it stands', () => {
    const shares = [4, 5, 6, 10].map((n) => after(times(n, late(150))).share);
    expect(shares[0]).toBe(0);
    expect(shares[1]).toBeGreaterThan(0);
    expect(shares[2]).toBeGreaterThan(shares[1] ?? 1);
    expect(shares[3]).toBeGreaterThan(shares[2] ?? 1);
    expect(after(times(40, late(150)))).toMatchObject({ share: 1, cause: 'event_loop' });
  });

  test('names the memory where that is fuller, and says the load that stands', () => {
    const load = after([...times(5, full(0.9)), full(0.85)]);
    expect(load.cause).toBe('memory');
    expect(load.sustained).toEqual({ delayMs: 0, memoryRatio: 0.85 });
  });

  test('stays as it is just below the bound, and ends by itself well below it, when it said', () => {
    const loaded = after(times(40, late(150)));
    expect(after(times(9, late(90)), loaded).share).toBe(loaded.share);
    const steps = relievedInMs(loaded) / checkEveryMs;
    const relieved = after(times(steps, late(0)), loaded);
    expect(relieved).toMatchObject({ cause: null });
    expect(relieved.share).toBeCloseTo(0);
    expect(after(times(steps - 5, late(0)), loaded).share).toBeGreaterThan(0);
  });
});
