import { expect, test } from '@jest/globals';
import type { Costs } from '../../src/call.ts';
import type { Bucket } from '../../src/limiter/policy/bucket-state.policy.ts';
import { turnOf } from '../../src/limiter/policy/lanes.policy.ts';
import type { Admission } from '../../src/limiter/limiter.ts';
import { forecast, settle, tick, type Effects } from '../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins, type Instant } from './at-origins.ts';
import { admit, call, newBucket, replica, type Wish } from './scheduling.ts';

const windowMs = 60_000;
const limits = { requests: 500, tokens: 30_000 };
const meters = [
  { meter: 'requests', limit: limits.requests, windowMs },
  { meter: 'tokens', limit: limits.tokens, windowMs },
] as const;

const of = (ticket: string, wish: Wish): Admission => ({
  ...call(ticket, wish),
  setting: { meters, learn: true, probe: 0 },
});

interface Crowd {
  readonly lane: string;
  readonly weight?: number;
  readonly tokens: number;
  /** Calls that it keeps waiting. */
  readonly calls: number;
}

/** Everybody enters a call again as soon as one was served. Tokens per minute and lane, after the first two minutes. */
function tokensPerMinute(
  instant: Instant,
  crowds: readonly Crowd[],
  minutes: number,
): Record<string, number> {
  const bucket = newBucket(instant);
  const whose = new Map<string, Crowd>();
  const used: Record<string, number> = Object.fromEntries(crowds.map(({ lane }) => [lane, 0]));
  const from = instant(1_000_000);
  let now = from;
  const enter = (crowd: Crowd): void => {
    const id = `t${whose.size}`;
    whose.set(id, crowd);
    const { lane, weight = 1, tokens } = crowd;
    take(admit(bucket, of(id, { lane, weight, costs: { requests: 1, tokens } }), replica, now).effects);
  };
  const take = ({ grants }: Effects): void => {
    for (const { ticket, lease } of grants) {
      const crowd = whose.get(ticket);
      if (crowd === undefined) throw new Error(ticket);
      if (now > from + 2 * windowMs) used[crowd.lane] = (used[crowd.lane] ?? 0) + crowd.tokens;
      take(settle(bucket, lease, { kind: 'succeeded', spent: null }, null, now));
      enter(crowd);
    }
  };
  for (const crowd of crowds) for (let at = 0; at < crowd.calls; at += 1) enter(crowd);
  while (now < from + (minutes + 2) * windowMs) {
    now += 100;
    take(tick(bucket, replica, [], now));
  }
  return Object.fromEntries(Object.entries(used).map(([lane, tokens]) => [lane, tokens / minutes]));
}

atOrigins('a share', (instant) => {
  test.each([1_000, 10_000, 30_000, 1_000_000])(
    'is half of the tokens against calls of %i tokens',
    (tokens) => {
      const taken = Math.min(tokens, limits.tokens);
      const used = tokensPerMinute(
        instant,
        [
          { lane: 'big', tokens: taken, calls: 4 },
          { lane: 'small', tokens: 100, calls: 20 },
        ],
        20,
      );
      expect(used['small']).toBeGreaterThan(14_000);
      expect(used['small']).toBeLessThan(16_500);
      expect(used['big']).toBeGreaterThan(13_500);
    },
  );

  test('follows the weight, whatever calls cost', () => {
    const used = tokensPerMinute(
      instant,
      [
        { lane: 'big', weight: 1, tokens: 10_000, calls: 4 },
        { lane: 'small', weight: 3, tokens: 100, calls: 20 },
      ],
      40,
    );
    const ratio = (used['small'] ?? 0) / (used['big'] ?? 0);
    expect(ratio).toBeGreaterThan(2.7);
    expect(ratio).toBeLessThan(3.3);
  });

  test('counts what is dearest: two meters, of which two lanes need one each, are both used', () => {
    const used = tokensPerMinute(
      instant,
      [
        { lane: 'big', tokens: 30_000, calls: 4 },
        { lane: 'tiny', tokens: 1, calls: 400 },
      ],
      20,
    );
    expect(used['tiny']).toBeGreaterThan(240);
    expect(used['big']).toBeGreaterThan(14_000);
  });
});

atOrigins('a turn', (instant) => {
  const bucket = newBucket(instant);
  admit(bucket, of('a', { costs: { requests: 1, tokens: 1, requests_day: 1 } }), replica, instant(1_000));
  const day = bucket.meters.get('requests_day');
  if (day !== undefined) Object.assign(day, { limit: 10, windowMs: 86_400_000 });

  test.each<[what: string, costs: Costs, ms: number]>([
    ['a plain call', { requests: 1 }, 120],
    ['a call with few tokens', { requests: 1, tokens: 10 }, 120],
    ['a call with many tokens', { requests: 1, tokens: 15_000 }, 30_000],
    ['more than the limit', { requests: 1, tokens: 1e15 }, windowMs],
    ['a day', { requests: 1, requests_day: 1 }, 120],
    ['a meter of which nobody knows the limit', { images: 7 }, 1],
    ['nothing', {}, 1],
  ])('is the time for which its dearest meter is busy: %s', (_what, costs, ms) => {
    expect(turnOf(bucket, costs)).toBe(ms);
  });

  test('is at most one, however many grants come back', () => {
    const grants = [];
    const line = newBucket(instant);
    const enter = (id: string, tokens: number): Effects =>
      admit(line, of(id, { lane: id.slice(0, 1), costs: { requests: 1, tokens } }), replica, instant(1_000))
        .effects;
    for (const id of ['a0', 'a1', 'a2']) grants.push(...enter(id, 10_000).grants);
    for (const id of ['a3', 'a4']) enter(id, 10_000);
    for (let at = 0; at < 150; at += 1) enter(`b${at}`, 100);
    const order = grants.flatMap(({ lease }) =>
      settle(line, lease, { kind: 'dropped' }, null, instant(1_000)).grants.map(({ ticket }) =>
        ticket.slice(0, 1),
      ),
    );
    // A large call takes the turn of a hundred small ones; three that come back do not go ahead of them three times.
    expect(order.indexOf('a')).toBe(100);
  });
});

atOrigins('the forecast', (instant) => {
  /** What a newcomer of `own` tokens is told, and when it goes, with both lanes of `elsewhere` and its own in line. */
  const toldAndTrue = (own: number, ahead: number, elsewhere: number, calls: number): [number, number] => {
    const bucket: Bucket = newBucket(instant);
    const leases: string[] = [];
    const start = instant(1_000_000);
    const enter = (id: string, lane: string, tokens: number): void => {
      const { grants } = admit(
        bucket,
        of(id, { lane, costs: { requests: 1, tokens } }),
        replica,
        start,
      ).effects;
      leases.push(...grants.map(({ lease }) => lease));
    };
    enter('full', 'z', 30_000);
    for (let at = 0; at < calls; at += 1) enter(`o${at}`, 'other', elsewhere);
    for (let at = 0; at < ahead; at += 1) enter(`m${at}`, 'mine', own);
    enter('x', 'mine', own);
    const told = forecast(bucket, 'x', start)?.waitMs ?? -1;
    for (let now = start; ; now += 50) {
      const { grants } = tick(bucket, replica, leases, now);
      leases.push(...grants.map(({ lease }) => lease));
      if (grants.some(({ ticket }) => ticket === 'x')) return [told, now - start];
    }
  };

  test.each([
    ['one small call, large ones elsewhere', 100, 0, 30_000, 4],
    ['many small calls, large ones elsewhere', 100, 99, 30_000, 4],
    ['one large call, small ones elsewhere', 30_000, 0, 100, 300],
    ['a second large call, small ones elsewhere', 15_000, 1, 100, 300],
    ['equal calls', 1_000, 5, 1_000, 20],
  ])('is neither hopeful nor gloomy: %s', (_what, own, ahead, elsewhere, calls) => {
    const [told, actual] = toldAndTrue(own, ahead, elsewhere, calls);
    // A call of the smaller size on each side, and the rest of a meter that left empty.
    const roundMs = (2 * Math.min(own, elsewhere) * windowMs) / limits.tokens + 1_100;
    expect(Math.abs(told - actual)).toBeLessThanOrEqual(roundMs);
  });
});
