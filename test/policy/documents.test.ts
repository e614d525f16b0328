/** Calls of which only an answer tells what they cost: the first of a document goes ahead, the others wait for its answer. */
import { expect, test } from '@jest/globals';
import type { Bucket } from '../../src/limiter/policy/bucket-state.policy.ts';
import { maxCorrected, maxDocuments, maxProbeMs } from '../../src/limiter/policy/documents.policy.ts';
import type { Settlement } from '../../src/limiter/limiter.ts';
import {
  cancel,
  forecast,
  learn,
  settle,
  tick,
  type Effects,
  type TimedLesson,
} from '../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins, type Instant } from './at-origins.ts';
import { admit, call, newBucket, type Wish } from './scheduling.ts';

const done: Settlement = { kind: 'succeeded', spent: null };
const guess = 50;
const setting = {
  meters: [{ meter: 'cost' as const, limit: 1_000, windowMs: 10_000 }],
  learn: true,
  probe: 0,
};

/** What an answer teaches; `points` = what the upstream asked for, `null` = it told nothing. */
function lesson(now: number, points: number | null): TimedLesson {
  const told = points === null ? {} : { requestedCost: points };
  return { feedback: { meters: [], throttle: null, ...told }, sentAt: now, headAt: now };
}

/** A bucket of 1,000 points, of which 100 come back each second; every call is guessed at 50. Replicas tick each second. */
class Shop {
  readonly bucket: Bucket;
  /** Tickets in the order in which they were granted. */
  readonly story: string[] = [];
  readonly #instant: Instant;
  readonly #leases = new Map<string, string>();
  #ms = 1_000;

  constructor(instant: Instant) {
    this.#instant = instant;
    this.bucket = newBucket(instant);
  }

  get now(): number {
    return this.#instant(this.#ms);
  }

  enter(id: string, wish: Wish = {}, by = 'r'): ReturnType<typeof admit> {
    const asked = call(id, { setting, callClass: 'graphql', costs: { cost: guess }, ...wish });
    const reply = admit(this.bucket, asked, by, this.now);
    this.#note(reply.effects);
    return reply;
  }

  settle(id: string, how: Settlement, points: number | null = null): void {
    const lease = this.#leases.get(id) ?? '';
    this.#note(settle(this.bucket, lease, how, lesson(this.now, points), this.now));
  }

  /** A stream told it; the call goes on. */
  hear(id: string, points: number): void {
    this.#note(learn(this.bucket, this.#leases.get(id) ?? '', lesson(this.now, points), this.now));
  }

  leave(id: string): void {
    this.#note(cancel(this.bucket, id, this.now));
  }

  waitMs(id: string): number {
    return forecast(this.bucket, id, this.now)?.waitMs ?? NaN;
  }

  get level(): number {
    return this.bucket.meters.get('cost')?.level ?? 0;
  }

  /** Time passes; pumps run when they are due. */
  pass(ms: number): void {
    const until = this.#ms + ms;
    while (this.#ms < until) {
      const leases = [...this.#leases.values()];
      const { nextAt } = this.#note(tick(this.bucket, 'r', leases, this.now));
      this.bucket.replicas.set('other', this.now);
      const due = nextAt === null ? until : nextAt - this.#instant(0);
      this.#ms = Math.min(until, this.#ms + 1_000, Math.max(due, this.#ms + 0.25));
    }
    this.#note(tick(this.bucket, 'r', [...this.#leases.values()], this.now));
  }

  #note(effects: Effects): Effects {
    for (const { ticket, lease } of effects.grants) {
      this.story.push(ticket);
      this.#leases.set(ticket, lease);
    }
    return effects;
  }
}

atOrigins('calls whose cost an answer tells', (instant) => {
  const document = 'd';

  test('wait for the first of their document, and then leave in order as fast as their cost allows', () => {
    const shop = new Shop(instant);
    for (let at = 0; at < 5; at += 1) shop.enter(`c${at}`, { document });
    shop.pass(200);
    expect(shop.story).toEqual(['c0']);
    shop.settle('c0', done, 400);
    // 50 were reserved for the first and 20 came back: two of 400 have room.
    expect(shop.story).toEqual(['c0', 'c1', 'c2']);
    expect(shop.level).toBeGreaterThan(800);
    shop.pass(10_000);
    expect(shop.story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4']);
  });

  test('are known as soon as a stream tells it', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    shop.hear('a', 600);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeGreaterThan(600);
  });

  test('are held over all lanes of the bucket, of whatever replica', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document, lane: 'one' }, 'r');
    shop.enter('b', { document, lane: 'two' }, 'other');
    shop.enter('c', { document, lane: 'one' }, 'other');
    shop.pass(100);
    expect(shop.story).toEqual(['a']);
    shop.settle('a', done, 20);
    expect(shop.story.toSorted()).toEqual(['a', 'b', 'c']);
  });

  test('cost what one replica was told, also where another one asks later', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document }, 'r');
    shop.settle('a', done, 700);
    shop.enter('b', { document }, 'other');
    expect(shop.enter('c', { document }, 'other').kind).toBe('queued');
    expect(shop.level).toBeGreaterThan(749);
    // 50 + 700 are taken, and 450 of them have to drain.
    expect(shop.waitMs('c')).toBeGreaterThan(4_400);
    expect(shop.waitMs('c')).toBeLessThan(4_700);
  });

  test('of another document do not wait, nor do those whose cost is known', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document });
    shop.enter('b', { document: 'another' });
    shop.enter('c', { document: null });
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are not overtaken by cheaper calls of their lane', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document });
    shop.enter('dear', { document });
    for (let at = 0; at < 4; at += 1) shop.enter(`cheap${at}`);
    shop.pass(50);
    expect(shop.story).toEqual(['first']);
    shop.settle('first', done, 999);
    shop.pass(400);
    expect(shop.story).toEqual(['first']);
    shop.pass(4_000);
    expect(shop.story).toEqual(['first', 'dear', 'cheap0', 'cheap1', 'cheap2', 'cheap3']);
  });

  test('hold nobody behind them once they have left, and no more urgent call at all', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document });
    shop.enter('dear', { document });
    shop.enter('free');
    shop.enter('urgent', { urgency: 0 });
    expect(shop.story).toEqual(['first', 'urgent']);
    shop.leave('dear');
    expect(shop.story).toEqual(['first', 'urgent', 'free']);
  });

  test('are charged what they cost by now when they waited with a guess', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document, maxInFlight: 1 });
    shop.settle('a', done, 900);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeGreaterThan(900);
    shop.settle('b', done, 900);
    shop.pass(5_000);
    expect(shop.story).toEqual(['a', 'b']);
    shop.pass(5_000);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are sent when the bucket is empty, also those that ask for more than it holds', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b']) shop.enter(id, { document });
    shop.settle('a', done, 5_000);
    expect(shop.story).toEqual(['a']);
    shop.pass(2_000);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeLessThanOrEqual(1_000);
  });

  test('go with the guess where the first answer told nothing', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    shop.settle('a', done);
    expect(shop.story).toEqual(['a', 'b', 'c']);
    expect(shop.level).toBeGreaterThan(149);
    // A later answer may tell it all the same.
    shop.settle('b', done, 700);
    shop.enter('d', { document });
    expect(shop.level).toBeGreaterThan(840);
  });

  test.each([
    ['is not heard of again', (shop: Shop): void => shop.settle('a', { kind: 'unknown' })],
    [
      'is throttled without a word',
      (shop: Shop): void => shop.settle('a', { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 0 }),
    ],
  ])('go with the guess when the first one %s', (_how, end) => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    end(shop);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('go with the guess when the first answer takes long', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b']) shop.enter(id, { document });
    shop.pass(maxProbeMs - 1);
    expect(shop.story).toEqual(['a']);
    shop.pass(1);
    expect(shop.story).toEqual(['a', 'b']);
  });

  test.each<[string, Settlement]>([
    ['was never sent', { kind: 'dropped' }],
    ['found no slot under its ceiling', { kind: 'returned', sleepMs: 9_000, because: 'ceiling_minute' }],
    ['is to come again', { kind: 'returned', sleepMs: 9_000, because: 'backoff' }],
  ])('find it out themselves when the first one %s', (_how, settlement) => {
    const shop = new Shop(instant);
    shop.enter('a', { document, lane: 'one' });
    for (const id of ['b', 'c']) shop.enter(id, { document, lane: 'two' });
    shop.settle('a', settlement);
    shop.pass(10);
    expect(shop.story).toEqual(['a', 'b']);
    shop.settle('b', done, 20);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('keep calls of other documents waiting no longer than they are known to take', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document });
    const reply = shop.enter('b', { document, maxWaitMs: 2_000 });
    // Nobody knows when the answer comes; it is no reason to refuse a call that has some time.
    expect(reply.kind).toBe('queued');
    expect(forecast(shop.bucket, 'b', shop.now)).toEqual({ waitMs: 0, ahead: 0, heldBy: 'cost' });
  });

  test('wake a lane that sleeps for another reason only when that is over, too', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document, lane: 'one' });
    shop.enter('x', { lane: 'two' });
    shop.enter('b', { document, lane: 'two' });
    shop.settle('x', { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 3_000 });
    shop.settle('first', done, 20);
    shop.pass(2_900);
    expect(shop.story).toEqual(['first', 'x']);
    shop.pass(100);
    expect(shop.story).toEqual(['first', 'x', 'b']);
  });
});

atOrigins('the sums of what waits', (instant) => {
  const waiting = (shop: Shop): number => shop.bucket.waitingCosts.get('cost') ?? 0;

  test('are corrected for every waiting call when its cost becomes known', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd' });
    for (const lane of ['one', 'two', 'three']) shop.enter(lane, { document: 'd', lane });
    shop.enter('other', { document: 'e', lane: 'z', costs: { cost: 990 } });
    expect(waiting(shop)).toBe(3 * guess + 990);
    shop.settle('first', done, 300);
    // Three of 300 have room.
    expect(shop.story).toEqual(['first', 'one', 'three', 'two']);
    expect(waiting(shop)).toBe(990);
    for (const lane of ['one', 'two', 'three']) shop.enter(`${lane}.2`, { document: 'd', lane });
    expect(waiting(shop)).toBe(990 + 3 * 300);
    for (const id of ['one.2', 'two.2', 'three.2', 'other']) shop.leave(id);
    expect(waiting(shop)).toBe(0);
    expect(shop.bucket.estimated.size).toBe(0);
  });

  test('tell a true wait to who comes next', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd', maxInFlight: 1 });
    for (let at = 0; at < 4; at += 1) shop.enter(`c${at}`, { document: 'd', maxInFlight: 1 });
    shop.settle('first', done, 500);
    shop.settle('c0', done, 500);
    const told = shop.waitMs('c3');
    const from = shop.now;
    while (!shop.story.includes('c3')) {
      shop.pass(50);
      for (const id of shop.story) shop.settle(id, done, 500);
    }
    expect(Math.abs(told - (shop.now - from))).toBeLessThanOrEqual(200);
  });

  test('add up to nothing when all have left, though not all of very many were corrected', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd', maxInFlight: 1 });
    const ids = Array.from({ length: maxCorrected + 100 }, (_, at) => `c${at}`);
    for (const id of ids) shop.enter(id, { document: 'd', maxInFlight: 1 });
    shop.settle('first', done, 300);
    expect(waiting(shop)).toBe(
      (maxCorrected - 1) * 300 + 100 * guess + (shop.story.includes('c0') ? 0 : 300),
    );
    for (const id of ids) shop.leave(id);
    for (const id of shop.story) shop.settle(id, { kind: 'dropped' });
    expect(waiting(shop)).toBe(0);
    expect(shop.bucket.estimated.size).toBe(0);
    expect(shop.bucket.waiting).toBe(0);
  });
});

atOrigins('documents', (instant) => {
  test('are remembered a thousand at a time, those last learned of', () => {
    const shop = new Shop(instant);
    const learned = (at: number): void => {
      shop.enter(`t${at}`, { document: `d${at}`, costs: { cost: 1 } });
      shop.settle(`t${at}`, done, 1 + (at % 7));
      shop.pass(200);
    };
    for (let at = 0; at <= maxDocuments; at += 1) learned(at);
    expect(shop.bucket.documents.size).toBe(maxDocuments);
    expect(shop.bucket.documentAges.size).toBe(maxDocuments);
    expect(shop.bucket.documents.has('d0')).toBe(false);
    expect(shop.bucket.documents.get('d1')).toEqual({ kind: 'told', points: 2 });
  });

  test('that are forgotten while somebody finds out keep nobody waiting', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd', costs: { cost: 0.1 }, lane: 'one' });
    shop.enter('waits', { document: 'd', costs: { cost: 0.1 }, lane: 'two' });
    for (let at = 0; at < maxDocuments; at += 1) {
      shop.enter(`t${at}`, { document: `d${at}`, costs: { cost: 0.1 }, lane: 'three' });
      shop.settle(`t${at}`, done, 0.1);
    }
    expect(shop.story).toContain('waits');
  });
});
