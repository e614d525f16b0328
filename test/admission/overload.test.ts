/** Twice the load of a workspace's ceiling: who can be sent is sent, and who cannot is told so at once. */
import { describe, expect, test } from '@jest/globals';
import { overload, type Load } from './overload.ts';

/** 240 calls a minute for 150 s where 120 may leave: three windows begin before the last call has waited. */
const twice: Load = { replicas: 0, perMinute: 120, calls: 600, everyMs: 250, maxWaitMs: 20_000 };
const most = 360;

describe.each([
  { name: 'embedded', replicas: 0 },
  { name: 'one replica on Redis', replicas: 1 },
  { name: 'three replicas on Redis', replicas: 3 },
])('twice the load of the ceiling, $name', ({ replicas }) => {
  const load = { ...twice, replicas };

  test('sends all that can be sent, and tells the others at once', async () => {
    const { sent, late, busiest, ends } = await overload(load);
    expect({ sent, busiest, late }).toEqual({ sent: most, busiest: 120, late: [] });
    expect(ends).toHaveLength(600);
    expect(new Set(ends.map(({ how }) => how))).toEqual(new Set(['sent', 'wait_too_long']));
  });

  test('refuses nobody who would have got through, however the load comes', async () => {
    for (const [perMinute, everyMs, maxWaitMs] of [
      [40, 700, 45_000],
      [300, 120, 20_000],
      [10, 3_000, 40_000],
    ] as const) {
      const calls = Math.min(1_200, Math.floor(150_000 / everyMs));
      const some = { ...load, perMinute, everyMs, maxWaitMs, calls };
      const [told, blind] = [await overload(some), await overload({ ...some, isBlind: true })];
      expect(told.sent).toBeGreaterThanOrEqual(blind.sent);
      expect(blind.late.length).toBeGreaterThan(0);
      expect(told.late.length).toBeLessThanOrEqual(2);
    }
  });

  test('lets lanes under one ceiling take turns', async () => {
    const lane = (n: number): string => `l${Math.floor(n / Math.max(1, replicas)) % 2}`;
    const { sent, late, ends } = await overload({ ...load, lane });
    expect(sent).toBe(most);
    // The first of a lane learns from the ceiling itself that there is no place.
    expect(late.length).toBeLessThanOrEqual(10);
    const ofFirst = ends.filter(({ n, how }) => how === 'sent' && lane(n) === 'l0').length;
    expect(Math.abs(ofFirst - most / 2)).toBeLessThanOrEqual(20);
  });

  test('tells those at once who are overtaken by more urgent calls, where they wait themselves', async () => {
    const { sent, late } = await overload({ ...load, urgency: (n) => (n % 5 === 0 ? 1 : 3) });
    expect(sent).toBe(most);
    const waitedOut = late.filter(({ how }) => how === 'wait_expired');
    expect(waitedOut.length).toBeLessThanOrEqual(replicas === 3 ? 30 : 5);
  });
});

test('over Redis a call costs no more commands than its way through the line has steps', async () => {
  const { commands, sent } = await overload({ ...twice, replicas: 3 });
  const of = (name: string): number => commands.get(name) ?? commands.get(`sluice${name}V1`) ?? 0;
  expect([of('admit'), of('Consume'), of('settle')]).toEqual([600, sent, sent]);
  const events = ['admit', 'settle', 'charge', 'tick', 'cancel'].reduce((sum, kind) => sum + of(kind), 0);
  expect(of('Apply')).toBeLessThanOrEqual(events);
  // The first 120 find a place as they come; each of the others asks at most once when one will be free.
  expect(of('Places')).toBeLessThanOrEqual(480);
  expect(of('forecast')).toBe(0);
});
