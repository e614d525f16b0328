/** Slots of a shared ceiling that other replicas take while calls of this one wait for them. */
import { describe, expect, test } from '@jest/globals';
import type { Lease } from '../../src/admission/ticket.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import { callOf, embeddedQueue, settingsOf, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { withMethods } from '../support/with-methods.ts';

const options: CallOptions = { perMinute: 2, maxInFlight: 1 };
const isRight = { code: 'wait_expired', details: expect.objectContaining({ heldBy: 'ceiling_minute' }) };

/** One call in flight, which takes the first of two slots, and one that waits behind it for the second. */
async function world() {
  const clock = new FakeClock();
  const forecasts: number[] = [];
  const stored = new CeilingStore(clock);
  const ceilings = withMethods<Ceilings>(stored, {
    forecast(...asked) {
      forecasts.push(clock.monotonic());
      return stored.forecast(...asked);
    },
  });
  const { queue } = embeddedQueue({ clock, ceilings });
  const enter = async (id: string, more: CallOptions = {}): Promise<Lease> => {
    const ticket = await queue.enter(...callOf(clock, id, { ...options, ...more }));
    return ticket.whenGranted();
  };
  const first = await enter('first');
  let ended: unknown = null;
  void enter('second').then(
    (lease) => {
      ended = 'sent';
      lease.settle({ kind: 'succeeded', spent: null }, null);
    },
    (refusal: unknown) => (ended = refusal),
  );
  await clock.run(1);
  expect(ended).toBeNull();
  return {
    clock,
    forecasts,
    first,
    enter,
    /** Another replica takes the slot that the second call waits for. */
    takeElsewhere: () => ceilings.take(callOf(clock, 'other', options)[0].ceiling),
    /** A reload of the workspace's requests per minute. */
    raiseTo: (perMinute: number): void => queue.reload((call) => settingsOf(call, { perMinute })),
    secondEnded: () => ended,
  };
}

describe('a call whose slot another replica takes is refused although no call arrives', () => {
  test('within two seconds, when the slot is taken at once', async () => {
    const { clock, takeElsewhere, secondEnded } = await world();
    await takeElsewhere();
    await clock.run(2_000);
    expect(secondEnded()).toMatchObject(isRight);
  });

  test('before its wait has doubled, when the slot is taken later', async () => {
    const { clock, takeElsewhere, secondEnded } = await world();
    await clock.run(9_000);
    await takeElsewhere();
    await clock.run(20_000);
    expect(secondEnded()).toMatchObject(isRight);
  });
});

describe('the sweeps over waiting calls', () => {
  test('go by the limits of the latest reload', async () => {
    const { clock, raiseTo, takeElsewhere, secondEnded } = await world();
    raiseTo(5);
    await clock.run(1);
    await takeElsewhere();
    await clock.run(10_000);
    expect(secondEnded()).toBeNull();
  });

  test('become rare when no call arrives, and end with the last waiting call', async () => {
    const { clock, forecasts, first, secondEnded } = await world();
    forecasts.length = 0;
    await clock.run(40_000);
    expect(forecasts.length).toBeGreaterThanOrEqual(4);
    expect(forecasts.length).toBeLessThanOrEqual(6);
    first.settle({ kind: 'succeeded', spent: null }, null);
    await clock.run(45_000);
    expect(secondEnded()).toBe('sent');
    expect(clock.timers).toBe(0);
  });
});

test('a call that its ceiling does not hold is refused because its wait has ended, also when the scan of the ceiling comes first', async () => {
  const clock = new FakeClock();
  const { queue } = embeddedQueue({ clock, ceilings: new CeilingStore(clock) });
  const calls = { perMinute: 40, maxInFlight: 1 };
  const underWay = await (await queue.enter(...callOf(clock, 'first', calls))).whenGranted();
  const waiting = queue.enter(...callOf(clock, 'second', { ...calls, maxWaitMs: 1_500 }));
  const ended = waiting.then(async (ticket) => ticket.whenGranted()).catch((refusal: unknown) => refusal);
  // The scan is due after one second, the end of the wait after one and a half: both come late, one after the other.
  clock.outside(900, () => clock.stall(1_000));
  await clock.run(3_000);
  expect(await ended).toMatchObject({ code: 'wait_expired', details: { heldBy: 'serialized' } });
  underWay.settle({ kind: 'succeeded', spent: null }, null);
});
