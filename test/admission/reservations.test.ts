/** What the ceiling of a workspace keeps for those who come back, in all buckets of its credential. */
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, expect, test } from '@jest/globals';
import type { AdmissionRequest } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { ticketId } from '../../src/ids.ts';
import { callOf, embeddedQueue, type CallOptions, type EmbeddedQueue } from '../support/admission-queue.ts';
import { manualClock, type ManualClock } from '../support/manual-clock.ts';

let clock: ManualClock;
let stores: EmbeddedQueue;
afterEach(() => stores.limiter.close());

const perMinute = 2;
const windowMs = 60_200;

interface Sending extends CallOptions {
  readonly back?: string;
}

async function send(name: string, { back, ...options }: Sending): Promise<'sent' | Refusal> {
  const { queue } = stores;
  const [asked, signal] = callOf(clock, name, { perMinute, maxWaitMs: 0, ...options });
  const returning = back === undefined ? {} : { reservation: ticketId(back) };
  const request: AdmissionRequest = {
    ...asked,
    admission: { ...asked.admission, ...returning },
    reserving: { begins: true, lastsMs: 10_000, maxReserved: 10, ticketOf: (id) => id },
  };
  try {
    const ticket = await queue.enter(request, signal);
    const lease = await ticket.whenGranted();
    lease.settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
    return 'sent';
  } catch (failure) {
    const refusal = await queue.reserve(request, failure);
    if (refusal instanceof Refusal) return refusal;
    throw refusal;
  }
}

const [one, other] = [
  { bucket: 'log.one', lane: 'one' },
  { bucket: 'log.other', lane: 'other' },
];

async function usedUp(): Promise<Refusal> {
  clock = manualClock();
  stores = embeddedQueue({ clock });
  // A minute apart from each other, so that one slot comes free at a time.
  expect(await send('a', one)).toBe('sent');
  clock.advance(5_000);
  expect(await send('b', one)).toBe('sent');
  const refused = await send('c', one);
  if (refused === 'sent') throw new Error('there was a slot');
  return refused;
}

test('a slot that is kept in one bucket is left free by calls of another one, until it is used', async () => {
  const { details } = await usedUp();
  expect(details.ticket).toBe('c');
  clock.advance(details.retryInMs ?? 0);
  const stranger = send('x', other);
  // Its wait is over before the slot is left.
  for (let step = 0; step < 40; step += 1) {
    await turn();
    clock.advance(5);
  }
  expect(await stranger).toBeInstanceOf(Refusal);
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
  clock.advance(windowMs);
  expect(await send('y', other)).toBe('sent');
});

test('a slot that nobody came back for is left free no longer', async () => {
  const { details } = await usedUp();
  clock.advance((details.retryInMs ?? 0) + 10_001);
  expect(await send('x', other)).toBe('sent');
});

test('where there are more slots than are kept, nobody is held', async () => {
  const { details } = await usedUp();
  // By then the second slot is free as well.
  clock.advance((details.retryInMs ?? 0) + 6_000);
  expect(await send('x', other)).toBe('sent');
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
});

test('a call whose slot is kept for longer than it may wait is refused at once, and admitted at the time that it is told', async () => {
  const { details } = await usedUp();
  clock.advance(details.retryInMs ?? 0);
  const isOver = async (sent: Promise<'sent' | Refusal>): Promise<'sent' | Refusal | null> => {
    let result: 'sent' | Refusal | null = null;
    void sent.then((each) => (result = each));
    for (let turns = 0; turns < 40; turns += 1) await turn();
    return result;
  };
  const refused = await isOver(send('x', { ...other, maxWaitMs: 3_000 }));
  expect(refused).toMatchObject({ code: 'wait_too_long' });
  expect(await send('d', { ...one, back: 'c' })).toBe('sent');
  const retryInMs = refused instanceof Refusal ? (refused.details.retryInMs ?? 0) : 0;
  expect(retryInMs).toBeGreaterThan(3_000);
  clock.advance(retryInMs);
  expect(await isOver(send('y', { ...other, back: 'x' }))).toBe('sent');
});
