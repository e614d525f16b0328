import { describe, expect, test } from '@jest/globals';
import { ScanSchedule } from '../../src/admission/scan-schedule.ts';
import { ceilingKey } from '../../src/ids.ts';
import { FakeClock } from '../support/fake-clock.ts';

const ceiling = ceilingKey('w');

/** A schedule, and the times of its scans. Milliseconds. */
function world() {
  const clock = new FakeClock();
  const scans: number[] = [];
  const schedule = new ScanSchedule(clock);
  schedule.scan = () => void scans.push(clock.monotonic());
  const forecastsAt = (...times: readonly number[]): void => {
    for (const at of times) clock.outside(at, () => schedule.onForecast(ceiling));
  };
  return { clock, scans, schedule, forecastsAt };
}

describe('the scans of those who wait for slots of a ceiling', () => {
  test('follow arriving calls, at most once a second', async () => {
    const { clock, scans, forecastsAt } = world();
    forecastsAt(...Array.from({ length: 30 }, (_, n) => n * 125));
    await clock.run(3_625);
    expect(scans).toEqual([0, 1_000, 2_000, 3_000]);
  });

  test('become rare after the last arriving call', async () => {
    const { clock, scans, forecastsAt } = world();
    forecastsAt(0);
    await clock.run(59_000);
    expect(scans).toEqual([0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]);
  });

  test('start over with the next arriving call', async () => {
    const { clock, scans, forecastsAt } = world();
    forecastsAt(0, 20_500);
    await clock.run(23_000);
    expect(scans).toEqual([0, 1_000, 2_000, 4_000, 8_000, 16_000, 20_500, 22_000]);
  });

  test('end when nobody waits, and with them the timer', async () => {
    const { clock, scans, schedule, forecastsAt } = world();
    forecastsAt(0);
    await clock.run(1_500);
    schedule.forget(ceiling);
    expect(clock.timers).toBe(0);
    await clock.run(10_000);
    expect(scans).toEqual([0, 1_000]);
  });
});
