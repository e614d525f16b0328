/** A call that had its lease and was not sent: it keeps its position, and gives back all that it had taken. */
import { afterEach, expect, test } from '@jest/globals';
import { ceilingKey } from '../../src/ids.ts';
import type { Ticket } from '../../src/admission/ticket.ts';
import type { AttemptResult } from '../../src/dispatch/dispatcher.ts';
import { TransportError } from '../../src/dispatch/transport-error.ts';
import { requeue, returnGrant } from '../../src/journey/lease-end.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const ceiling = { key: ceilingKey('w'), perMinute: 40, perDay: 100 };
const options = { perMinute: ceiling.perMinute, perDay: ceiling.perDay, limit: 60, windowMs: 60_000_000 };

let limiter: Limiter | null = null;
afterEach(() => limiter?.close());

function setUp(limits: Partial<typeof options> = {}) {
  const clock = new FakeClock();
  const failures: unknown[] = [];
  const made = embeddedQueue({ clock, onFailure: (failure) => failures.push(failure) });
  const { queue, ceilings } = made;
  ({ limiter } = made);
  const enter = (ticket: string): Promise<Ticket> =>
    queue.enter(...callOf(clock, ticket, { ...options, ...limits }));
  /** What has been taken: slots of the minute and of the day, units of the bucket. */
  const taken = async () => [
    40 - ((await ceilings.state(ceiling))?.remaining ?? 0),
    100 - ((await ceilings.dayState(ceiling))?.remaining ?? 0),
    Math.round(made.limiter.snapshot()[0]?.meters[0]?.level ?? 0),
  ];
  return { clock, enter, taken, failures };
}

const neverSent: AttemptResult = {
  kind: 'failed',
  error: new TransportError({
    kind: 'unreachable',
    phase: 'connect',
    neverSent: true,
    reusedSocket: false,
    stale: false,
    code: 'ECONNREFUSED',
  }),
};
const resent = {
  kind: 'resend',
  notBeforeMs: 100,
  closes: 'none',
  closeMs: 0,
  cause: 'never_sent',
  history: {},
} as const;

test.each([
  ['whose grant came back unused', returnGrant],
  ['whose upstream was not reached', (lease) => requeue(lease, neverSent, resent)],
] as [string, typeof returnGrant][])('a call %s takes one slot, not two', async (_what, end) => {
  const { clock, enter, taken, failures } = setUp();
  const ticket = await enter('t');
  for (let tries = 0; tries < 3; tries += 1) {
    const granted = ticket.whenGranted();
    await clock.run(1_000 * (tries + 1));
    const lease = await granted;
    expect(await taken()).toEqual([1, 1, 1]);
    if (tries < 2) end(lease);
    else lease.settle({ kind: 'succeeded', spent: null }, null);
  }
  ticket.leave();
  await clock.run(4_000);
  expect(await taken()).toEqual([1, 1, 1]);
  expect(failures).toEqual([]);
});

test.each([
  ['minute', { perMinute: 1, perDay: 100 }],
  ['day', { perMinute: 40, perDay: 1 }],
])(
  'the last slot of a %s that a call gives back is taken by it again, not waited for',
  async (_what, limits) => {
    const { clock, enter } = setUp(limits);
    const first = await enter('first');
    const granted = first.whenGranted();
    await clock.run(1);
    const lease = await granted;
    const second = await enter('second').catch(() => null);
    const waits = second?.whenGranted().catch(() => null);
    await clock.run(1);
    requeue(lease, neverSent, resent);
    const again = first.whenGranted();
    await clock.run(150);
    (await again).settle({ kind: 'dropped' }, null);
    await clock.run(1);
    const third = await enter('third');
    const next = third.whenGranted();
    second?.leave();
    await waits;
    await clock.run(150);
    expect((await next).grant.ticket).toBe('third');
  },
);

test('a lane is served at full width again once a call that was not sent has left again', async () => {
  const { clock, enter } = setUp();
  const first = await enter('first');
  const granted = first.whenGranted();
  await clock.run(1);
  returnGrant(await granted);
  const others = await Promise.all(['a', 'b', 'c'].map((name) => enter(name)));
  const all = [first, ...others].map((ticket) => ticket.whenGranted());
  await clock.run(500);
  expect(await Promise.all(all)).toHaveLength(4);
});
