/** Calls whose cost only a response states: the first call of a document goes ahead, the others wait for its response. */
import { expect, test } from '@jest/globals';
import { leaseToken, replicaId, ticketId, type LeaseToken } from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { maxCorrected, maxDocuments, maxProbeMs } from '../../../src/limiter/policy/documents.policy.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { cancel, learn } from '../../../src/limiter/policy/scheduler.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { Effects } from '../../../src/limiter/policy/pump.policy.ts';
import type { TimedLesson } from '../../../src/limiter/policy/lessons.policy.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { admit, call, newBucket, tick } from './scheduling.ts';
import type { AdmissionOptions } from '../../support/admission.ts';

const done: Settlement = { kind: 'succeeded', spent: null };
const guess = 50;
const setting = {
  meters: [{ meter: 'cost' as const, limit: 1_000, windowMs: 10_000 }],
  learn: true,
  probe: 0,
};

/** The lesson of a response; `points` is the cost that the upstream stated, `null` = it stated none. */
function lesson(now: number, points: number | null): TimedLesson {
  const stated = points === null ? {} : { requestedCost: points };
  return { feedback: { meters: [], throttle: null, ...stated }, sentAt: now, headAt: now };
}

/** A bucket of 1,000 points, of which 100 come back each second; every call is guessed at 50. Replicas tick each second. */
class Shop {
  readonly bucket: Bucket;
  /** Tickets in the order in which they were granted. */
  readonly story: string[] = [];
  readonly #instant: Instant;
  readonly #leases = new Map<string, LeaseToken>();
  #ms = 1_000;

  constructor(instant: Instant) {
    this.#instant = instant;
    this.bucket = newBucket(instant);
  }

  get now(): number {
    return this.#instant(this.#ms);
  }

  enter(id: string, options: AdmissionOptions = {}, by = 'r'): ReturnType<typeof admit> {
    const asked = call(id, { setting, callClass: 'graphql', costs: { cost: guess }, ...options });
    const reply = admit(this.bucket, asked, replicaId(by), this.now);
    this.#note(reply.effects);
    return reply;
  }

  settle(id: string, how: Settlement, points: number | null = null): void {
    const lease = this.#leases.get(id) ?? '';
    this.#note(
      settle(
        this.bucket,
        { lease: leaseToken(lease), settlement: how, lesson: lesson(this.now, points) },
        this.now,
      ),
    );
  }

  /** A stream states the cost of its call, which goes on. */
  hear(id: string, points: number): void {
    this.#note(
      learn(
        this.bucket,
        { lease: leaseToken(this.#leases.get(id) ?? ''), lesson: lesson(this.now, points) },
        this.now,
      ),
    );
  }

  leave(id: string): void {
    this.#note(cancel(this.bucket, ticketId(id), this.now));
  }

  waitMs(id: string): number {
    return forecast(this.bucket, ticketId(id), this.now)?.waitMs ?? NaN;
  }

  get level(): number {
    return this.bucket.meters.get('cost')?.level ?? 0;
  }

  /** Time passes; pumps run when they are due. */
  pass(ms: number): void {
    const until = this.#ms + ms;
    while (this.#ms < until) {
      const leases = [...this.#leases.values()];
      const { nextAt } = this.#note(tick(this.bucket, { replica: replicaId('r'), leases }, this.now));
      this.bucket.replicas.set(replicaId('other'), this.now);
      const due = nextAt === null ? until : nextAt - this.#instant(0);
      this.#ms = Math.min(until, this.#ms + 1_000, Math.max(due, this.#ms + 0.25));
    }
    this.#note(tick(this.bucket, { replica: replicaId('r'), leases: [...this.#leases.values()] }, this.now));
  }

  #note(effects: Effects): Effects {
    for (const { ticket, lease } of effects.grants) {
      this.story.push(ticket);
      this.#leases.set(ticket, lease);
    }
    return effects;
  }
}

atOrigins('calls whose cost only a response states', (instant) => {
  const document = 'd';

  test('wait for the response to the first call of their document, then leave in order as fast as their cost allows', () => {
    const shop = new Shop(instant);
    for (let at = 0; at < 5; at += 1) shop.enter(`c${at}`, { document });
    shop.pass(200);
    expect(shop.story).toEqual(['c0']);
    shop.settle('c0', done, 400);
    // 50 were reserved for the first call and 20 have drained: there is room for two calls of 400.
    expect(shop.story).toEqual(['c0', 'c1', 'c2']);
    expect(shop.level).toBeGreaterThan(800);
    shop.pass(10_000);
    expect(shop.story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4']);
  });

  test('leave as soon as a stream has stated the cost of their document', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    shop.hear('a', 600);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeGreaterThan(600);
  });

  test('wait for the first call of their document across all lanes and replicas', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document, lane: 'one' }, 'r');
    shop.enter('b', { document, lane: 'two' }, 'other');
    shop.enter('c', { document, lane: 'one' }, 'other');
    shop.pass(100);
    expect(shop.story).toEqual(['a']);
    shop.settle('a', done, 20);
    expect(shop.story.toSorted()).toEqual(['a', 'b', 'c']);
  });

  test('are charged the cost that another replica learned', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document }, 'r');
    shop.settle('a', done, 700);
    shop.enter('b', { document }, 'other');
    expect(shop.enter('c', { document }, 'other').kind).toBe('queued');
    expect(shop.level).toBeGreaterThan(749);
    // 50 + 700 points are used, and 450 of them have to drain before 700 have room.
    expect(shop.waitMs('c')).toBeGreaterThan(4_400);
    expect(shop.waitMs('c')).toBeLessThan(4_700);
  });

  test('do not wait for a call of another document, nor when they have no document', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document });
    shop.enter('b', { document: 'another' });
    shop.enter('c', { document: null });
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are not overtaken by cheaper calls of their lane', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document });
    shop.enter('expensive', { document });
    for (let at = 0; at < 4; at += 1) shop.enter(`cheap${at}`);
    shop.pass(50);
    expect(shop.story).toEqual(['first']);
    shop.settle('first', done, 999);
    shop.pass(400);
    expect(shop.story).toEqual(['first']);
    shop.pass(4_000);
    expect(shop.story).toEqual(['first', 'expensive', 'cheap0', 'cheap1', 'cheap2', 'cheap3']);
  });

  test('hold up no more urgent call, and no call at all once they have left', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document });
    shop.enter('expensive', { document });
    shop.enter('free');
    shop.enter('urgent', { urgency: 0 });
    expect(shop.story).toEqual(['first', 'urgent']);
    shop.leave('expensive');
    expect(shop.story).toEqual(['first', 'urgent', 'free']);
  });

  test('are charged the learned cost although they entered with an estimate', () => {
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

  test('are sent when the bucket is empty, even if they cost more than it holds', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b']) shop.enter(id, { document });
    shop.settle('a', done, 5_000);
    expect(shop.story).toEqual(['a']);
    shop.pass(2_000);
    expect(shop.story).toEqual(['a', 'b']);
    expect(shop.level).toBeLessThanOrEqual(1_000);
  });

  test('are sent with the estimate when the first response states no cost', () => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    shop.settle('a', done);
    expect(shop.story).toEqual(['a', 'b', 'c']);
    expect(shop.level).toBeGreaterThan(149);
    // A later response may state the cost all the same.
    shop.settle('b', done, 700);
    shop.enter('d', { document });
    expect(shop.level).toBeGreaterThan(840);
  });

  test.each([
    ['ends with an unknown fate', (shop: Shop): void => shop.settle('a', { kind: 'unknown' })],
    [
      'is throttled and states no cost',
      (shop: Shop): void => shop.settle('a', { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 0 }),
    ],
  ])('are sent with the estimate when the first call %s', (_how, end) => {
    const shop = new Shop(instant);
    for (const id of ['a', 'b', 'c']) shop.enter(id, { document });
    end(shop);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are sent with the estimate when the first response takes too long', () => {
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
    ['goes back to its lane for a back-off', { kind: 'returned', sleepMs: 9_000, because: 'backoff' }],
  ])('send another first call when the one before %s', (_how, settlement) => {
    const shop = new Shop(instant);
    shop.enter('a', { document, lane: 'one' });
    for (const id of ['b', 'c']) shop.enter(id, { document, lane: 'two' });
    shop.settle('a', settlement);
    shop.pass(10);
    expect(shop.story).toEqual(['a', 'b']);
    shop.settle('b', done, 20);
    expect(shop.story).toEqual(['a', 'b', 'c']);
  });

  test('are not refused for the unknown time until the first response comes', () => {
    const shop = new Shop(instant);
    shop.enter('a', { document });
    const reply = shop.enter('b', { document, maxWaitMs: 2_000 });
    // When the response comes is unknown, which is no reason to refuse a call that can wait.
    expect(reply.kind).toBe('queued');
    expect(forecast(shop.bucket, ticketId('b'), shop.now)).toEqual({ waitMs: 0, ahead: 0, heldBy: 'cost' });
  });

  test('do not wake a lane that also sleeps for another reason', () => {
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

atOrigins('the sum of waiting costs', (instant) => {
  const waiting = (shop: Shop): number => shop.bucket.waitingCosts.get('cost') ?? 0;

  test('is corrected for every waiting call when the cost of its document becomes known', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd' });
    for (const lane of ['one', 'two', 'three']) shop.enter(lane, { document: 'd', lane });
    shop.enter('other', { document: 'e', lane: 'z', costs: { cost: 990 } });
    expect(waiting(shop)).toBe(3 * guess + 990);
    shop.settle('first', done, 300);
    // There is room for three calls of 300 points.
    expect(shop.story).toEqual(['first', 'one', 'three', 'two']);
    expect(waiting(shop)).toBe(990);
    for (const lane of ['one', 'two', 'three']) shop.enter(`${lane}.2`, { document: 'd', lane });
    expect(waiting(shop)).toBe(990 + 3 * 300);
    for (const id of ['one.2', 'two.2', 'three.2', 'other']) shop.leave(id);
    expect(waiting(shop)).toBe(0);
    expect(shop.bucket.estimated.size).toBe(0);
  });

  test('gives a true forecast to the next call', () => {
    const shop = new Shop(instant);
    shop.enter('first', { document: 'd', maxInFlight: 1 });
    for (let at = 0; at < 4; at += 1) shop.enter(`c${at}`, { document: 'd', maxInFlight: 1 });
    shop.settle('first', done, 500);
    shop.settle('c0', done, 500);
    const forecastMs = shop.waitMs('c3');
    const from = shop.now;
    while (!shop.story.includes('c3')) {
      shop.pass(50);
      for (const id of shop.story) shop.settle(id, done, 500);
    }
    expect(Math.abs(forecastMs - (shop.now - from))).toBeLessThanOrEqual(200);
  });

  test('returns to zero when all calls have left, although only a bounded number of them was corrected', () => {
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

atOrigins('the learned costs of documents', (instant) => {
  test('are remembered for a thousand documents, those learned last', () => {
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
    expect(shop.bucket.documents.get('d1')).toEqual({ kind: 'reported', points: 2 });
  });

  test('block no call when they are forgotten while the first call is under way', () => {
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
