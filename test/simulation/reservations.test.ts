/** Clients that keep no connection: 500 refused calls come back at their times, over the stores of one process. `SEEDS` asks for up to three seeds. */
import { env } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import type { AdmissionRequest, Lease } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { ticketId, type TicketId } from '../../src/ids.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const perMinute = 120;
const reservations = 500;

interface Plan {
  readonly seed: number;
  readonly ceiling?: number | null;
  readonly lost?: number;
  /** Calls that wait all the time, and the name of their lane and workspace. */
  readonly crowd?: { readonly waiting: number; readonly lane: string };
  /** The upstream closes the bucket for so long, this often. Milliseconds. */
  readonly closings?: { readonly everyMs: number; readonly forMs: number };
}

const terms = (clientWaitMs: number): CallOptions => ({
  limit: perMinute,
  windowMs: 60_000,
  lane: 'reserving',
  workspace: 'reserving',
  maxQueued: 10_000,
  maxWaitMs: clientWaitMs,
});

async function run({ seed, ceiling = null, lost = 0, crowd, closings }: Plan) {
  const random = new SeededRandom(seed);
  const clock = new FakeClock();
  const { queue } = embeddedQueue({ clock });
  const sent: { name: string; at: number }[] = [];
  /** Those whose ticket was worth nothing when they came in time. */
  let isVoid = 0;
  let [names, refusedAgain, waiting, maxWaiting, closedAt] = [0, 0, 0, 0, 0];

  const attempt = async (options: CallOptions, place: TicketId | null): Promise<'sent' | Refusal> => {
    names += 1;
    const [asked, signal] = callOf(clock, `n${names}`, { perMinute: ceiling, ...options });
    const request: AdmissionRequest = {
      ...asked,
      admission: { ...asked.admission, ...(place === null ? {} : { reservation: place }) },
      reserving: { begins: true, lastsMs: 10_000, maxReserved: 1_000, ticketOf: (id) => id },
    };
    waiting += 1;
    maxWaiting = Math.max(maxWaiting, waiting);
    try {
      const ticket = await queue.enter(request, signal);
      send(await ticket.whenGranted(), options.lane ?? '');
      ticket.leave();
      return 'sent';
    } catch (failure) {
      const refusal = await queue.reserve(request, failure);
      if (!(refusal instanceof Refusal)) throw refusal;
      return refusal;
    } finally {
      waiting -= 1;
    }
  };
  const send = (lease: Lease, name: string): void => {
    const now = clock.monotonic();
    const isClosing = closings !== undefined && now - closedAt > closings.everyMs;
    sent.push({ name, at: now });
    if (isClosing) closedAt = now;
    const ending = isClosing
      ? ({ kind: 'throttled', closeMs: closings.forMs, requeue: false, sleepMs: 0 } as const)
      : ({ kind: 'succeeded', spent: null } as const);
    clock.outside(now + 50, () => lease.settle(ending, null));
  };

  /** Of the clients that came back, in the order in which they came first: when they were sent. */
  const returned: number[] = [];
  let expected = 0;
  const client = async (n: number): Promise<void> => {
    const first = await attempt(terms(0), null);
    if (first === 'sent' || random.next() < lost) return;
    expected += 1;
    let refusal = first;
    for (let attempts = 1; ; attempts += 1) {
      const { ticket, retryInMs = 0 } = refusal.details;
      if (ticket === undefined)
        throw new Error(`no ticket at attempt ${attempts}: ${JSON.stringify(refusal.details)}`);
      const backAt = clock.monotonic() + retryInMs + (random.next() - 0.5) * 400;
      await new Promise<void>((resolve) => void clock.outside(backAt, resolve));
      const next = await attempt(terms(500), ticketId(ticket));
      if (next === 'sent') break;
      refusedAgain += 1;
      if (next.details.ticket !== ticket) isVoid += 1;
      refusal = next;
    }
    returned[n] = clock.monotonic();
  };

  // Whatever the bucket has at first is used up.
  for (let n = 0; n < perMinute; n += 1) await attempt({ ...terms(0), perMinute: null }, null);
  const began = clock.monotonic();
  const clients: Promise<void>[] = [];
  for (let n = 0; n < reservations; n += 1) clock.outside(began + n * 2, () => void clients.push(client(n)));
  let isOver = false;
  const ofCrowd = { ...terms(600_000), lane: crowd?.lane ?? '', workspace: crowd?.lane ?? '' };
  const patient = async (): Promise<void> => {
    while (!isOver) await attempt(ofCrowd, null);
  };
  for (let n = 0; n < (crowd?.waiting ?? 0); n += 1)
    clock.outside(began + 2_000 + n, () => void patient().catch(() => {}));
  clock.outside(began + 1_500, () => {
    void Promise.all(clients).then(() => {
      isOver = true;
      clock.halt();
    });
  });
  await clock.run(3_600_000);
  await Promise.all(clients);
  const came = returned.filter((at) => at !== undefined);
  return { returned: came, refusedAgain, isVoid, expected, sent, maxWaiting };
}

/** Which part of the quota was used while clients came back. */
function usedOf(sent: readonly { readonly at: number }[]): number {
  const [from, until] = [20_000, 240_000];
  return sent.filter(({ at }) => at > from && at <= until).length / ((until - from) / (60_000 / perMinute));
}

describe.each([1, 2, 3].slice(0, Number(env['SEEDS'] ?? 1)))(
  '500 refused calls at 120 a minute, seed %i',
  (seed) => {
    const idealMs = reservations * (60_000 / perMinute);

    test.each([
      ['the bucket', null],
      ['the ceiling as well', perMinute],
    ])('come back once, in order, in the time that %s demands', async (_, ceiling) => {
      const { returned, refusedAgain, expected, sent, maxWaiting } = await run({ seed, ceiling });
      expect(refusedAgain).toBe(0);
      expect(returned).toHaveLength(expected);
      expect(returned.toSorted((one, other) => one - other)).toEqual(returned);
      expect((sent.at(-1)?.at ?? Infinity) / idealMs).toBeLessThanOrEqual(1.02);
      expect(maxWaiting).toBeLessThanOrEqual(5);
    });

    // A slot that was kept in vain is used ten seconds later, and comes free that much later in the next minute.
    test.each([
      ['the rest to calls of their workspace', 'reserving', null, 0.95, 0],
      ['the rest to calls of another workspace', 'other', null, 0.95, 0],
      ['the rest under a ceiling but for these ten seconds', 'reserving', perMinute, 0.98 - 0.3 / 6, 0.03],
    ])('of which 30 %% never come back, leave %s', async (_, lane, ceiling, minUsed, maxAgain) => {
      const crowd = { waiting: 40, lane };
      const { returned, refusedAgain, expected, sent } = await run({ seed, ceiling, lost: 0.3, crowd });
      expect(usedOf(sent)).toBeGreaterThanOrEqual(minUsed);
      expect(returned).toHaveLength(expected);
      expect(refusedAgain / expected).toBeLessThanOrEqual(maxAgain);
    });

    test('keep their tickets while the upstream closes again and again, and none is sent twice', async () => {
      const closings = { everyMs: 40_000, forMs: 15_000 };
      const crowd = { waiting: 10, lane: 'other' };
      const { returned, expected, isVoid, sent } = await run({ seed, lost: 0.1, crowd, closings });
      expect([returned.length, isVoid]).toEqual([expected, 0]);
      expect(sent.filter(({ name }) => name === 'reserving')).toHaveLength(perMinute + expected);
    });
  },
);
