/** Twice the load of a workspace's ceiling: calls that can be sent are sent, and the others are refused at once. */
import { describe, expect, test } from '@jest/globals';
import { overload, type Load } from './overload.ts';

/** 240 calls a minute come for 150 s where 120 may leave: three windows begin before the wait of the last call ends. */
const twice: Load = { replicas: 0, perMinute: 120, calls: 600, everyMs: 250, maxWaitMs: 20_000 };
const maxSent = 360;

describe.each([
  { name: 'embedded', replicas: 0 },
  { name: 'one replica on Redis', replicas: 1 },
  { name: 'three replicas on Redis', replicas: 3 },
])('at twice the load of a ceiling, admission ($name)', ({ replicas }) => {
  const load = { ...twice, replicas };

  test('sends all calls that can be sent, and refuses the others at once', async () => {
    const { sent, late, busiest, ends } = await overload(load);
    expect({ sent, busiest, late }).toEqual({ sent: maxSent, busiest: 120, late: [] });
    expect(ends).toHaveLength(600);
    expect(new Set(ends.map(({ how }) => how))).toEqual(new Set(['sent', 'wait_too_long']));
  });

  test('refuses no call that could be sent in time, at any rate of arrivals', async () => {
    for (const [perMinute, everyMs, maxWaitMs] of [
      [40, 700, 45_000],
      [300, 120, 20_000],
      [10, 3_000, 40_000],
    ] as const) {
      const calls = Math.min(1_200, Math.floor(150_000 / everyMs));
      const some = { ...load, perMinute, everyMs, maxWaitMs, calls };
      const [checked, blind] = [await overload(some), await overload({ ...some, isBlind: true })];
      expect(checked.sent).toBeGreaterThanOrEqual(blind.sent);
      expect(blind.late.length).toBeGreaterThan(0);
      expect(checked.late.length).toBeLessThanOrEqual(2);
    }
  });

  test('serves two lanes under one ceiling in rotation', async () => {
    const lane = (n: number): string => `l${Math.floor(n / Math.max(1, replicas)) % 2}`;
    const { sent, late, ends } = await overload({ ...load, lane });
    expect(sent).toBe(maxSent);
    // The first call of a lane learns only from the ceiling that there is no slot.
    expect(late.length).toBeLessThanOrEqual(10);
    const ofFirst = ends.filter(({ n, how }) => how === 'sent' && lane(n) === 'l0').length;
    expect(Math.abs(ofFirst - maxSent / 2)).toBeLessThanOrEqual(20);
  });

  test('refuses calls as soon as more urgent calls of their replica make them too late', async () => {
    const { sent, late } = await overload({ ...load, urgency: (n) => (n % 5 === 0 ? 1 : 3) });
    expect(sent).toBe(maxSent);
    const waitedOut = late.filter(({ waitedMs }) => waitedMs >= load.maxWaitMs);
    expect(waitedOut.length).toBeLessThanOrEqual(replicas === 3 ? 30 : 5);
  });
});

test('admission over Redis uses no more commands for a call than the call takes steps', async () => {
  const { commands, sent } = await overload({ ...twice, replicas: 3 });
  const of = (name: string): number => commands.get(name) ?? 0;
  expect([of('consume'), of('settle')]).toEqual([sent, sent]);
  // A call that its replica's own copy refuses is not entered.
  expect(of('admit')).toBeLessThanOrEqual(600);
  const events = ['admit', 'settle', 'slot_taken', 'tick', 'cancel', 'wake', 'here', 'learn'].reduce(
    (sum, kind) => sum + of(kind),
    0,
  );
  expect(of('append')).toBeLessThanOrEqual(events);
  // The first 120 calls take a slot as they come; each of the others asks at most once when a slot will be free.
  expect(of('slots')).toBeLessThanOrEqual(480);
});
