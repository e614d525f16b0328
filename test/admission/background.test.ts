/** What the ceiling of a workspace leaves to others, and who may take it. */
import { afterEach, expect, test } from '@jest/globals';
import { backgroundLane, laneKey } from '../../src/ids.ts';
import { ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import { callOf, embeddedQueue, type EmbeddedQueue } from '../support/admission-queue.ts';
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
    await new Promise(setImmediate);
  }
  await granted;
  expect(sentAt - enteredAt).toBeGreaterThanOrEqual(60_000);
  // Before any of the places that others took is free again.
  expect(sentAt - enteredAt).toBeLessThan(ceilingWindowMs);
});
