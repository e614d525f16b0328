/** What admission asks of the stores when a call leaves: its ticket is cancelled wherever it may still be in a lane. */
import { describe, expect, test } from '@jest/globals';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import type { Settlement } from '../../src/limiter/limiter.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { withMethods } from '../support/with-methods.ts';

/** A queue with one call granted; `cancelled` are the tickets that the limiter was asked to take out. */
async function granted() {
  const clock = new FakeClock();
  const cancelled: string[] = [];
  const failures: unknown[] = [];
  const { queue, limiter } = embeddedQueue({
    clock,
    onFailure: (failure) => failures.push(failure),
    around: (embedded) =>
      withMethods<Limiter>(embedded, {
        cancel: (bucket, ticket) => {
          cancelled.push(ticket);
          return embedded.cancel(bucket, ticket);
        },
      }),
  });
  const ticket = await queue.enter(...callOf(clock, 't'));
  const lease = await ticket.whenGranted();
  const waiting = (): number => limiter.snapshot()[0]?.waiting ?? 0;
  return { clock, ticket, lease, limiter, cancelled, failures, waiting };
}

const again: Settlement = { kind: 'throttled', closeMs: 5_000, requeue: true, sleepMs: 0 };

describe('a call whose client leaves', () => {
  test('asks nothing more of the limiter after it succeeded', async () => {
    const { ticket, lease, cancelled, failures, limiter } = await granted();
    lease.settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
    expect([cancelled, failures, limiter.snapshot()[0]?.inFlight]).toEqual([[], [], 0]);
    await limiter.close();
  });

  test('is taken out of its lane when it has gone back there', async () => {
    const { ticket, lease, cancelled, waiting, limiter } = await granted();
    lease.settle(again, null);
    expect(waiting()).toBe(1);
    ticket.leave();
    expect([cancelled, waiting()]).toEqual([['t'], 0]);
    await limiter.close();
  });

  test('is taken out of the limiter while its lease is open or its fate is unknown', async () => {
    const open = await granted();
    open.ticket.leave();
    const unknown = await granted();
    unknown.lease.settle({ kind: 'unknown' }, null);
    unknown.ticket.leave();
    expect([open.cancelled, unknown.cancelled]).toEqual([['t'], ['t']]);
    await open.limiter.close();
    await unknown.limiter.close();
  });

  test('gives the grant back and takes no slot when the client leaves during the grant', async () => {
    const clock = new FakeClock();
    const settled: Settlement[] = [];
    const gone = new AbortController();
    const ceilings = new CeilingStore(clock);
    let taken = 0;
    const made = embeddedQueue({
      clock,
      ceilings: withMethods<Ceilings>(ceilings, {
        take: (ceiling, again, lateMs) => {
          taken += 1;
          return ceilings.take(ceiling, again, lateMs);
        },
      }),
      around: (embedded) =>
        withMethods<Limiter>(embedded, {
          admit: async (asked) => {
            const reply = await embedded.admit(asked);
            gone.abort(new Error('the client left'));
            return reply;
          },
          settle: (grant, settlement, lesson) => {
            settled.push(settlement);
            return embedded.settle(grant, settlement, lesson);
          },
        }),
    });
    const call = callOf(clock, 't', { perMinute: 5, clientGone: gone.signal });
    const ticket = await made.queue.enter(...call);
    await expect(ticket.whenGranted()).rejects.toThrow('the client left');
    expect([settled, taken]).toEqual([[{ kind: 'dropped' }], 0]);
    await made.limiter.close();
  });

  test('fails when a lease is asked for afterwards, and leaves no ticket behind', async () => {
    const { ticket, lease, waiting, limiter } = await granted();
    lease.settle(again, null);
    ticket.leave();
    await expect(ticket.whenGranted()).rejects.toThrow('after it was handed in');
    expect(waiting()).toBe(0);
    await limiter.close();
  });
});

test('a call whose wait is over is refused also where the limiter fails to forecast its wait', async () => {
  const clock = new FakeClock();
  const failures: unknown[] = [];
  const bug = new Error('no forecast');
  const { queue, limiter } = embeddedQueue({
    clock,
    onFailure: (failure) => failures.push(failure),
    around: (embedded) => withMethods<Limiter>(embedded, { forecast: () => Promise.reject(bug) }),
  });
  const first = await queue.enter(...callOf(clock, 'a', { maxInFlight: 1 }));
  await first.whenGranted();
  const second = await queue.enter(...callOf(clock, 'b', { maxInFlight: 1, maxWaitMs: 1_000 }));
  const ended = second.whenGranted().catch((failure: unknown) => failure);
  await clock.run(clock.monotonic() + 1_000);
  expect(await ended).toMatchObject({ code: 'wait_expired' });
  expect(failures).toEqual([bug]);
  await limiter.close();
});
