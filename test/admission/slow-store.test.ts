import { expect, test } from '@jest/globals';
import { EmbeddedCeilings } from '../../src/limiter/embedded/ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/embedded/limiter.ts';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { callOf } from '../support/admission-queue.ts';
import { manualClock } from '../support/manual-clock.ts';

/** A queue over a store whose first reply takes this long, as while it is found out that Redis is away. */
function over(slowMs: number) {
  const clock = manualClock();
  const holder: { queue?: AdmissionQueue } = {};
  const store = createMemoryLimiter(clock, {
    onGrant: (grant) => holder.queue?.listener.onGrant(grant),
    onClosed: () => {},
  });
  const limiter: Limiter = {
    ...store,
    async admit(wish) {
      await new Promise<void>((resolve) => void clock.after(slowMs, resolve));
      return store.admit(wish);
    },
  };
  const queue = new AdmissionQueue({
    clock,
    limiter,
    ceilings: new EmbeddedCeilings(clock),
    onFailure: () => {},
  });
  holder.queue = queue;
  return { clock, queue };
}

test('a call that will not wait is sent although its store was slow to say that there is room', async () => {
  const { clock, queue } = over(600);
  const entering = queue.enter(...callOf(clock, 'one', { maxWaitMs: 0 }));
  clock.advance(600);
  const ticket = await entering;
  const lease = await ticket.granted();
  expect(lease.holds()).toBe(true);
  ticket.leave();
});
