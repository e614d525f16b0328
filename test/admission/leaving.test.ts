/** What the queue asks of the limiter when a call leaves: a ticket that may still be in a line is taken out of it. */
import { describe, expect, test } from '@jest/globals';
import type { Settlement } from '../../src/limiter/limiter.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

/** A queue with one call granted; `cancelled` are the tickets that the limiter was asked to take out. */
async function granted() {
  const clock = new FakeClock();
  const cancelled: string[] = [];
  const failures: unknown[] = [];
  const { queue, limiter } = embeddedQueue({
    clock,
    onFailure: (failure) => failures.push(failure),
    around: (embedded) => ({
      ...embedded,
      cancel: (bucket, ticket) => {
        cancelled.push(ticket);
        return embedded.cancel(bucket, ticket);
      },
    }),
  });
  const ticket = await queue.enter(...callOf(clock, 't'));
  const lease = await ticket.granted();
  const waiting = (): number => limiter.snapshot()[0]?.waiting ?? 0;
  return { clock, ticket, lease, limiter, cancelled, failures, waiting };
}

const again: Settlement = { kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 };

describe('a call that leaves', () => {
  test('after it succeeded asks nothing more of the limiter', async () => {
    const { ticket, lease, cancelled, failures, limiter } = await granted();
    lease.settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
    expect([cancelled, failures, limiter.snapshot()[0]?.inFlight]).toEqual([[], [], 0]);
    await limiter.close();
  });

  test('while it is back in the line is taken out of it', async () => {
    const { ticket, lease, cancelled, waiting, limiter } = await granted();
    lease.settle(again, null);
    expect(waiting()).toBe(1);
    ticket.leave();
    expect([cancelled, waiting()]).toEqual([['t'], 0]);
    await limiter.close();
  });

  test('with its lease open, or of unknown fate, is asked for all the same', async () => {
    const open = await granted();
    open.ticket.leave();
    const unknown = await granted();
    unknown.lease.settle({ kind: 'unknown' }, null);
    unknown.ticket.leave();
    expect([open.cancelled, unknown.cancelled]).toEqual([['t'], ['t']]);
    await open.limiter.close();
    await unknown.limiter.close();
  });
});
