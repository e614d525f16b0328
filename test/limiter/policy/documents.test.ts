/** Calls whose cost only a response states: the first call of a document goes ahead, the others wait for its response. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import { maxDocuments, maxProbeMs } from '../../../src/limiter/policy/documents.policy.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { done, dropped, names, replica, returned, TestBucket, throttled, unknown } from './scheduling.ts';

const guess = 50;
const other = replicaId('other');
const document = 'd';

/** A bucket of 1,000 points, of which 100 come back each second; every call is guessed at 50. */
class Shop extends TestBucket {
  /** Tickets in the order in which they left. */
  readonly story: string[] = [];

  override enter(...[tickets, options, by = replica]: Parameters<TestBucket['enter']>): string[] {
    return this.#note(super.enter(tickets, options, by));
  }

  /** The response states so many points; `null` = none. */
  ends(ticket: string, points: number | null = null, how: Settlement = done): void {
    this.#note(this.settle(ticket, how, this.lesson(points === null ? {} : { requestedCost: points })));
  }

  /** A stream states the cost of its call, which goes on. */
  hears(ticket: string, points: number): void {
    this.#note(this.learn(ticket, this.lesson({ requestedCost: points })));
  }

  leaves(ticket: string): void {
    this.#note(this.cancel(ticket));
  }

  /** Both replicas live meanwhile. */
  pass(ms: number): void {
    for (const until = this.ms + ms; this.ms < until;) {
      this.bucket.replicas.set(other, this.now);
      const next = Math.min(until, this.ms + 1_000);
      this.#note([...this.run(next).keys()]);
      this.at(next);
    }
    this.#note(this.tick());
  }

  get level(): number {
    return this.meter('cost').level;
  }

  #note(left: string[]): string[] {
    this.story.push(...left);
    return left;
  }
}

atOrigins('calls whose cost only a response states', (instant) => {
  const meters = [{ meter: 'cost', limit: 1_000, windowMs: 10_000 }] as const;
  const setting = { meters, learn: true, probe: 0 };
  const open = (): Shop => new Shop(instant, { setting, callClass: 'graphql', costs: { cost: guess } });
  /** A shop into which these came, all of one document. */
  const shopWith = (...tickets: string[]): Shop => {
    const shop = open();
    shop.enter(tickets, { document });
    return shop;
  };

  test('wait for the response to the first call of their document, then leave in order as fast as their cost allows', () => {
    const shop = shopWith(...names(5, 'c'));
    shop.pass(200);
    expect(shop.story).toEqual(['c0']);
    shop.ends('c0', 400);
    // 50 were reserved for the first call and 20 have drained: there is room for two calls of 400.
    expect(shop.story).toEqual(['c0', 'c1', 'c2']);
    expect(shop.level).toBeGreaterThan(800);
    shop.pass(10_000);
    expect(shop.story).toEqual(names(5, 'c'));
  });

  test('leave as soon as a stream has stated the cost of their document', () => {
    const shop = shopWith('a', 'b', 'c');
    shop.hears('a', 600);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeGreaterThan(600);
  });

  test('wait for the first call of their document across all lanes and replicas', () => {
    const shop = open();
    shop.enter(['a'], { document, lane: 'one' });
    shop.enter(['b'], { document, lane: 'two' }, other);
    shop.enter(['c'], { document, lane: 'one' }, other);
    shop.pass(100);
    expect(shop.story).toEqual(['a']);
    shop.ends('a', 20);
    expect(shop.story.toSorted()).toEqual(['a', 'b', 'c']);
  });

  test('are charged the cost that another replica learned', () => {
    const shop = shopWith('a');
    shop.ends('a', 700);
    shop.enter(['b', 'c'], { document }, other);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeGreaterThan(749);
    // 50 + 700 points are used, and 450 of them have to drain before 700 have room.
    expect(shop.waitMs('c')).toBeGreaterThan(4_400);
    expect(shop.waitMs('c')).toBeLessThan(4_700);
  });

  test('do not wait for a call of another document, nor when they have no document', () => {
    const shop = shopWith('a');
    shop.enter(['b'], { document: 'another' });
    shop.enter(['c'], { document: null });
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are not overtaken by cheaper calls of their lane', () => {
    const shop = shopWith('first', 'expensive');
    shop.enter(names(4, 'cheap'));
    shop.pass(50);
    shop.ends('first', 999);
    shop.pass(400);
    expect(shop.story).toEqual(['first']);
    shop.pass(4_000);
    expect(shop.story).toEqual(['first', 'expensive', ...names(4, 'cheap')]);
  });

  test('hold up no more urgent call, and no call at all once they have left', () => {
    const shop = shopWith('first', 'expensive');
    shop.enter(['free']);
    shop.enter(['urgent'], { urgency: 0 });
    expect(shop.story).toEqual(['first', 'urgent']);
    shop.leaves('expensive');
    expect(shop.story).toEqual(['first', 'urgent', 'free']);
  });

  test('are charged the learned cost although they entered with an estimate', () => {
    const shop = open();
    shop.enter(['a', 'b', 'c'], { document, maxInFlight: 1 });
    shop.ends('a', 900);
    expect(shop.level).toBeGreaterThan(900);
    shop.ends('b', 900);
    shop.pass(5_000);
    expect(shop.story).toEqual(['a', 'b']);
    shop.pass(5_000);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are sent when the bucket is empty, even if they cost more than it holds', () => {
    const shop = shopWith('a', 'b');
    shop.ends('a', 5_000);
    expect(shop.story).toEqual(['a']);
    shop.pass(2_000);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeLessThanOrEqual(1_000);
  });

  test.each<[string, (shop: Shop) => void]>([
    ['states no cost', (shop) => shop.ends('a')],
    ['has an unknown fate', (shop) => shop.settle('a', unknown)],
    ['is throttled and states no cost', (shop) => shop.ends('a', null, throttled(0))],
    ['takes too long', (shop) => shop.pass(maxProbeMs)],
  ])('are sent with the estimate when the first call %s', (_how, end) => {
    const shop = shopWith('a', 'b', 'c');
    end(shop);
    shop.pass(0);
    expect(shop.bucket.waiting).toBe(0);
    // A later response may state the cost all the same.
    shop.ends('b', 700);
    shop.enter(['d'], { document });
    expect(shop.bucket.documents.get(document)).toEqual({ kind: 'reported', points: 700 });
  });

  test('wait for the first response until just before it takes too long', () => {
    const shop = shopWith('a', 'b');
    shop.pass(maxProbeMs - 1);
    expect(shop.story).toEqual(['a']);
  });

  test.each<[string, Settlement]>([
    ['was never sent', dropped],
    ['found no slot under its ceiling', returned('ceiling_minute', 9_000)],
    ['goes back to its lane for a back-off', returned('backoff', 9_000)],
  ])('send another first call when the one before %s', (_how, settlement) => {
    const shop = open();
    shop.enter(['a'], { document, lane: 'one' });
    shop.enter(['b', 'c'], { document, lane: 'two' });
    shop.ends('a', null, settlement);
    shop.pass(10);
    expect(shop.story).toEqual(['a', 'b']);
    shop.ends('b', 20);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are not refused for the unknown time until the first response comes', () => {
    const shop = shopWith('a');
    shop.enter(['b'], { document, maxWaitMs: 2_000 });
    expect(shop.forecast('b')).toEqual({ waitMs: 0, ahead: 0, heldBy: 'cost' });
  });

  test('do not wake a lane that also sleeps for another reason', () => {
    const shop = open();
    shop.enter(['first'], { document, lane: 'one' });
    shop.enter(['x'], { lane: 'two' });
    shop.enter(['b'], { document, lane: 'two' });
    shop.ends('x', null, throttled(0, { sleepMs: 3_000 }));
    shop.ends('first', 20);
    shop.pass(2_900);
    expect(shop.story).toEqual(['first', 'x']);
    shop.pass(100);
    expect(shop.story).toEqual(['first', 'x', 'b']);
  });

  const waiting = (shop: Shop): number => shop.bucket.waitingCosts.get('cost') ?? 0;

  test('have their sum corrected when the cost of their document becomes known', () => {
    const shop = shopWith('first');
    const lanes = ['one', 'two', 'three'];
    for (const lane of lanes) shop.enter([lane], { document, lane });
    shop.enter(['other'], { document: 'e', lane: 'z', costs: { cost: 990 } });
    expect(waiting(shop)).toBe(3 * guess + 990);
    shop.ends('first', 300);
    // There is room for three calls of 300 points.
    expect(shop.story).toEqual(['first', 'one', 'three', 'two']);
    expect(waiting(shop)).toBe(990);
    for (const lane of lanes) shop.enter([`${lane}.2`], { document, lane });
    expect(waiting(shop)).toBe(990 + 3 * 300);
    for (const id of ['one.2', 'two.2', 'three.2', 'other']) shop.leaves(id);
    expect(waiting(shop)).toBe(0);
  });

  test('are remembered for a thousand documents, those learned last', () => {
    const shop = open();
    for (let at = 0; at <= maxDocuments; at += 1) {
      shop.enter([`t${at}`], { document: `d${at}`, costs: { cost: 1 } });
      shop.ends(`t${at}`, 1 + (at % 7));
      shop.pass(200);
    }
    const { documents, documentAges } = shop.bucket;
    expect([documents.size, documentAges.size, documents.has('d0')]).toEqual([
      maxDocuments,
      maxDocuments,
      false,
    ]);
    expect(documents.get('d1')).toEqual({ kind: 'reported', points: 2 });
  });

  test('are not blocked when their document is forgotten while the first call is under way', () => {
    const shop = open();
    const costs = { cost: 0.1 };
    shop.enter(['first'], { document, costs, lane: 'one' });
    shop.enter(['waits'], { document, costs, lane: 'two' });
    for (let at = 0; at < maxDocuments; at += 1) {
      shop.enter([`t${at}`], { document: `d${at}`, costs, lane: 'three' });
      shop.ends(`t${at}`, 0.1);
    }
    expect(shop.story).toContain('waits');
  });
});
