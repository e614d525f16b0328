/**
 * What every store of limiter state promises, run against each of them: the same suite, the same results.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { bucketKey, ceilingKey, ticketId } from '../../src/ids.ts';
import { type CeilingRef, ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { admission } from '../support/admission.ts';
import { startReplica, type ReplicaOptions, type TestReplica } from '../support/redis-replica.ts';

export interface StoreUnderTest {
  /** Content of `redis:`, or `null` for the embedded store. */
  begin(): Promise<string | null>;
  /** How the stores are built. */
  readonly options?: ReplicaOptions;
  end(): Promise<void>;
  clear(): Promise<void>;
}

const serial = { maxInFlight: 1 } as const;
const twoPerSecond = {
  setting: { meters: [{ meter: 'requests', limit: 2, windowMs: 1_000 }], learn: true, probe: 0 },
} as const;

export function storeContract(name: string, store: StoreUnderTest): void {
  describe(`the ${name} store`, () => {
    let replica: TestReplica;
    let redis: string | null;
    let n = 0;
    /** A name that no other test has used. */
    const fresh = (word: string): string => `${word}${(n += 1)}`;

    beforeAll(async () => {
      redis = await store.begin();
      replica = await startReplica(redis, store.options);
    });
    afterEach(() => store.clear());
    afterAll(async () => {
      await replica.close();
      await store.end();
    });

    const granted = async (ticket: string, more: object): Promise<Grant> => {
      const reply = await replica.limiter.admit(admission(ticket, more));
      return reply.kind === 'granted' ? reply.grant : replica.granted(ticket);
    };
    const succeed = (grant: Grant) => replica.limiter.settle(grant, { kind: 'succeeded', spent: null }, null);

    test('grants at once while there is room', async () => {
      const reply = await replica.limiter.admit(admission(fresh('t'), { bucket: fresh('upstream.b') }));
      expect(reply.kind).toBe('granted');
    });

    test('grants a capped lane one call at a time, in order of arrival', async () => {
      const bucket = fresh('upstream.b');
      const [a, b, c] = [fresh('t'), fresh('t'), fresh('t')];
      const first = await granted(a, { bucket, ...serial });
      expect((await replica.limiter.admit(admission(b, { bucket, ...serial }))).kind).toBe('queued');
      expect((await replica.limiter.admit(admission(c, { bucket, ...serial }))).kind).toBe('queued');
      await succeed(first);
      await succeed(await replica.granted(b));
      await succeed(await replica.granted(c));
      const order = replica.grants.map(({ ticket }) => ticket).filter((ticket) => [b, c].includes(ticket));
      expect(order).toEqual([b, c]);
    });

    test('grants more urgent calls of a lane first', async () => {
      const bucket = fresh('upstream.b');
      const [a, later, urgent] = [fresh('t'), fresh('t'), fresh('t')];
      const first = await granted(a, { bucket, ...serial });
      await replica.limiter.admit(admission(later, { bucket, ...serial }));
      await replica.limiter.admit(admission(urgent, { bucket, ...serial, urgency: 0 }));
      await succeed(first);
      await succeed(await replica.granted(urgent));
      await succeed(await replica.granted(later));
      const order = replica.grants.map(({ ticket }) => ticket).filter((one) => [later, urgent].includes(one));
      expect(order).toEqual([urgent, later]);
    });

    test('moves waiting calls into another bucket, where they keep their order among its calls', async () => {
      const [from, to] = [fresh('upstream.b'), fresh('upstream.b')];
      const [a, b, c, d, e] = [fresh('t'), fresh('t'), fresh('t'), fresh('t'), fresh('t')];
      const first = await granted(a, { bucket: to, ...serial });
      await granted(b, { bucket: from, ...serial });
      const waiting = [c, d, e].map((ticket, n) =>
        admission(ticket, { bucket: n === 1 ? to : from, ...serial }),
      );
      for (const asked of waiting) expect((await replica.limiter.admit(asked)).kind).toBe('queued');
      for (const asked of waiting) {
        if (asked.ticket !== d) await replica.limiter.move(asked.bucket, { ...asked, bucket: bucketKey(to) });
      }
      await succeed(first);
      for (const ticket of [c, d, e]) {
        const grant = await replica.granted(ticket);
        expect(grant.bucket).toBe(to);
        await succeed(grant);
      }
      const order = replica.grants.map(({ ticket }) => ticket).filter((one) => [c, d, e].includes(one));
      expect(order).toEqual([c, d, e]);
      expect(replica.limiter.snapshot().find(({ bucket }) => bucket === from)?.waiting ?? 0).toBe(0);
    });

    test('grants a waiting call by itself when the meter has room again', async () => {
      const bucket = fresh('upstream.b');
      const tickets = [fresh('t'), fresh('t'), fresh('t')];
      const grants = await Promise.all(tickets.map((ticket) => granted(ticket, { bucket, ...twoPerSecond })));
      expect(grants.map(({ ticket }) => ticket)).toEqual(tickets);
      for (const grant of grants) await succeed(grant);
    });

    test('refuses a call at once when it cannot leave within its wait, and keeps no trace of it', async () => {
      const bucket = fresh('upstream.b');
      const setting = {
        meters: [{ meter: 'requests' as const, limit: 1, windowMs: 60_000 }],
        learn: true,
        probe: 0,
      };
      await succeed(await granted(fresh('t'), { bucket, setting }));
      const reply = await replica.limiter.admit(
        admission(fresh('t'), { bucket, setting, maxWaitMs: 10_000 }),
      );
      expect(reply).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
      expect(reply.kind === 'refused' && reply.retryInMs > 50_000 && reply.retryInMs <= 61_000).toBe(true);
      expect(replica.limiter.snapshot().find((one) => one.bucket === bucket)?.waiting).toBe(0);
    });

    test('refuses a call when its lane has as many waiting calls as it may', async () => {
      const bucket = fresh('upstream.b');
      const first = await granted(fresh('t'), { bucket, ...serial, maxQueued: 1 });
      const waits = fresh('t');
      await replica.limiter.admit(admission(waits, { bucket, ...serial, maxQueued: 1 }));
      const reply = await replica.limiter.admit(admission(fresh('t'), { bucket, ...serial, maxQueued: 1 }));
      expect(reply).toMatchObject({ kind: 'refused', reason: 'queue_full' });
      await succeed(first);
      await succeed(await replica.granted(waits));
    });

    test('closes a bucket for the time that a throttled response named, and puts the call back at its position', async () => {
      const bucket = fresh('upstream.b');
      const [a, b] = [fresh('t'), fresh('t')];
      const first = await granted(a, { bucket, ...serial });
      await replica.limiter.admit(admission(b, { bucket, ...serial }));
      const closedAt = performance.now();
      const again = replica.granted(a);
      await replica.limiter.settle(
        first,
        { kind: 'throttled', closeMs: 300, requeue: true, sleepMs: 0 },
        null,
      );
      await succeed(await again);
      expect((replica.at.get(a) ?? NaN) - closedAt).toBeGreaterThanOrEqual(299);
      await succeed(await replica.granted(b));
    });

    test('takes a cancelled call out of its lane, and only that call', async () => {
      const bucket = fresh('upstream.b');
      const [a, gone, c] = [fresh('t'), fresh('t'), fresh('t')];
      const first = await granted(a, { bucket, ...serial });
      await replica.limiter.admit(admission(gone, { bucket, ...serial }));
      await replica.limiter.admit(admission(c, { bucket, ...serial }));
      await replica.limiter.cancel(bucketKey(bucket), ticketId(gone));
      expect(await replica.limiter.forecast(bucketKey(bucket), ticketId(c))).toMatchObject({ ahead: 0 });
      await succeed(first);
      await succeed(await replica.granted(c));
      expect(replica.grants.some(({ ticket }) => ticket === gone)).toBe(false);
    });

    test('gives back what a call that was not sent had reserved', async () => {
      const bucket = fresh('upstream.b');
      const setting = {
        meters: [{ meter: 'tokens' as const, limit: 100, windowMs: 60_000 }],
        learn: true,
        probe: 0,
      };
      const more = { bucket, setting, costs: { tokens: 80 } };
      const dropped = await granted(fresh('t'), more);
      await replica.limiter.settle(dropped, { kind: 'dropped' }, null);
      expect((await replica.limiter.admit(admission(fresh('t'), more))).kind).toBe('granted');
    });

    test('settles a lease once', async () => {
      const bucket = fresh('upstream.b');
      const first = await granted(fresh('t'), { bucket, ...serial });
      const b = fresh('t');
      await replica.limiter.admit(admission(b, { bucket, ...serial }));
      await succeed(first);
      const second = await replica.granted(b);
      await succeed(first);
      const c = fresh('t');
      expect((await replica.limiter.admit(admission(c, { bucket, ...serial }))).kind).toBe('queued');
      await succeed(second);
      await succeed(await replica.granted(c));
    });

    describe('for ceilings', () => {
      const ceiling = (perMinute: number | null, perDay: number | null): CeilingRef => ({
        key: ceilingKey(fresh('c')),
        perMinute,
        perDay,
      });

      test('gives as many slots as there are, and says when the next one frees', async () => {
        const three = ceiling(3, null);
        for (const left of [2, 1, 0]) {
          const reply = await replica.ceilings.take(three);
          expect(reply).toMatchObject({ kind: 'taken', state: { limit: 3, remaining: left }, dayLeft: null });
        }
        const refused = await replica.ceilings.take(three);
        expect(refused).toMatchObject({ kind: 'refused', isDaily: false });
        const waitMs = refused.kind === 'refused' ? refused.waitMs : 0;
        expect(waitMs).toBeGreaterThan(ceilingWindowMs - 10_000);
        expect(waitMs).toBeLessThanOrEqual(ceilingWindowMs);
      });

      test('takes back the very slot that was taken, once', async () => {
        const one = ceiling(1, 5);
        const first = await replica.ceilings.take(one);
        if (first.kind !== 'taken') throw new Error('no slot');
        await replica.ceilings.giveSlotBack(one, first.slot);
        const second = await replica.ceilings.take(one);
        expect(second.kind).toBe('taken');
        expect((await replica.ceilings.take(one)).kind).toBe('refused');
        expect(await replica.ceilings.dayState(one)).toMatchObject({ limit: 5, remaining: 4 });
      });

      test('refuses by the day without taking a slot of the minute', async () => {
        const day = ceiling(10, 2);
        await replica.ceilings.take(day);
        await replica.ceilings.take(day);
        const refused = await replica.ceilings.take(day);
        expect(refused).toMatchObject({ kind: 'refused', isDaily: true });
        const waitMs = refused.kind === 'refused' ? refused.waitMs : 0;
        expect(waitMs).toBeGreaterThan(86_000_000);
        expect(waitMs).toBeLessThanOrEqual(86_400_000);
        expect(await replica.ceilings.state(day)).toMatchObject({ limit: 10, remaining: 8 });
        expect(await replica.ceilings.dayState(day)).toMatchObject({ remaining: 0 });
      });

      test('keeps the count of the day when its limit is raised or lowered', async () => {
        const day = ceiling(null, 2);
        const under = async (perDay: number): Promise<string> =>
          (await replica.ceilings.take({ ...day, perDay })).kind;
        expect([await under(2), await under(2), await under(2)]).toEqual(['taken', 'taken', 'refused']);
        expect([await under(3), await under(3)]).toEqual(['taken', 'refused']);
        expect(await under(1)).toBe('refused');
        expect(await replica.ceilings.dayState({ ...day, perDay: 5 })).toMatchObject({
          limit: 5,
          remaining: 2,
        });
        expect(await replica.ceilings.dayState({ ...day, perDay: 1 })).toMatchObject({ remaining: 0 });
      });

      test('counts the sends of a window whatever the limit was when they were made', async () => {
        const minute = ceiling(2, null);
        const under = (perMinute: number) => replica.ceilings.take({ ...minute, perMinute });
        const kinds = [await under(2), await under(2), await under(2), await under(3), await under(3)];
        expect(kinds.map(({ kind }) => kind)).toEqual(['taken', 'taken', 'refused', 'taken', 'refused']);
        const lowered = await under(1);
        expect(lowered).toMatchObject({ kind: 'refused', isDaily: false });
        expect(lowered.kind === 'refused' && lowered.waitMs).toBeLessThanOrEqual(ceilingWindowMs);
        const [next, second] = await replica.ceilings.forecast({ ...minute, perMinute: 1 }, [1, 2]);
        expect(next?.waitMs).toBeGreaterThan(ceilingWindowMs - 10_000);
        expect(next?.waitMs).toBeLessThanOrEqual(ceilingWindowMs);
        expect(second?.waitMs).toBeGreaterThan(2 * ceilingWindowMs - 10_000);
      });

      test('forecasts the k-th slot from now, over several windows', async () => {
        const two = ceiling(2, null);
        await replica.ceilings.take(two);
        const holds = await replica.ceilings.forecast(two, [1, 2, 3, 4]);
        const [first = -1, second = -1, third = -1, fourth = -1] = holds.map(({ waitMs }) => waitMs);
        expect(first).toBe(0);
        expect(second).toBeGreaterThan(ceilingWindowMs - 10_000);
        expect(third).toBeGreaterThanOrEqual(second);
        expect(fourth).toBeGreaterThan(2 * ceilingWindowMs - 10_000);
      });

      test('does not count calls twice that were sent since the positions were taken', async () => {
        const one = ceiling(1, null);
        await replica.ceilings.take(one);
        const [now] = await replica.ceilings.forecast(one, [2]);
        expect(now?.waitMs).toBeGreaterThan(2 * ceilingWindowMs - 10_000);
        const [then] = await replica.ceilings.forecast(one, [2], 10_000);
        expect(then?.waitMs).toBeLessThanOrEqual(ceilingWindowMs);
        expect(then?.waitMs).toBeGreaterThan(ceilingWindowMs - 10_000);
      });

      test('forecasts the end of the day for the first call beyond the rest of the day', async () => {
        const three = ceiling(null, 3);
        await replica.ceilings.take(three);
        const [second, third, fourth] = await replica.ceilings.forecast(three, [1, 2, 3]);
        expect([second?.waitMs, third?.waitMs]).toEqual([0, 0]);
        expect(fourth).toMatchObject({ heldBy: 'ceiling_day' });
        expect(fourth?.waitMs).toBeGreaterThan(86_300_000);
        const five = ceiling(2, 5);
        const [, , , , , sixth] = await replica.ceilings.forecast(five, [1, 2, 3, 4, 5, 6]);
        expect(sixth).toMatchObject({ heldBy: 'ceiling_day' });
      });

      test('reports slots that come back, and none where nothing limits the workspace', async () => {
        const heard: CeilingRef[] = [];
        for (const limited of [ceiling(3, null), ceiling(null, 3), ceiling(null, null)]) {
          replica.ceilings.listen(() => heard.push(limited));
          const taken = await replica.ceilings.take(limited);
          if (taken.kind === 'taken') await replica.ceilings.giveSlotBack(limited, taken.slot);
        }
        expect(heard.map(({ perMinute, perDay }) => [perMinute, perDay])).toEqual([
          [3, null],
          [null, 3],
        ]);
      });

      test('counts a ceiling of the day without one of the minute', async () => {
        const day = ceiling(null, 1);
        const taken = await replica.ceilings.take(day);
        expect(taken).toMatchObject({ kind: 'taken', state: null, dayLeft: 0 });
        expect(await replica.ceilings.take(ceiling(3, 5))).toMatchObject({ kind: 'taken', dayLeft: 4 });
        expect(await replica.ceilings.take(day)).toMatchObject({ kind: 'refused', isDaily: true });
        if (taken.kind === 'taken') await replica.ceilings.giveSlotBack(day, taken.slot);
        expect((await replica.ceilings.take(day)).kind).toBe('taken');
      });
    });
  });
}
