/**
 * Upstreams whose windows are not configured, on virtual time: the embedded limiter learns them from responses, as stated in
 * fields. Calls leave at the upstream's rate, few are throttled while it learns, and no call that can wait is refused.
 */
import { describe, expect, test } from '@jest/globals';
import { learnFrom } from '../../src/dispatch/feedback/learn-from.policy.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../src/limiter/over-log/limiter.ts';
import { admission } from '../support/admission.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { origins } from '../support/origins.ts';

/** One window of an upstream: it begins with the first call in it. */
class FixedWindow {
  readonly limit: number;
  readonly windowMs: number;
  #endsAt = 0;
  #used = 0;

  constructor(limit: number, windowMs: number) {
    this.limit = limit;
    this.windowMs = windowMs;
  }

  /** Milliseconds until the window ends; it begins anew when it has. */
  leftMs(now: number): number {
    if (now >= this.#endsAt) {
      this.#endsAt = now + this.windowMs;
      this.#used = 0;
    }
    return this.#endsAt - now;
  }

  get hasRoom(): boolean {
    return this.#used < this.limit;
  }

  get remaining(): number {
    return this.limit - this.#used;
  }

  take(): void {
    this.#used += 1;
  }
}

interface World {
  readonly windows: readonly FixedWindow[];
  /** The fields in which the upstream states its windows. */
  readonly fields: (windows: readonly FixedWindow[], now: number) => Readonly<Record<string, string>>;
  readonly calls: number;
  readonly maxWaitMs: number;
}

interface Outcome {
  /** Arrivals that were let in, milliseconds since the first. */
  readonly served: readonly number[];
  /** Arrivals that the upstream refused, milliseconds since the first. */
  readonly throttled: readonly number[];
  readonly refused: number;
}

const wayMs = 2;
const serviceMs = 8;

async function run({ windows, fields, calls, maxWaitMs }: World, originMs: number): Promise<Outcome> {
  const clock = new FakeClock();
  const own = shiftedClock(clock, originMs);
  const served: number[] = [];
  const throttled: number[] = [];
  let refused = 0;

  const respond = (grant: Grant, status: number, stated: ReadonlyMap<string, string>): void => {
    const facts = {
      status,
      fields: stated,
      body: null,
      callClass: 'default',
      method: 'GET',
      path: '/',
    } as const;
    const feedback = learnFrom('generic', { ...facts, nowMs: 0 });
    const lesson = { feedback, sentAgoMs: 2 * wayMs + serviceMs, headAgoMs: 0 };
    const waitMs = feedback.throttle?.waitMs ?? 0;
    const settlement =
      status === 429
        ? ({ kind: 'throttled', closeMs: waitMs, requeue: true, sleepMs: 0 } as const)
        : ({ kind: 'succeeded', spent: null } as const);
    void limiter.settle(grant, settlement, lesson);
  };
  const send = (grant: Grant): void => {
    clock.outside(clock.monotonic() + wayMs, () => {
      const now = clock.monotonic();
      const leftMs = Math.max(
        ...windows.map((window) => (window.leftMs(now), window.hasRoom ? 0 : window.leftMs(now))),
      );
      (leftMs > 0 ? throttled : served).push(now);
      if (leftMs === 0) for (const window of windows) window.take();
      const retry = leftMs > 0 ? { 'retry-after': String(Math.ceil(leftMs / 1_000)) } : {};
      const stated = new Map(Object.entries({ ...fields(windows, now), ...retry }));
      clock.outside(now + serviceMs + wayMs, () => respond(grant, leftMs > 0 ? 429 : 200, stated));
    });
  };
  const limiter = createEmbeddedLimiter(own, { onGrant: send, onClosed() {} });
  const enter = (ticket: string, arrivedAt: number): void => {
    void limiter.admit(admission(ticket, { maxQueued: 1_000, maxWaitMs, arrivedAt })).then((reply) => {
      if (reply.kind === 'granted') send(reply.grant);
      else if (reply.kind === 'refused') refused += 1;
    });
  };
  for (let n = 0; n < calls; n += 1) {
    clock.outside(n, () => enter(`t${String(n).padStart(4, '0')}`, own.monotonic()));
  }
  // These calls can wait, and come while others wait.
  for (const at of [1_500, 2_500]) clock.outside(at, () => enter(`late${at}`, own.monotonic()));
  await clock.run(7_200_000);
  const first = Math.min(...served, ...throttled);
  return { served: served.map((at) => at - first), throttled: throttled.map((at) => at - first), refused };
}

const plain: World['fields'] = ([window], now) => ({
  'x-ratelimit-limit': String(window?.limit),
  'x-ratelimit-remaining': String(window?.remaining),
  'x-ratelimit-reset': String(Math.ceil((window?.leftMs(now) ?? 0) / 1_000)),
});

const listed: World['fields'] = (windows) => ({
  'ratelimit-policy': windows
    .map(({ limit, windowMs }, n) => `"w${n}";q=${limit};w=${windowMs / 1_000}`)
    .join(', '),
  ratelimit: windows.map(({ remaining }, n) => `"w${n}";r=${remaining}`).join(', '),
});

describe.each(origins)('an upstream with windows that are not configured, on $name', ({ ms }) => {
  test.each([
    [1, 10],
    [2, 10],
    [10, 20],
    [60, 30],
  ])(
    'whose window is %d s of the clock, is paced by what its responses say is left',
    async (seconds, limit) => {
      const windows = [new FixedWindow(limit, seconds * 1_000)];
      const calls = 4 * limit;
      const { served, throttled, refused } = await run({ windows, fields: plain, calls, maxWaitMs: 1e9 }, ms);
      expect(refused).toBe(0);
      expect(served).toHaveLength(calls + 2);
      // The first calls are sent as they come; then at most one call per window is throttled because a window does not drain.
      const windowsNeeded = Math.ceil(served.length / limit);
      // Times are stated in whole seconds, so up to one second is lost where a window begins.
      expect(served.at(-1)).toBeLessThanOrEqual((windowsNeeded - 1) * (seconds * 1_000 + 1_000));
      expect(throttled.filter((at) => at > seconds * 1_000).length).toBeLessThanOrEqual(windowsNeeded - 1);
    },
  );

  test('with several windows at once, is paced by all of them', async () => {
    const windows = [new FixedWindow(5, 1_000), new FixedWindow(30, 60_000)];
    const { served, throttled, refused } = await run(
      { windows, fields: listed, calls: 60, maxWaitMs: 1e9 },
      ms,
    );
    expect(refused).toBe(0);
    expect(served).toHaveLength(62);
    for (const [windowMs, max] of [
      [1_000, 10],
      [60_000, 60],
    ] as const) {
      const busiest = Math.max(
        ...served.map((from) => served.filter((at) => at >= from && at < from + windowMs).length),
      );
      expect(busiest).toBeLessThanOrEqual(max);
    }
    // Calls in transit before the first response may be throttled, and at most one for each full window of a second.
    expect(throttled.filter((at) => at > 1_000).length).toBeLessThanOrEqual(62 / 5);
    // 30 calls in each of the first two minutes, the last two at the beginning of the third.
    expect(served.at(-1)).toBeLessThanOrEqual(120_000 * 1.02);
  });
});
