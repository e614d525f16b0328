/** Background calls and callers of a workspace under its ceiling. */
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, expect, test } from '@jest/globals';
import type { Ticket } from '../../src/admission/ticket.ts';
import { backgroundLane, callerKey, laneKey } from '../../src/ids.ts';
import { ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import { callOf, embeddedQueue, type CallOptions, type EmbeddedQueue } from '../support/admission-queue.ts';
import { manualClock } from '../support/manual-clock.ts';

let stores: EmbeddedQueue;
afterEach(() => stores.limiter.close());

test('a background call that has waited for a minute takes the place that its ceiling leaves to others', async () => {
  const clock = manualClock();
  stores = embeddedQueue({ clock });
  const { queue } = stores;
  const perMinute = 10;
  for (let n = 1; n < perMinute; n += 1) {
    const ticket = await queue.enter(...callOf(clock, `other ${n}`, { perMinute }));
    (await ticket.whenGranted()).settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
  }
  const lane = backgroundLane(laneKey('l'));
  const [request, signal] = callOf(clock, 'background', {
    perMinute: perMinute - 1,
    lane,
    maxWaitMs: 600_000,
  });
  const left = { perMinute: 1, perDay: 0 };
  const ticket = await queue.enter({ ...request, ceiling: { ...request.ceiling, left } }, signal);
  let sentAt = Infinity;
  const granted = ticket.whenGranted().then((lease) => {
    sentAt = clock.monotonic();
    lease.settle({ kind: 'succeeded', spent: null }, null);
  });
  const enteredAt = clock.monotonic();
  while (sentAt === Infinity) {
    clock.advance(50);
    await turn();
  }
  await granted;
  expect(sentAt - enteredAt).toBeGreaterThanOrEqual(60_000);
  // Before any of the places that others took is free again.
  expect(sentAt - enteredAt).toBeLessThan(ceilingWindowMs);
});

test('a call that names no caller is not refused for a slot that others are expected to take before its turn', async () => {
  const clock = manualClock();
  stores = embeddedQueue({ clock });
  const { queue } = stores;
  const enter = (name: string, options: CallOptions, caller?: string): Promise<Ticket> => {
    const [asked, signal] = callOf(clock, name, { perMinute: 1, ...options });
    const named = caller === undefined ? {} : { caller: callerKey(caller) };
    return queue.enter({ ...asked, admission: { ...asked.admission, ...named } }, signal);
  };
  const first = await (await enter('first', { maxWaitMs: 0 })).whenGranted();
  first.settle({ kind: 'succeeded', spent: null }, null);
  const earlier = await enter('earlier', { maxWaitMs: 200_000 }, 'k1');
  const waiting = earlier.whenGranted();
  await turn();
  // Both callers have the same turn: the one without a name goes first, although its call came later.
  const unnamed = await enter('unnamed', { maxWaitMs: 65_000 });
  const granted = unnamed.whenGranted();
  await turn();
  clock.advance(60_200);
  await granted;
  unnamed.leave();
  earlier.leave();
  await expect(waiting).rejects.toThrow();
});
