/** The admission queue when only a response states what calls cost: what it adds to the limiter, on virtual time. */
import { expect, test } from '@jest/globals';
import type { Lease } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

/** A bucket of 1,000 points, of which 100 drain each second; the estimate for every call is 50. */
function world() {
  const clock = new FakeClock();
  const story: string[] = [];
  const leases = new Map<string, Lease>();
  const gone = new Map<string, AbortController>();
  const refusals = new Map<string, Refusal>();
  const { queue, limiter } = embeddedQueue({
    clock,
    onFailure: (failure) => story.push(`bug ${String(failure)}`),
  });
  const setting = {
    meters: [{ meter: 'cost' as const, limit: 1_000, windowMs: 10_000 }],
    learn: true,
    probe: 0,
  };
  const follow = async (id: string, options: CallOptions): Promise<void> => {
    const leaves = new AbortController();
    gone.set(id, leaves);
    const asked = { setting, costs: { cost: 50 }, maxWaitMs: 100_000, ...options, clientGone: leaves.signal };
    try {
      const ticket = await queue.enter(...callOf(clock, id, asked));
      leases.set(id, await ticket.whenGranted());
      story.push(id);
    } catch (failure) {
      if (failure instanceof Refusal) refusals.set(id, failure);
      story.push(`${id} ${failure instanceof Refusal ? failure.code : String(failure)}`);
    }
  };
  return {
    story,
    gone,
    limiter,
    refusals,
    enter: (id: string, options: CallOptions = {}): void => void follow(id, options),
    /** The response to this call states the cost of its document. */
    respond(id: string, requestedCost: number): void {
      const feedback = { meters: [], throttle: null, requestedCost };
      const lesson = { feedback, sentAgoMs: 1, headAgoMs: 0 };
      leases.get(id)?.settle({ kind: 'succeeded', spent: null }, lesson);
    },
    async pass(ms: number): Promise<void> {
      const until = clock.monotonic() + ms;
      clock.outside(until, () => {});
      await clock.run(until);
    },
  };
}

test('waiting calls whose learned cost makes them too late are refused at once, with cost as the reason', async () => {
  const { enter, pass, story, respond, refusals } = world();
  enter('a', { document: 'd', maxInFlight: 1 });
  enter('b', { document: 'd', maxInFlight: 1 });
  enter('c', { document: 'd', maxInFlight: 1, maxWaitMs: 3_000 });
  enter('d', { document: 'another', maxInFlight: 1, maxWaitMs: 3_000, lane: 'other' });
  await pass(10);
  expect(story).toEqual(['a', 'd']);
  respond('a', 900);
  await pass(1);
  expect(story).toEqual(['a', 'd', 'c wait_too_long', 'b']);
  expect(refusals.get('c')?.details.heldBy).toBe('cost');
  expect(refusals.get('c')?.details.retryInMs).toBeGreaterThan(8_000);
});

test('waiting calls are not checked again when their document costs no more than estimated', async () => {
  const { enter, pass, story, respond, limiter } = world();
  let asked = 0;
  const { forecast } = limiter;
  Object.assign(limiter, {
    forecast: (...args: Parameters<typeof forecast>) => {
      asked += 1;
      return forecast(...args);
    },
  });
  for (const id of ['a', 'b', 'c']) enter(id, { document: 'd', maxInFlight: 1 });
  await pass(10);
  respond('a', 50);
  await pass(1);
  expect([story, asked]).toEqual([['a', 'b'], 0]);
});

test('calls that wait for the cost of their document take no slot of the ceiling before they leave', async () => {
  const { enter, pass, story, respond } = world();
  enter('a', { document: 'd', perMinute: 3 });
  enter('b', { document: 'd', perMinute: 3 });
  enter('c', { perMinute: 3 });
  enter('d', { perMinute: 3 });
  await pass(3_000);
  respond('a', 20);
  await pass(10);
  expect(story).toEqual(['a', 'b', 'c']);
  // The slot of `a` frees one window after it left; those of `b` and `c`, which left 3 s later, free after that.
  await pass(57_200);
  expect(story).toEqual(['a', 'b', 'c', 'd']);
});

test('a call does not wait for the cost of its document from a call whose ceiling has no slot', async () => {
  const { enter, pass, story } = world();
  enter('full', { lane: 'one', workspace: 'one', perMinute: 1 });
  enter('a', { document: 'd', lane: 'one', workspace: 'one', perMinute: 1 });
  await pass(10);
  enter('b', { document: 'd', lane: 'two', workspace: 'two' });
  await pass(1);
  expect(story).toEqual(['full', 'b']);
});

test('a call that leaves while it waits for the cost of its document gives everything back', async () => {
  const { enter, pass, story, gone, limiter, respond } = world();
  enter('a', { document: 'd' });
  enter('b', { document: 'd' });
  enter('free');
  await pass(10);
  expect(story).toEqual(['a']);
  gone.get('b')?.abort();
  await pass(1);
  expect(story).toEqual(['a', expect.stringContaining('b '), 'free']);
  expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 2 }]);
  respond('a', 20);
});
