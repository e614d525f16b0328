/**
 * Clients that keep no connection: hundreds of refused calls come back at their times, on virtual time, over the stores of one process.
 * None is refused a second time, they leave in the order in which they came, and whoever does not come back costs the others little.
 * `SEEDS` asks for more than one seed, three at most.
 */
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
  /** A ceiling of the workspace, beside the bucket. */
  readonly ceiling: number | null;
  /** This share of clients never comes back. */
  readonly lost: number;
  /** Calls that wait all the time, and in which lane. */
  readonly crowd: { readonly waiting: number; readonly lane: string; readonly workspace: string } | null;
  /** The upstream closes the bucket for so long, this often. Milliseconds. */
  readonly closings?: { readonly everyMs: number; readonly forMs: number };
}

interface Outcome {
  /** Of the clients that came back, in the order in which they came first: when they were sent. */
  readonly returned: readonly number[];
  readonly refusedAgain: number;
  /** Those whose ticket was worth nothing when they came in time. */
  readonly void: number;
  readonly expected: number;
  readonly sent: readonly { readonly name: string; readonly at: number }[];
  readonly maxWaiting: number;
}

const terms = (clientWaitMs: number): CallOptions => ({
  limit: perMinute,
  windowMs: 60_000,
  lane: 'reserving',
  workspace: 'reserving',
  maxQueued: 10_000,
  maxWaitMs: clientWaitMs,
});

async function run({ seed, ceiling, lost, crowd, closings }: Plan): Promise<Outcome> {
  const random = new SeededRandom(seed);
  const clock = new FakeClock();
  const { queue } = embeddedQueue({ clock });
  const sent: { name: string; at: number }[] = [];
  let names = 0;
  let refusedAgain = 0;
  let isVoid = 0;
  let waiting = 0;
  let maxWaiting = 0;
  let closedAt = 0;

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

  const returned: number[] = [];
  let expected = 0;
  const client = async (n: number): Promise<void> => {
    const first = await attempt(terms(0), null);
    if (first === 'sent') return;
    if (random.next() < lost) return;
    expected += 1;
    let refusal = first;
    for (let attempts = 1; ; attempts += 1) {
      const { ticket, retryInMs = 0 } = refusal.details;
      if (ticket === undefined)
        throw new Error(`no ticket at attempt ${attempts}: ${JSON.stringify(refusal.details)}`);
      const lateMs = (random.next() - 0.5) * 400;
      await new Promise<void>(
        (resolve) => void clock.outside(clock.monotonic() + retryInMs + lateMs, resolve),
      );
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
  const patient = async (): Promise<void> => {
    while (!isOver)
      await attempt({ ...terms(600_000), lane: crowd?.lane ?? '', workspace: crowd?.workspace ?? '' }, null);
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
  return {
    returned: returned.filter((at) => at !== undefined),
    refusedAgain,
    void: isVoid,
    expected,
    sent,
    maxWaiting,
  };
}

/** Which part of the quota was used while clients came back. */
function usedOf(sent: Outcome['sent']): number {
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
      const { returned, refusedAgain, expected, sent, maxWaiting } = await run({
        seed,
        ceiling,
        lost: 0,
        crowd: null,
      });
      expect(refusedAgain).toBe(0);
      expect(returned).toHaveLength(expected);
      expect(returned.toSorted((one, other) => one - other)).toEqual(returned);
      expect((sent.at(-1)?.at ?? Infinity) / idealMs).toBeLessThanOrEqual(1.02);
      expect(maxWaiting).toBeLessThanOrEqual(5);
    });

    test.each([
      ['their workspace', 'reserving', null],
      ['another workspace', 'other', null],
    ])('of which 30 %% never come back, leave the rest to calls of %s', async (_, lane, ceiling) => {
      const crowd = { waiting: 40, lane, workspace: lane };
      const { returned, refusedAgain, expected, sent } = await run({ seed, ceiling, lost: 0.3, crowd });
      expect(usedOf(sent)).toBeGreaterThanOrEqual(0.95);
      expect(returned).toHaveLength(expected);
      expect(refusedAgain).toBe(0);
    });

    // A slot that was kept in vain is used ten seconds later, and comes free that much later in the next minute.
    test('of which 30 % never come back, leave the rest under a ceiling but for these ten seconds of a minute', async () => {
      const crowd = { waiting: 40, lane: 'reserving', workspace: 'reserving' };
      const { returned, refusedAgain, expected, sent } = await run({
        seed,
        ceiling: perMinute,
        lost: 0.3,
        crowd,
      });
      expect(usedOf(sent)).toBeGreaterThanOrEqual(1 - 0.3 * (10 / 60) - 0.02);
      expect(returned).toHaveLength(expected);
      expect(refusedAgain / expected).toBeLessThanOrEqual(0.03);
    });

    test('keep their tickets while the upstream closes again and again, and none is sent twice', async () => {
      const closings = { everyMs: 40_000, forMs: 15_000 };
      const result = await run({
        seed,
        ceiling: null,
        lost: 0.1,
        crowd: { waiting: 10, lane: 'other', workspace: 'other' },
        closings,
      });
      expect(result.returned).toHaveLength(result.expected);
      expect(result.void).toBe(0);
      expect(result.sent.filter(({ name }) => name === 'reserving')).toHaveLength(
        perMinute + result.expected,
      );
    });
  },
);
