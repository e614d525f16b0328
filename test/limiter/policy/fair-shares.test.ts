/** How lanes share a bucket whose calls differ in what they cost. */
import { expect, test } from '@jest/globals';
import type { Costs } from '../../../src/call.ts';
import { serviceCost } from '../../../src/limiter/policy/waiting-costs.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { dropped, names, TestBucket } from './scheduling.ts';

const windowMs = 60_000;
const limits = { requests: 500, tokens: 30_000 };
const meters = [
  { meter: 'requests', limit: limits.requests, windowMs },
  { meter: 'tokens', limit: limits.tokens, windowMs },
] as const;

const open = (instant: Instant): TestBucket =>
  new TestBucket(instant, { setting: { meters, learn: true, probe: 0 } }).at(1_000_000);
const tokens = (units: number) => ({ costs: { requests: 1, tokens: units } });

interface Crowd {
  readonly weight?: number;
  readonly tokens: number;
  /** The number of calls that the lane keeps waiting. */
  readonly calls: number;
}

/** Tokens per minute and lane, after the first two minutes; each lane enters a call as soon as one of its calls was served. */
function tokensPerMinute<Lane extends string>(
  instant: Instant,
  crowds: Readonly<Record<Lane, Crowd>>,
  minutes: number,
): Record<Lane, number> {
  const line = open(instant);
  const from = line.ms + 2 * windowMs;
  const used = new Map<string, number>();
  let calls = 0;
  const serve = (tickets: readonly string[]): void => {
    for (const ticket of tickets) {
      const lane = ticket.replace(/\d+$/, '') as Lane;
      if (line.ms > from) used.set(lane, (used.get(lane) ?? 0) + crowds[lane].tokens);
      serve(line.settle(ticket));
      enter(lane);
    }
  };
  const enter = (lane: Lane): void => {
    const { weight = 1, tokens: units } = crowds[lane];
    serve(line.enter([`${lane}${(calls += 1)}`], { lane, weight, ...tokens(units) }));
  };
  const lanes = Object.keys(crowds) as Lane[];
  for (const lane of lanes) for (const _call of names(crowds[lane].calls)) enter(lane);
  for (; line.ms < from + minutes * windowMs; line.ms += 100) serve(line.tick());
  return Object.fromEntries(lanes.map((lane) => [lane, (used.get(lane) ?? 0) / minutes])) as Record<
    Lane,
    number
  >;
}

atOrigins('fair sharing between lanes', (instant) => {
  test.each([1_000, 10_000, 30_000])(
    'gives a lane of small calls half of the tokens beside calls of %i',
    (units) => {
      const crowds = { big: { tokens: units, calls: 4 }, small: { tokens: 100, calls: 20 } };
      const { small, big } = tokensPerMinute(instant, crowds, 20);
      expect(small).toBeGreaterThan(14_000);
      expect(small).toBeLessThan(16_500);
      expect(big).toBeGreaterThan(13_500);
    },
  );

  test('follows the weights, whatever calls cost', () => {
    const crowds = { big: { tokens: 10_000, calls: 4 }, small: { weight: 3, tokens: 100, calls: 20 } };
    const { small, big } = tokensPerMinute(instant, crowds, 40);
    expect(small / big).toBeGreaterThan(2.7);
    expect(small / big).toBeLessThan(3.3);
  });

  test('counts the meter that a call keeps busy longest: two lanes with different bottlenecks both use theirs', () => {
    const crowds = { big: { tokens: 30_000, calls: 4 }, tiny: { tokens: 1, calls: 400 } };
    const { tiny, big } = tokensPerMinute(instant, crowds, 20);
    expect(tiny).toBeGreaterThan(240);
    expect(big).toBeGreaterThan(14_000);
  });
});

atOrigins('the service cost of a call', (instant) => {
  const line = open(instant);
  line.enter(['a'], { costs: { requests: 1, tokens: 1, requests_day: 1 } });
  Object.assign(line.meter('requests_day'), { limit: 10, windowMs: 86_400_000 });

  test.each<[what: string, costs: Costs, ms: number]>([
    ['a plain call', { requests: 1 }, 120],
    ['a call with few tokens', { requests: 1, tokens: 10 }, 120],
    ['a call with many tokens', { requests: 1, tokens: 15_000 }, 30_000],
    ['a call of more than the limit', { requests: 1, tokens: 1e15 }, windowMs],
    ['a call of a daily meter', { requests: 1, requests_day: 1 }, 120],
    ['a call of a meter whose limit is unknown', { images: 7 }, 1],
    ['a call that costs nothing', {}, 1],
  ])('is the time for which its most used meter is busy: %s', (_what, costs, ms) => {
    expect(serviceCost(line.bucket, costs)).toBe(ms);
  });

  test('is charged once to a lane, however many of its grants come back', () => {
    const line = open(instant);
    const sent = line.enter(names(5, 'a'), { lane: 'a', ...tokens(10_000) });
    line.enter(names(150, 'b'), { lane: 'b', ...tokens(100) });
    const order = sent.flatMap((ticket) => line.settle(ticket, dropped));
    // A large call counts as a hundred small ones; three large ones that come back do not go ahead of them three times.
    expect(order.findIndex((ticket) => ticket.startsWith('a'))).toBe(100);
  });
});

atOrigins('the forecast', (instant) => {
  test.each([
    ['one small call, large ones elsewhere', 100, 0, 30_000, 4],
    ['many small calls, large ones elsewhere', 100, 99, 30_000, 4],
    ['one large call, small ones elsewhere', 30_000, 0, 100, 300],
    ['a second large call, small ones elsewhere', 15_000, 1, 100, 300],
    ['equal calls', 1_000, 5, 1_000, 20],
  ])('is close to the actual wait for %s', (_what, own, ahead, elsewhere, calls) => {
    const line = open(instant);
    line.enter(['full'], { lane: 'z', ...tokens(30_000) });
    line.enter(names(calls, 'o'), { lane: 'other', ...tokens(elsewhere) });
    line.enter([...names(ahead, 'm'), 'x'], { lane: 'mine', ...tokens(own) });
    const told = line.ms + line.waitMs('x');
    // The margin is one call of the smaller size on each side, and the rest of a meter that was left empty.
    const roundMs = (2 * Math.min(own, elsewhere) * windowMs) / limits.tokens + 1_100;
    expect(Math.abs(told - line.leavesAt('x'))).toBeLessThanOrEqual(roundMs);
  });
});
