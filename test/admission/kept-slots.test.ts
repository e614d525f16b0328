/** What a ceiling keeps: for those who come back, and for calls that are no background. */
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { AdmissionRequest, Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { backgroundLane, laneKey, ticketId } from '../../src/ids.ts';
import { ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import { callOf, embeddedQueue, type CallOptions, type EmbeddedQueue } from '../support/admission-queue.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';
import { succeeded } from './world.ts';

let clock: ManualClock;
let stores: EmbeddedQueue;
beforeEach(() => {
  clock = manualClock();
  stores = embeddedQueue({ clock });
});
afterEach(() => stores.limiter.close());

/** Many turns, and in each of them so many milliseconds. */
async function pass(stepMs = 0): Promise<void> {
  for (let step = 0; step < 40; step += 1) {
    await turn();
    clock.advance(stepMs);
  }
}
async function sent(ticket: Promise<Ticket>): Promise<'sent'> {
  const held = await ticket;
  (await held.whenGranted()).settle(succeeded, null);
  held.leave();
  return 'sent';
}

/** Sends a call, or tells it to come back; `back`: the ticket with which it comes back. */
async function send(
  name: string,
  { back, ...options }: CallOptions & { back?: string },
): Promise<'sent' | Refusal> {
  const [asked, signal] = callOf(clock, name, { perMinute: 2, maxWaitMs: 0, ...options });
  const returning = back === undefined ? {} : { reservation: ticketId(back) };
  const request: AdmissionRequest = {
    ...asked,
    admission: { ...asked.admission, ...returning },
    reserving: { begins: true, lastsMs: 10_000, maxReserved: 10, ticketOf: (id) => id },
  };
  try {
    return await sent(stores.queue.enter(request, signal));
  } catch (failure) {
    const refusal = await stores.queue.reserve(request, failure);
    if (refusal instanceof Refusal) return refusal;
    throw refusal;
  }
}

const one = { bucket: 'log.one', lane: 'one' };
const other = { bucket: 'log.other', lane: 'other' };

/** Both slots are taken, five seconds apart, so that one comes free at a time; `c` is told when its own does. */
async function usedUp(): Promise<number> {
  expect(await send('a', one)).toBe('sent');
  clock.advance(5_000);
  expect(await send('b', one)).toBe('sent');
  const refused = await send('c', one);
  if (refused === 'sent') throw new Error('there was a slot');
  expect(refused.details.ticket).toBe('c');
  return refused.details.retryInMs ?? 0;
}

test('a slot that is kept in one bucket is left free by calls of another one, until it is used', async () => {
  clock.advance(await usedUp());
  const stranger = send('x', other);
  // Its wait is over before the slot is left.
  await pass(5);
  expect(await stranger).toBeInstanceOf(Refusal);
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
  clock.advance(ceilingWindowMs);
  expect(await send('y', other)).toBe('sent');
});

test('a slot that nobody came back for is left free no longer', async () => {
  clock.advance((await usedUp()) + 10_001);
  expect(await send('x', other)).toBe('sent');
});

test('where there are more slots than are kept, nobody is held', async () => {
  // By then the second slot is free as well.
  clock.advance((await usedUp()) + 6_000);
  expect(await send('x', other)).toBe('sent');
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
});

test('a call whose slot is kept for longer than it may wait is refused at once, and admitted at the time that it is told', async () => {
  clock.advance(await usedUp());
  const atOnce = async (sending: Promise<'sent' | Refusal>): Promise<'sent' | Refusal | null> => {
    await pass();
    return Promise.race([sending, Promise.resolve(null)]);
  };
  const refused = await atOnce(send('x', { ...other, maxWaitMs: 3_000 }));
  expect(refused).toMatchObject({ code: 'wait_too_long' });
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
  const retryInMs = refused instanceof Refusal ? (refused.details.retryInMs ?? 0) : 0;
  expect(retryInMs).toBeGreaterThan(3_000);
  clock.advance(retryInMs);
  expect(await atOnce(send('y', { ...other, back: 'x' }))).toBe('sent');
});

test('a background call that has waited for a minute takes the place that its ceiling leaves to others', async () => {
  const perMinute = 10;
  for (let n = 1; n < perMinute; n += 1)
    await sent(stores.queue.enter(...callOf(clock, `other ${n}`, { perMinute })));
  const lane = backgroundLane(laneKey('l'));
  const options = { perMinute: perMinute - 1, lane, maxWaitMs: 600_000 };
  const [request, signal] = callOf(clock, 'background', options);
  const ceiling = { ...request.ceiling, left: { perMinute: 1, perDay: 0 } };
  const enteredAt = clock.monotonic();
  let waitedMs = NaN;
  void sent(stores.queue.enter({ ...request, ceiling }, signal)).then(
    () => (waitedMs = clock.monotonic() - enteredAt),
  );
  while (Number.isNaN(waitedMs)) {
    clock.advance(50);
    await turn();
  }
  expect(waitedMs).toBeGreaterThanOrEqual(60_000);
  // Before any of the places that others took is free again.
  expect(waitedMs).toBeLessThan(ceilingWindowMs);
});
