/** Calls whose cost only a response states: it holds for all that ask for the same, whichever replica learned it. */
import { expect, test } from '@jest/globals';
import type { Feedback, MeterName } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { replicaId } from '../../../src/ids.ts';
import { maxDocuments } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { done, names, TestBucket, throttled } from './scheduling.ts';

const guess = 50;
const other = replicaId('other');
const document = 'd';

/** A bucket of 1,000 points, of which 100 come back each second; every call is guessed at 50. */
class Shop extends TestBucket {
  /** The response states so many points, and what was charged. Returns who may leave now. */
  ends(ticket: string, points: number, charged?: number): string[] {
    const spent = charged === undefined ? null : { cost: charged };
    return this.settle(ticket, { ...done, spent }, this.lesson({ requestedCost: points }));
  }

  get level(): number {
    return this.meter('cost').level;
  }
}

atOrigins('calls whose cost only a response states', (instant) => {
  const meters = [{ meter: 'cost', limit: 1_000, windowMs: 10_000 }] as const;
  const open = (): Shop => new Shop(instant, { meters, callClass: 'graphql', costs: { cost: guess } });

  test('are charged the cost that another replica learned', () => {
    const shop = open();
    shop.enter(['a'], { document });
    shop.ends('a', 700);
    expect(shop.enter(['b', 'c'], { document }, other)).toEqual(['b']);
    expect(shop.level).toBe(guess + 700);
    // 450 of the used points have to drain before 700 have room.
    expect(shop.waitMs('c')).toBeGreaterThan(4_400);
    expect(shop.waitMs('c')).toBeLessThan(4_700);
  });

  test('are charged the newest cost, and only where they ask for the same', () => {
    const shop = open();
    shop.enter(['a'], { document });
    shop.learn('a', shop.lesson({ requestedCost: 600 }));
    shop.ends('a', 20);
    shop.enter(['b'], { document });
    shop.enter(['c'], { document: 'another' });
    expect(shop.level).toBe(guess + 20 + guess);
  });

  test('are sent when the bucket is empty, even if they cost more than it holds', () => {
    const shop = open();
    shop.enter(['a'], { document });
    shop.ends('a', 5_000);
    expect(shop.enter(['b'], { document })).toEqual([]);
    expect([...shop.run(2_000).keys()]).toEqual(['b']);
    expect(shop.level).toBeLessThanOrEqual(1_000);
  });

  // 40 points, of which 2 come back each second; a new document is guessed at 50.
  test.each([null, 1])(
    'and are new to a small bucket are not refused for a guess, with %s in flight',
    (maxInFlight) => {
      const meters = [{ meter: 'cost', limit: 40, windowMs: 20_000 }] as const;
      const of = { meters, maxInFlight, maxWaitMs: 75_000 };
      const shop = new Shop(instant, { ...of, callClass: 'graphql', costs: { cost: guess } });
      const left: string[] = [];
      for (const at of names(12).keys()) left.push(...shop.enter([`t${at}`], { document: `d${at}` }));
      expect(left).toEqual(['t0']);
      left.push(...shop.ends('t0', 3, 2));
      expect(shop.forecast('t11')?.waitMs ?? 0).toBe(0);
      for (const ticket of names(12).slice(1)) left.push(...shop.ends(ticket, 3, 2));
      expect(left).toEqual(names(12));
    },
  );

  test('are remembered for a thousand documents, those learned last', () => {
    const shop = open();
    const costs = { cost: 0.001 };
    for (let at = 0; at <= maxDocuments; at += 1) {
      shop.enter([`t${at}`], { document: `d${at}`, costs });
      shop.ends(`t${at}`, 1 + (at % 7));
    }
    const { documents } = shop.bucket;
    expect([documents.size, documents.has('d0'), documents.get('d1')]).toEqual([maxDocuments, false, 2]);
  });
});

const feedbackOf = (
  ...[provider, status, fields, body]: [Parameters<typeof learnFrom>[0], number, object, unknown]
): Feedback =>
  learnFrom(provider, {
    status,
    fields: new Map(Object.entries(fields)),
    body: JSON.stringify(body),
    callClass: provider === 'commerce' ? 'graphql' : 'default',
    nowMs: 0,
  });

/** The call asked for 400 points, 300 of 1,000 are free, and 50 drain each second. */
const throttleStatus = { maximumAvailable: 1000, currentlyAvailable: 300, restoreRate: 50 };
const cost = { requestedQueryCost: 400, actualQueryCost: null, throttleStatus };
const errors = [{ message: 'Throttled', extensions: { code: 'THROTTLED' } }];
const tooManyPoints = feedbackOf('commerce', 200, {}, { errors, extensions: { cost } });

/** The call asked for 12,528 tokens, and 7,001 of 30,000 are free: there is room in 11.054 s. */
const message =
  'Rate limit reached for gpt-5.1 in organization org-1 on tokens per min (TPM): Limit 30000, Used 22999, ' +
  'Requested 12528. Please try again in 11.054s.';
const tokenFields = {
  'x-ratelimit-limit-tokens': '30000',
  'x-ratelimit-remaining-tokens': '7001',
  'x-ratelimit-reset-tokens': '45.998s',
};
const tooManyTokens = feedbackOf('language-model', 429, tokenFields, {
  error: { message, type: 'tokens', code: 'rate_limit_exceeded' },
});

atOrigins('a call that was refused', (instant) => {
  test.each<[string, Feedback, MeterName, number, number, number]>([
    ['of GraphQL points', tooManyPoints, 'cost', 10, 400, 2_000],
    ['of tokens', tooManyTokens, 'tokens', 50, 12_528, 11_054],
  ])('for lack %s leaves as soon as its stated cost has room', (_, feedback, meter, guess, asked, waitMs) => {
    const line = new TestBucket(instant, { meters: [] });
    line.enter(['guessed'], { costs: { [meter]: guess } });
    line.at(1_030).settle('guessed', throttled(waitMs), line.lesson(feedback, 1_000));
    const again = line.admit('known', { costs: { [meter]: asked } });
    const toldMs = again.kind === 'queued' ? again.forecastMs : Infinity;
    for (const ms of [toldMs, line.leavesAt('known') - 1_030]) {
      expect(ms).toBeGreaterThanOrEqual(waitMs - 1);
      expect(ms).toBeLessThanOrEqual(waitMs + 100);
    }
  });

  test('goes back into its lane with what it asks for', () => {
    const line = new TestBucket(instant, { meters: [] });
    line.enter(['guessed'], { costs: { requests: 1, tokens: 50 } });
    line.settle('guessed', throttled(11_054, { requeue: true }), line.lesson(tooManyTokens));
    expect([...line.bucket.tickets.values()][0]?.costs).toEqual({ requests: 1, tokens: 12_528 });
    expect(line.bucket.waitingCosts.get('tokens')).toBe(12_528);
  });
});
