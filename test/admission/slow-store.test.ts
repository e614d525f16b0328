/** Calls that will not wait (`Prefer: wait=0`), over a Redis that answers every command, only late. Virtual time. */
import { expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { Refusal } from '../../src/errors.ts';
import { callOf } from '../support/admission-queue.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';

/**
 * What becomes of calls that come one after the other and will not wait, over a Redis this far away: refused, or sent, with what is
 * left of their wait then.
 */
async function outcomesOf(calls: readonly string[], roundTripMs: number): Promise<readonly unknown[]> {
  const redis = new VirtualRedis();
  const stores = await redis.replica('one');
  const { limiter, ceilings } = stores;
  redis.toMs = roundTripMs / 2;
  redis.fromMs = roundTripMs / 2;
  const queue = new AdmissionQueue({
    clock: redis.clock,
    limiter,
    ceilings,
    onFailure: (failure) => {
      throw failure;
    },
  });
  const outcomes: unknown[] = [];
  for (const id of calls) {
    const entering = queue.enter(...callOf(redis.clock, id, { maxWaitMs: 0, perMinute: 1 }));
    const ended = entering
      .then(async (ticket) => {
        await ticket.whenGranted();
        return { sentWithMs: ticket.remainingMs() };
      })
      .catch((failure: unknown) => failure);
    await redis.pass(10 * roundTripMs + 200);
    outcomes.push(await ended);
  }
  const closing = stores.close();
  await redis.pass(10_000);
  await closing;
  return outcomes;
}

// Without a reply for 500 ms Redis is away.
test.each([2, 40, 80, 220, 400])(
  'a call that will not wait is sent where there is room, and refused with its time where there is none, %s ms from Redis',
  async (roundTripMs) => {
    const [first, second] = await outcomesOf(['a', 'b'], roundTripMs);
    // Nothing: should its attempt fail, it is not sent once more, and answered with that failure.
    expect(first).toEqual({ sentWithMs: 0 });
    expect(second).toBeInstanceOf(Refusal);
    expect(second).toMatchObject({ code: 'wait_too_long', details: { heldBy: 'ceiling_minute' } });
    const { retryInMs = 0 } = (second as Refusal).details;
    expect(retryInMs).toBeGreaterThan(60_000 - 20 * roundTripMs - 400);
    expect(retryInMs).toBeLessThanOrEqual(60_150 + 2 * roundTripMs);
  },
);
