/**
 * Three minutes of clients that ask again at once, whatever `Retry-After` says, on virtual time, over the embedded stores:
 * what they cost the upstream and another workspace of the same bucket.
 */
import { expect, test } from '@jest/globals';
import { Refusal } from '../../src/errors.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const minuteMs = 60_000;
const loadMs = 3 * minuteMs;
/** The crowd's ceiling; the bucket has room for it and for the other workspace. */
const perMinute = 60;
const responseMs = 200;
/** From a refusal until the same client asks again: the way there and back. */
const wayMs = 200;

interface Seen {
  readonly sent: { readonly at: number; readonly lane: string }[];
  readonly otherWaits: number[];
  refusals: number;
  /** Refusals that named an earlier time than the one before them had, or a time that had passed. */
  tooEarly: number;
}

/** `clients` of the workspace `crowd` ask without a pause; `other` sends a call every two seconds. */
async function minutesOf(clients: number): Promise<Seen> {
  const clock = new FakeClock();
  const seen: Seen = { sent: [], otherWaits: [], refusals: 0, tooEarly: 0 };
  const { queue } = embeddedQueue({ clock });
  let calls = 0;
  /** Resolves with `null` when the call was sent, else with its refusal, as the journey makes both. */
  const send = async (lane: string, options: CallOptions): Promise<Refusal | null> => {
    calls += 1;
    const [request, clientGone] = callOf(clock, `c${calls}`, {
      limit: 4 * perMinute,
      windowMs: minuteMs,
      lane,
      workspace: lane,
      ...options,
    });
    try {
      const ticket = await queue.enter(request, clientGone);
      const lease = await ticket.whenGranted();
      seen.sent.push({ at: clock.monotonic(), lane });
      clock.outside(clock.monotonic() + responseMs, () => {
        lease.settle({ kind: 'succeeded', spent: null }, null);
        ticket.leave();
      });
      return null;
    } catch (failure) {
      if (!(failure instanceof Refusal)) throw failure;
      return failure;
    }
  };
  const insist = async (promised: number): Promise<void> => {
    const now = clock.monotonic();
    if (now >= loadMs) return;
    const refusal = await send('crowd', { perMinute, maxWaitMs: 2_000 });
    const readyAt = clock.monotonic() + (refusal?.details.retryInMs ?? 0);
    if (refusal !== null) {
      seen.refusals += 1;
      if (readyAt < promised - 1 || (refusal.details.retryInMs ?? 0) <= 0) seen.tooEarly += 1;
    }
    const next = refusal === null ? 0 : readyAt;
    clock.outside(clock.monotonic() + (refusal === null ? responseMs : wayMs), () => void insist(next));
  };
  for (let n = 0; n < clients; n += 1) clock.outside(n, () => void insist(0));
  for (let at = 1_000; at < loadMs + minuteMs; at += 2_000) {
    clock.outside(at, () => {
      void send('other', { perMinute, maxWaitMs: 60_000 }).then((refusal) => {
        seen.otherWaits.push(refusal === null ? clock.monotonic() - at : Infinity);
      });
    });
  }
  // The load has fallen: a client that waits is served within a window.
  for (let n = 0; n < 10; n += 1) {
    clock.outside(
      loadMs + n * 1_000,
      () => void send('after', { workspace: 'crowd', perMinute, maxWaitMs: 75_000 }),
    );
  }
  await clock.run(loadMs + 2 * minuteMs);
  return seen;
}

const p95 = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.95)] ?? NaN;

/** Calls of one workspace in the busiest minute. */
function busiest(sent: readonly { readonly at: number }[]): number {
  const inMinute = (from: number): number =>
    sent.filter(({ at }) => at >= from && at < from + minuteMs).length;
  return Math.max(...sent.map(({ at }) => inMinute(at)));
}

test('a crowd that retries at once delays no other workspace, and is served once it stops', async () => {
  const crowd = await minutesOf(perMinute);
  const alone = await minutesOf(0);
  expect(crowd.refusals).toBeGreaterThan(40_000);
  expect(crowd.tooEarly).toBe(0);
  expect(busiest(crowd.sent.filter(({ lane }) => lane === 'crowd'))).toBe(perMinute);
  expect(p95(crowd.otherWaits)).toBeLessThanOrEqual(p95(alone.otherWaits) * 1.1);
  const after = crowd.sent.filter(({ lane }) => lane === 'after');
  expect(after).toHaveLength(10);
  // A ceiling counts up to a second longer than a minute.
  expect(Math.max(...after.map(({ at }) => at - loadMs))).toBeLessThanOrEqual(minuteMs + 1_000);
});
