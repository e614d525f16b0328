/** Calls whose cost only a response states: it holds for all that ask for the same, whichever replica learned it. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import { maxDocuments } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { done, names, TestBucket } from './scheduling.ts';

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
