/** What the desk asks of the limiter when a call leaves: a ticket that may still be in a line is taken out of it. */
import { describe, expect, test } from '@jest/globals';
import { createDesk } from '../../src/admission/admit.ts';
import type { Ticket } from '../../src/admission/ticket.ts';
import type { Limiter, Settlement } from '../../src/limiter/limiter.ts';
import { createMemoryCeilings } from '../../src/limiter/memory-ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/memory-limiter.ts';
import { FakeClock } from '../support/fake-clock.ts';

/** A desk with one call granted; `cancelled` are the tickets that the limiter was asked to take out. */
async function granted() {
  const clock = new FakeClock();
  const cancelled: string[] = [];
  const failures: unknown[] = [];
  const desk = createDesk({
    clock,
    limiter: () => limiter,
    ceilings: createMemoryCeilings(clock),
    onFailure: (failure) => failures.push(failure),
  });
  const embedded = createMemoryLimiter(clock, desk.listener);
  const limiter: Limiter = {
    ...embedded,
    cancel: (bucket, ticket) => {
      cancelled.push(ticket);
      return embedded.cancel(bucket, ticket);
    },
  };
  const ticket: Ticket = await desk.enter({
    admission: {
      ticket: 't',
      bucket: 'b',
      lane: 'w',
      weight: 1,
      urgency: 3,
      maxInFlight: null,
      leaseMs: 15_000,
      callClass: 'default',
      costs: { requests: 1 },
      setting: { meters: [], learn: true, probe: 0 },
      maxQueued: 10,
    },
    ceiling: { key: 'w', perMinute: null, perDay: null },
    upstream: 'u',
    maxWaitMs: 45_000,
    clientGone: new AbortController().signal,
    stillValid: () => true,
  });
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
