/** Calls that limits do not hold, over the embedded stores on virtual time. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Reckoned } from '../../src/call.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import { callOf, embeddedQueue, settingsOf, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

let clock: FakeClock;
let queue: AdmissionQueue;
let limiter: Limiter;
let reckoned: [string, Reckoned][];
let told: [string, Reckoned | null][];
beforeEach(() => {
  clock = new FakeClock();
  reckoned = [];
  told = [];
  ({ queue, limiter } = embeddedQueue({
    clock,
    onReckoned({ admission }, said, before) {
      reckoned.push([admission.ticket, said]);
      told.push([admission.ticket, before]);
    },
  }));
});
afterEach(async () => {
  queue.close();
  await limiter.close();
});

/** One call in two seconds. */
const slow = { mode: 'observe', limit: 1, windowMs: 2_000, maxWaitMs: 10_000 } as const;

interface Sent {
  readonly ticket: Ticket;
  readonly lease: Lease;
}

async function send(id: string, options: CallOptions = slow): Promise<Sent> {
  const ticket = await queue.enter(...callOf(clock, id, options));
  return { ticket, lease: await ticket.whenGranted() };
}

/** The response comes now: as the journey does it. */
async function answer({ ticket, lease }: Sent): Promise<Reckoned | null> {
  const would = await ticket.would();
  lease.settle({ kind: 'succeeded', spent: null }, null);
  ticket.leave();
  return would;
}

function pass(ms: number): Promise<boolean> {
  const until = clock.monotonic() + ms;
  clock.outside(until, () => {});
  return clock.run(until);
}
/** What is told, to half a second: a meter that was empty rests a little before it drains. */
const roughly = (would: Reckoned | null): string =>
  would === null ? 'nothing' : `${would.kind} ${Math.round(would.waitMs / 500) / 2} s`;
const inFlight = (): number => limiter.snapshot().reduce((sum, bucket) => sum + bucket.inFlight, 0);

test('a call leaves at once whatever its limits say, and hears what they would have done', async () => {
  const all = [await send('a'), await send('b'), await send('c')];
  expect(clock.monotonic()).toBe(0);
  expect((await Promise.all(all.map(answer))).map(roughly)).toEqual(['send 0 s', 'wait 2 s', 'wait 4 s']);
  expect(all.map(({ ticket }) => ticket.waitedMs())).toEqual([0, 0, 0]);
});

test('a call that could not have left in time hears of its refusal, and takes no place', async () => {
  const all = await Promise.all(['a', 'b', 'c'].map((id) => send(id, { ...slow, maxWaitMs: 3_000 })));
  expect((await Promise.all(all.map(answer))).map((would) => would?.kind)).toEqual([
    'send',
    'wait',
    'refuse',
  ]);
  await pass(2_500);
  expect(reckoned.map(([id, said]) => `${id} ${roughly(said)}`)).toEqual([
    'c refuse 4 s',
    'a send 0 s',
    'b wait 2 s',
  ]);
  expect(reckoned[0]?.[1]).toMatchObject({ code: 'wait_too_long' });
  expect(roughly(await answer(await send('d')))).toBe('wait 1.5 s');
});

test('what is reckoned in the end is how long the call would have waited', async () => {
  for (const id of ['a', 'b', 'c']) await answer(await send(id));
  await pass(5_000);
  expect(reckoned.map(([id, said]) => `${id} ${roughly(said)}`)).toEqual([
    'a send 0 s',
    'b wait 2 s',
    'c wait 4 s',
  ]);
});

test('what is reckoned comes with the forecast that the response had, which knows of nobody who comes later', async () => {
  for (const id of ['a', 'b']) await answer(await send(id));
  await answer(await send('urgent', { ...slow, urgency: 0 }));
  await pass(5_000);
  expect(reckoned.map(([id, said]) => `${id} ${roughly(said)}`)).toEqual([
    'a send 0 s',
    'urgent wait 2 s',
    'b wait 4 s',
  ]);
  expect(told.map(([id, before]) => `${id} ${roughly(before)}`)).toEqual([
    'a nothing',
    'urgent wait 2 s',
    'b wait 2 s',
  ]);
});

test('serialized calls are reckoned with the time that each of them takes, and none is held', async () => {
  const serial = { mode: 'observe', maxInFlight: 1, maxWaitMs: 60_000 } as const;
  const all = [await send('a', serial), await send('b', serial), await send('c', serial)];
  await pass(700);
  await Promise.all(all.map(answer));
  await pass(5_000);
  expect(reckoned.map(([, { waitMs }]) => Math.round(waitMs / 10) * 10)).toEqual([0, 700, 1_400]);
  expect(inFlight()).toBe(0);
});

test('who waits for serialized calls hears of the time that calls are known to take, though no ticket has taken it yet', async () => {
  const serial = { mode: 'observe', maxInFlight: 1, maxWaitMs: 60_000 } as const;
  const all: Sent[] = [];
  for (const id of ['a', 'b', 'c', 'd']) all.push(await send(id, serial));
  await pass(700);
  const told = await Promise.all(all.map(({ ticket }) => ticket.would()));
  for (const { lease } of all) lease.settle({ kind: 'succeeded', spent: null }, null);
  for (const { ticket } of all) ticket.leave();
  // The round under way counts half.
  expect(told.map((would) => would?.waitMs)).toEqual([0, 1_050, 1_750, 2_450]);
});

test('the ceiling of a workspace is reckoned', async () => {
  const two = { mode: 'observe', perMinute: 2, maxWaitMs: 75_000 } as const;
  const all = [await send('a', two), await send('b', two), await send('c', two)];
  expect((await Promise.all(all.map(answer))).map(roughly)).toEqual(['send 0 s', 'send 0 s', 'wait 60 s']);
});

test('a refusal of the upstream closes nothing', async () => {
  const { ticket, lease } = await send('a', { mode: 'observe', limit: 100, maxWaitMs: 10_000 });
  const throttle = { kind: 'rate', waitMs: 8_000, meter: null } as const;
  const lesson = { feedback: { meters: [], throttle }, sentAgoMs: 1, headAgoMs: 0 };
  lease.settle({ kind: 'throttled', closeMs: 8_000, requeue: false, sleepMs: 0 }, lesson);
  ticket.leave();
  await pass(5);
  expect(limiter.snapshot().map(({ closedMs }) => closedMs)).toEqual([0]);
  expect(roughly(await answer(await send('b', { mode: 'observe', limit: 100, maxWaitMs: 10_000 })))).toBe(
    'send 0 s',
  );
});

test('a level that the upstream states of traffic that nobody held is not taken for what is reckoned', async () => {
  const meters = [{ meter: 'requests', limit: 5, windowMs: 10_000 }] as const;
  const pinned = { meters, learn: false, probe: 0 };
  const five = { mode: 'observe', setting: pinned, maxWaitMs: 60_000 } as const;
  const all: Sent[] = [];
  for (let at = 0; at < 8; at += 1) all.push(await send(`c${at}`, five));
  await pass(1);
  const full = {
    meter: 'requests',
    limit: 10,
    windowMs: 10_000,
    level: { lowest: 10, highest: 10 },
  } as const;
  const lesson = { feedback: { meters: [full], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
  for (const { ticket, lease } of all) {
    lease.settle({ kind: 'succeeded', spent: null }, lesson);
    ticket.leave();
  }
  await pass(20_000);
  const waits = reckoned.map(([, said]) => roughly(said)).slice(5);
  expect(waits).toEqual(['wait 2 s', 'wait 4 s', 'wait 6 s']);
});

test('a call that was not sent gives back what it would have taken', async () => {
  const { ticket, lease } = await send('a');
  await pass(1);
  lease.settle({ kind: 'dropped' }, null);
  ticket.leave();
  expect(roughly(await answer(await send('b')))).toBe('send 0 s');
});

test('a client that leaves before its response takes its ticket along', async () => {
  await answer(await send('a'));
  const leaves = new AbortController();
  const { ticket, lease } = await send('b', { ...slow, clientGone: leaves.signal });
  leaves.abort();
  lease.settle({ kind: 'succeeded', spent: null }, null);
  ticket.leave();
  expect(roughly(await answer(await send('c')))).toBe('wait 2 s');
  await pass(10_000);
  expect(reckoned.map(([id]) => id)).toEqual(['a', 'c']);
});

test('what holds a call beside its limits holds it: a pause, for as long as it lasts', async () => {
  const { ticket, lease } = await send('a');
  lease.settle({ kind: 'returned', sleepMs: 400, because: 'backoff' }, null);
  let again: Lease | null = null;
  void ticket.whenGranted().then((granted) => (again = granted));
  await pass(399);
  expect(again).toBeNull();
  await pass(2);
  expect(again).not.toBeNull();
  expect(ticket.waitedMs()).toBe(400);
  ticket.leave();
});

test('nothing is left when all calls have ended, and nothing waits on after the end of the process', async () => {
  for (const id of ['a', 'b', 'c']) await answer(await send(id));
  const timers = clock.timers;
  queue.close();
  expect(clock.timers).toBeLessThan(timers);
  expect(limiter.snapshot().map(({ waiting }) => waiting)).toEqual([0]);
  expect(inFlight()).toBe(0);
});

const changeTo = (mode: AdmissionRequest['mode']): void =>
  queue.reload((request) => settingsOf(request, { mode }));

test('a reload that ends the enforcement sends who waits, at once', async () => {
  const enforced = { ...slow, mode: 'enforce' } as const;
  await answer(await send('a', enforced));
  const waiting = await queue.enter(...callOf(clock, 'b', enforced));
  const granted = waiting.whenGranted();
  await pass(500);
  changeTo('observe');
  const lease = await granted;
  expect(clock.monotonic()).toBe(500);
  expect(roughly(await answer({ ticket: waiting, lease }))).toBe('wait 2 s');
  expect(waiting.waitedMs()).toBe(500);
  await pass(5_000);
  expect(reckoned.map(([id]) => id)).toEqual(['b']);
});

test('a reload that begins the enforcement holds nobody behind calls that were sent already', async () => {
  for (const id of ['a', 'b', 'c', 'd']) await answer(await send(id));
  changeTo('enforce');
  const enforced = await queue.enter(...callOf(clock, 'e', { ...slow, mode: 'enforce' }));
  const granted = enforced.whenGranted();
  await pass(2_100);
  const lease = await granted;
  expect(clock.monotonic()).toBeLessThanOrEqual(2_100);
  await answer({ ticket: enforced, lease });
});
