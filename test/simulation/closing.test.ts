/**
 * An upstream that closes for everybody in the middle of a steady load, on virtual time: what it says of its meters then is
 * far above what the limiter knew, and must not be taken for use of the quota by others.
 */
import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../src/limiter/over-log/limiter.ts';
import { admission } from '../support/admission.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { origins } from '../support/origins.ts';
import { shiftedClock } from '../support/shifted-clock.ts';

const limit = 6_000;
const closesAt = 58_000;
const opensAt = 70_000;
const responseMs = 20;

/** What the upstream reports for a call that arrived at `at`. Milliseconds. */
function feedbackAt(at: number): { readonly status: number; readonly feedback: Feedback } {
  const isClosed = at >= closesAt && at < opensAt;
  const leftMs = opensAt - at;
  const fields = isClosed
    ? {
        'x-ratelimit-limit-requests': String(limit),
        'x-ratelimit-remaining-requests': '0',
        'x-ratelimit-reset-requests': `1m${((leftMs + 60_000) / 1_000 - 60).toFixed(1)}s`,
        'retry-after-ms': String(leftMs),
      }
    : {
        'x-ratelimit-limit-requests': String(limit),
        'x-ratelimit-remaining-requests': String(limit - 1),
        'x-ratelimit-reset-requests': '10ms',
      };
  const status = isClosed ? 429 : 200;
  const message = `Rate limit reached for m on requests per min (RPM): Limit ${limit}, Used ${limit}, Requested 1.`;
  const error = JSON.stringify({ error: { message, type: 'requests', code: 'rate_limit_exceeded' } });
  const body = isClosed ? error : null;
  const facts = {
    status,
    fields: new Map(Object.entries(fields)),
    body,
    callClass: 'default',
  } as const;
  return {
    status,
    feedback: learnFrom('language-model', { ...facts, nowMs: 0 }),
  };
}

/** A number of calls that come at one time. Milliseconds. */
type Crowd = readonly [at: number, calls: number];

/** A call every half second while the upstream is open. */
const steady: readonly Crowd[] = Array.from({ length: 116 }, (_, n) => [n * 500, 1] as const);

/** Arrivals at the upstream. */
async function run(originMs: number, crowds: readonly Crowd[]): Promise<readonly number[]> {
  let entered = 0;
  const clock = new FakeClock();
  const own = shiftedClock(clock, originMs);
  const arrivals: number[] = [];
  const send = (grant: Grant): void => {
    const sentAt = clock.monotonic();
    arrivals.push(sentAt);
    clock.outside(sentAt + responseMs, () => {
      const { status, feedback } = feedbackAt(sentAt);
      const lesson = { feedback, sentAgoMs: responseMs, headAgoMs: 0 };
      const closeMs = feedback.throttle?.waitMs ?? 0;
      const again = { kind: 'throttled', closeMs, requeue: true, sleepMs: 0 } as const;
      void limiter.settle(grant, status === 429 ? again : { kind: 'succeeded', spent: null }, lesson);
    });
  };
  const limiter = createEmbeddedLimiter(own, { onGrant: send, onClosed() {} });
  const enter = (n: number): void => {
    const ticket = `t${String(n).padStart(4, '0')}`;
    const options = { limit, windowMs: 60_000, maxQueued: 1_000, maxWaitMs: 1e9, arrivedAt: own.monotonic() };
    void limiter.admit(admission(ticket, options)).then((reply) => {
      if (reply.kind === 'granted') send(reply.grant);
    });
  };
  for (const [at, calls] of crowds) {
    for (let n = 0; n < calls; n += 1) clock.outside(at, () => enter(entered++));
  }
  await clock.run(200_000);
  return arrivals;
}

describe.each(origins)('after an upstream was closed, on $name', ({ ms }) => {
  test.each<[string, readonly Crowd[]]>([
    ['under steady load, with a burst as it closes', [...steady, [closesAt + 5, 100]]],
    [
      'with one burst before and one while it is closed',
      [
        [0, 120],
        [60_150, 120],
      ],
    ],
    [
      'with one call that finds it closed after a minute without any',
      [
        [0, 120],
        [60_150, 1],
        [60_400, 119],
      ],
    ],
    [
      'with a few calls before and a burst while it is closed',
      [
        [57_900, 5],
        [closesAt + 1_000, 150],
      ],
    ],
  ])('%s, sending goes on at the stated time and at the rate of the meter', async (_what, crowds) => {
    const arrivals = await run(ms, crowds);
    const after = arrivals.filter((at) => at >= opensAt);
    expect(after[0]).toBeLessThanOrEqual(opensAt + 50);
    // Waiting calls leave at 100 a second.
    const waited = crowds.at(-1)?.[1] ?? 0;
    expect(after.length).toBeGreaterThanOrEqual(waited);
    expect((after[waited - 1] ?? 0) - opensAt).toBeLessThanOrEqual(waited * 10 + 100);
    const first = arrivals.find((at) => at >= closesAt) ?? 0;
    expect(arrivals.filter((at) => at > first + responseMs && at < opensAt)).toEqual([]);
  });
});
