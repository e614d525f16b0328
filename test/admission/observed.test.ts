/** Calls that limits do not hold, over the embedded stores on virtual time: they hear what the limits would have done. */
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Reckoned } from '../../src/call.ts';
import type { CallOptions } from '../support/admission-queue.ts';
import { dropped, metered, names, succeeded, throttled, world } from './world.ts';

/** What is told, to half a second: a meter that was empty rests a little before it drains. */
const roughly = (would: Reckoned | null): string =>
  would === null ? 'nothing' : `${would.kind} ${Math.round(would.waitMs / 500) / 2} s`;

let all: ReturnType<typeof world>;
let reckoned: [id: string, said: Reckoned][];
beforeEach(() => {
  reckoned = [];
  all = world({
    onReckoned: ({ admission }, said) => void reckoned.push([admission.ticket, said]),
  });
});
afterEach(async () => {
  all.queue.close();
  await all.limiter.close();
});
const story = (): string[] => reckoned.map(([id, said]) => `${id} ${roughly(said)}`);

/** One call in two seconds. */
const slow = { mode: 'observe', limit: 1, windowMs: 2_000, maxWaitMs: 10_000 } as const;
const enforced = { ...slow, mode: 'enforce' } as const;
const serial = { mode: 'observe', maxInFlight: 1, maxWaitMs: 60_000 } as const;
const wide = { mode: 'observe', limit: 100, maxWaitMs: 10_000 } as const;

interface Sent {
  readonly ticket: Ticket;
  readonly lease: Lease;
}
async function send(id: string, options: CallOptions = slow): Promise<Sent> {
  const ticket = await all.ticketOf(id, options);
  return { ticket, lease: await ticket.whenGranted() };
}
async function sendAll(ids: readonly string[], options: CallOptions = slow): Promise<Sent[]> {
  const sent: Sent[] = [];
  for (const id of ids) sent.push(await send(id, options));
  return sent;
}
function end(
  { ticket, lease }: Sent,
  ...[how, lesson = null]: [Parameters<Lease['settle']>[0], Parameters<Lease['settle']>[1]?]
): void {
  lease.settle(how, lesson);
  ticket.leave();
}
/** The response comes now: as the journey does it. What it is told. */
async function answer(sent: Sent): Promise<string> {
  const would = await sent.ticket.would();
  end(sent, succeeded);
  return roughly(would);
}
const pass = (ms: number) => all.pass(ms);
const inFlight = (): number => all.limiter.snapshot().reduce((sum, bucket) => sum + bucket.inFlight, 0);

test('a call that could not have left in time hears of its refusal, and takes no place', async () => {
  const sent = await sendAll(['a', 'b', 'c'], { ...slow, maxWaitMs: 3_000 });
  expect(await Promise.all(sent.map(answer))).toEqual(['send 0 s', 'wait 2 s', 'refuse 4 s']);
  await pass(2_500);
  expect(story()).toEqual(['a send 0 s', 'c refuse 4 s', 'b wait 2 s']);
  expect(reckoned[1]?.[1]).toMatchObject({ code: 'wait_too_long' });
  expect(await answer(await send('d'))).toBe('wait 1.5 s');
});

test('who waits for serialized calls hears of the time that calls are known to take, though no ticket has taken it yet', async () => {
  const sent = await sendAll(['a', 'b', 'c', 'd'], serial);
  await pass(700);
  const told = await Promise.all(sent.map(({ ticket }) => ticket.would()));
  for (const each of sent) end(each, succeeded);
  // The round under way counts half.
  expect(told.map((would) => would?.waitMs)).toEqual([0, 1_050, 1_750, 2_450]);
});

test('the ceiling of a workspace is reckoned', async () => {
  const sent = await sendAll(['a', 'b', 'c'], { mode: 'observe', perMinute: 2, maxWaitMs: 75_000 });
  expect(await Promise.all(sent.map(answer))).toEqual(['send 0 s', 'send 0 s', 'wait 60 s']);
});

test('a refusal of the upstream closes nothing', async () => {
  const throttle = { kind: 'rate', waitMs: 8_000, meter: null } as const;
  const lesson = { feedback: { meters: [], throttle }, sentAgoMs: 1, headAgoMs: 0 };
  end(await send('a', wide), throttled({ closeMs: 8_000 }), lesson);
  await pass(5);
  expect(all.limiter.snapshot().map(({ closedMs }) => closedMs)).toEqual([0]);
  expect(await answer(await send('b', wide))).toBe('send 0 s');
});

test('a level that the upstream states of traffic that nobody held is not taken for what is reckoned', async () => {
  const setting = { ...metered(5, 10_000), learn: false };
  const sent = await sendAll(names(8), { mode: 'observe', setting, maxWaitMs: 60_000 });
  await pass(1);
  const level = { lowest: 10, highest: 10 };
  const full = { meter: 'requests', limit: 10, windowMs: 10_000, level } as const;
  const lesson = { feedback: { meters: [full], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
  for (const each of sent) end(each, succeeded, lesson);
  await pass(20_000);
  expect(story().slice(5)).toEqual(['c5 wait 2 s', 'c6 wait 4 s', 'c7 wait 6 s']);
  // What is reckoned has drained by now.
  const later = await send('later', { mode: 'observe', setting, maxWaitMs: 60_000 });
  await pass(1);
  end(later, succeeded, lesson);
  await pass(1);
  expect(await answer(await send('next', { mode: 'observe', setting, maxWaitMs: 60_000 }))).toBe('send 0 s');
});

test('a call that was not sent gives back what it would have taken', async () => {
  const sent = await send('a');
  await pass(1);
  end(sent, dropped);
  expect(await answer(await send('b'))).toBe('send 0 s');
});

test('a client that leaves before its response takes its ticket along', async () => {
  await answer(await send('a'));
  const leaves = new AbortController();
  const left = await send('b', { ...slow, clientGone: leaves.signal });
  leaves.abort();
  end(left, succeeded);
  expect(await answer(await send('c'))).toBe('wait 2 s');
  await pass(10_000);
  expect(reckoned.map(([id]) => id)).toEqual(['a', 'c']);
});

test('what holds a call beside its limits holds it: a pause, for as long as it lasts', async () => {
  const { ticket, lease } = await send('a');
  lease.settle({ kind: 'returned', sleepMs: 400, because: 'backoff' }, null);
  let isGranted = false;
  void ticket.whenGranted().then(() => (isGranted = true));
  await pass(399);
  expect(isGranted).toBe(false);
  await pass(2);
  expect([isGranted, ticket.waitedMs()]).toEqual([true, 400]);
  ticket.leave();
});

test('nothing is left when all calls have ended, and nothing waits on after the end of the process', async () => {
  for (const id of ['a', 'b', 'c']) await answer(await send(id));
  const { timers } = all.clock;
  all.queue.close();
  expect(all.clock.timers).toBeLessThan(timers);
  expect(all.limiter.snapshot().map(({ waiting }) => waiting)).toEqual([0]);
  expect(inFlight()).toBe(0);
});

const changeTo = (mode: AdmissionRequest['mode']): void => all.reload({ mode });

test('a reload that begins the enforcement holds nobody behind calls that were sent already', async () => {
  for (const id of ['a', 'b', 'c', 'd']) await answer(await send(id));
  changeTo('enforce');
  const ticket = await all.ticketOf('e', enforced);
  const granted = ticket.whenGranted();
  await pass(2_100);
  const lease = await granted;
  expect(all.clock.monotonic()).toBeLessThanOrEqual(2_100);
  await answer({ ticket, lease });
});
