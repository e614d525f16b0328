import { expect, test } from '@jest/globals';
import { ticketId, type LeaseToken } from '../../../src/ids.ts';
import type { Costs } from '../../../src/call.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { serviceCost } from '../../../src/limiter/policy/waiting-costs.policy.ts';
import type { StoredAdmission } from '../../../src/limiter/policy/bucket-events.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { Effects } from '../../../src/limiter/policy/pump.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { admit, call, newBucket, replica, tick } from './scheduling.ts';
import type { AdmissionOptions } from '../../support/admission.ts';

const windowMs = 60_000;
const limits = { requests: 500, tokens: 30_000 };
const meters = [
  { meter: 'requests', limit: limits.requests, windowMs },
  { meter: 'tokens', limit: limits.tokens, windowMs },
] as const;

const of = (ticket: string, options: AdmissionOptions): StoredAdmission => ({
  ...call(ticket, options),
  setting: { meters, learn: true, probe: 0 },
});

interface Crowd {
  readonly lane: string;
  readonly weight?: number;
  readonly tokens: number;
  /** The number of calls that the lane keeps waiting. */
  readonly calls: number;
}

/** Tokens per minute and lane, after the first two minutes; each lane enters a call as soon as one of its calls was served. */
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
      take(settle(bucket, { lease, settlement: { kind: 'succeeded', spent: null }, lesson: null }, now));
      enter(crowd);
    }
  };
  for (const crowd of crowds) for (let at = 0; at < crowd.calls; at += 1) enter(crowd);
  while (now < from + (minutes + 2) * windowMs) {
    now += 100;
    take(tick(bucket, { replica, leases: [] }, now));
  }
  return Object.fromEntries(Object.entries(used).map(([lane, tokens]) => [lane, tokens / minutes]));
}

atOrigins('fair sharing between lanes', (instant) => {
  test.each([1_000, 10_000, 30_000, 1_000_000])(
    'gives a lane of small calls half of the tokens beside calls of %i tokens',
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

  test('follows the weights, whatever calls cost', () => {
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

  test('counts the meter that a call keeps busy longest: two lanes with different bottlenecks both use theirs', () => {
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

atOrigins('the service cost of a call', (instant) => {
  const bucket = newBucket(instant);
  admit(bucket, of('a', { costs: { requests: 1, tokens: 1, requests_day: 1 } }), replica, instant(1_000));
  const day = bucket.meters.get('requests_day');
  if (day !== undefined) Object.assign(day, { limit: 10, windowMs: 86_400_000 });

  test.each<[what: string, costs: Costs, ms: number]>([
    ['a plain call', { requests: 1 }, 120],
    ['a call with few tokens', { requests: 1, tokens: 10 }, 120],
    ['a call with many tokens', { requests: 1, tokens: 15_000 }, 30_000],
    ['a call of more than the limit', { requests: 1, tokens: 1e15 }, windowMs],
    ['a call of a daily meter', { requests: 1, requests_day: 1 }, 120],
    ['a call of a meter whose limit is unknown', { images: 7 }, 1],
    ['a call that costs nothing', {}, 1],
  ])('is the time for which its most used meter is busy: %s', (_what, costs, ms) => {
    expect(serviceCost(bucket, costs)).toBe(ms);
  });

  test('is charged once to a lane, however many of its grants come back', () => {
    const grants = [];
    const line = newBucket(instant);
    const enter = (id: string, tokens: number): Effects =>
      admit(line, of(id, { lane: id.slice(0, 1), costs: { requests: 1, tokens } }), replica, instant(1_000))
        .effects;
    for (const id of ['a0', 'a1', 'a2']) grants.push(...enter(id, 10_000).grants);
    for (const id of ['a3', 'a4']) enter(id, 10_000);
    for (let at = 0; at < 150; at += 1) enter(`b${at}`, 100);
    const order = grants.flatMap(({ lease }) =>
      settle(line, { lease, settlement: { kind: 'dropped' }, lesson: null }, instant(1_000)).grants.map(
        ({ ticket }) => ticket.slice(0, 1),
      ),
    );
    // A large call counts as a hundred small ones; three large ones that come back do not go ahead of them three times.
    expect(order.indexOf('a')).toBe(100);
  });
});

atOrigins('the forecast', (instant) => {
  /** The forecast and the actual wait of an arriving call of `own` tokens; `ahead` calls wait in its lane, `calls` in another. */
  const forecastAndActual = (
    own: number,
    ahead: number,
    elsewhere: number,
    calls: number,
  ): [number, number] => {
    const bucket: Bucket = newBucket(instant);
    const leases: LeaseToken[] = [];
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
    const forecastMs = forecast(bucket, ticketId('x'), start)?.waitMs ?? -1;
    for (let now = start; ; now += 50) {
      const { grants } = tick(bucket, { replica, leases }, now);
      leases.push(...grants.map(({ lease }) => lease));
      if (grants.some(({ ticket }) => ticket === 'x')) return [forecastMs, now - start];
    }
  };

  test.each([
    ['one small call, large ones elsewhere', 100, 0, 30_000, 4],
    ['many small calls, large ones elsewhere', 100, 99, 30_000, 4],
    ['one large call, small ones elsewhere', 30_000, 0, 100, 300],
    ['a second large call, small ones elsewhere', 15_000, 1, 100, 300],
    ['equal calls', 1_000, 5, 1_000, 20],
  ])('is close to the actual wait for %s', (_what, own, ahead, elsewhere, calls) => {
    const [forecastMs, actualMs] = forecastAndActual(own, ahead, elsewhere, calls);
    // The margin is one call of the smaller size on each side, and the rest of a meter that was left empty.
    const roundMs = (2 * Math.min(own, elsewhere) * windowMs) / limits.tokens + 1_100;
    expect(Math.abs(forecastMs - actualMs)).toBeLessThanOrEqual(roundMs);
  });
});
