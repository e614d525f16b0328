/** Many waiting calls, on virtual time: counted is how often a waiting call is checked, because a measured time would depend on the machine. */
import { describe, expect, jest, test } from '@jest/globals';
import type { AdmissionRequest } from '../../src/admission/ticket.ts';
import { SharedLimiter } from '../../src/limiter/over-log/limiter.ts';
import { dropped, names, throttled, world } from './world.ts';

test('a slot that is back reaches the only lane that can use it, behind dozens that have calls in flight', async () => {
  const { enter, pass, settle, story } = world({ defaults: { perMinute: 102, maxWaitMs: 75_000 } });
  enter('unsent', { bucket: 'one' });
  for (const id of names(100)) enter(id, { bucket: id, maxInFlight: 1 });
  await pass(1_000);
  // Served last, it asks last.
  enter('sent', { bucket: 'able' });
  await pass(0);
  for (const id of names(100)) enter(`held ${id}`, { bucket: id, maxInFlight: 1 });
  enter('waits', { bucket: 'able' });
  await pass(1_000);
  expect(story).toHaveLength(102);
  settle('unsent', dropped);
  await pass(100);
  expect(story.slice(102)).toEqual(['waits']);
});

// Guards a bug: each of the lanes that were woken looked at all others.
test('a slot that is back costs each of very many lanes under its ceiling a few looks at others', async () => {
  const { enter, pass, settle } = world({ defaults: { perMinute: 100, maxWaitMs: 600_000 } });
  enter('unsent', { bucket: 'one' });
  for (const id of names(500)) enter(id, { bucket: id });
  await pass(1_000);
  const looks = jest.spyOn(SharedLimiter.prototype, 'laneCeiling');
  settle('unsent', dropped);
  await pass(500);
  expect(looks.mock.calls.length).toBeLessThan(20_000);
});

describe('very many waiting calls', () => {
  const calls = 2_000;
  const few = 200;

  function counted() {
    let checks = 0;
    const watched = (made: AdmissionRequest): AdmissionRequest => {
      const get = () => ((checks += 1), made.admission);
      return Object.defineProperty({ ...made }, 'admission', { get });
    };
    const all = world({ watched, defaults: { maxQueued: 10_000, maxInFlight: 1, maxWaitMs: 30_000 } });
    /** How often calls are checked because of `doing`, until nothing more happens without time passing. */
    const checksDuring = async (doing: () => void): Promise<number> => {
      const before = checks;
      doing();
      await all.pass(50);
      return checks - before;
    };
    /** The calls that ended so. */
    const ended = (how: string): string[] => all.story.filter((end) => end.endsWith(` ${how}`));
    return { ...all, ended, checksDuring };
  }

  test('are not checked once for each of many attempts that end', async () => {
    const { enter, settle, checksDuring, pass } = counted();
    for (let n = 0; n < few; n += 1) enter(`own${n}`, { lane: `own${n}` });
    for (const id of names(calls)) enter(id);
    // The look that follows arriving calls is over.
    await pass(500);
    const checks = await checksDuring(() => {
      for (let n = 0; n < few; n += 1) settle(`own${n}`, throttled({ sleepMs: 5_000 }));
    });
    // All calls except the one that was sent.
    expect(checks).toBeGreaterThanOrEqual(calls - 1);
    expect(checks).toBeLessThan(2 * calls + 20 * few);
  });

  test('in buckets of their own under one ceiling are refused at once where it has no slot in time, and checked a few times each', async () => {
    const { enter, story, ended, pass, checksDuring } = counted();
    const checks = await checksDuring(() => {
      for (const id of names(calls / 2)) enter(id, { bucket: id, perMinute: 60, maxWaitMs: 119_000 });
    });
    expect(checks).toBeLessThan(50 * calls);
    await pass(1_000);
    const refused = ended('wait_too_long');
    expect([refused.length, story.length - refused.length]).toEqual([calls / 2 - 120, 60]);
  });

  test('are refused in time although they have just been looked at', async () => {
    const { enter, settle, ended, pass } = counted();
    for (const id of ['a', 'b']) enter(id, { lane: id });
    for (const [n, id] of names(calls).entries())
      enter(id, { lane: 'b', maxWaitMs: n < 10 ? 3_000 : 30_000 });
    await pass(1);
    for (const id of ['a', 'b']) settle(id, throttled({ sleepMs: 5_000 }));
    await pass(100);
    expect(ended('wait_too_long')).toEqual(names(10).map((id) => `${id} wait_too_long`));
  });
});
