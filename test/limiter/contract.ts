/**
 * What every store of limiter state promises, run against each of them: the same suite, the same results.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { ceilingKey } from '../../src/ids.ts';
import { type CeilingRef, ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import type { AdmissionReply, Settlement } from '../../src/limiter/limiter.ts';
import { admission, type AdmissionOptions } from '../support/admission.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';

export interface StoreUnderTest {
  /** Content of `redis:`, or `null` for the embedded store. */
  begin(): Promise<string | null>;
  end(): Promise<void>;
}

const done: Settlement = { kind: 'succeeded', spent: null };
let names = 0;
/** A name that no other test has used. */
const fresh = (word: string): string => `${word}${(names += 1)}`;

export function storeContract(name: string, store: StoreUnderTest): void {
  describe(`the ${name} store`, () => {
    let replica: TestReplica;
    beforeAll(async () => {
      replica = await startReplica(await store.begin());
    });
    afterAll(async () => {
      await replica.close();
      await store.end();
    });
    /** A call, as a new bucket gets it. */
    const caller = (options: AdmissionOptions) => {
      const bucket = fresh('upstream.b');
      return async (ticket: string, more: AdmissionOptions = {}): Promise<AdmissionReply> =>
        replica.limiter.admit(admission(ticket, { bucket, ...options, ...more }));
    };
    /** Resolves when the call has left and its end is settled. */
    const end = async (reply: AdmissionReply, ticket: string, settlement = done): Promise<void> => {
      const grant = reply.kind === 'granted' ? reply.grant : await replica.granted(ticket);
      await replica.limiter.settle(grant, settlement, null);
    };

    test('grants a capped lane one call at a time, by urgency, and then in order of arrival', async () => {
      const ask = caller({ maxInFlight: 1 });
      const tickets = ['first', 'a', 'b', 'urgent'].map(fresh);
      const replies: AdmissionReply[] = [];
      for (const [at, ticket] of tickets.entries())
        replies.push(await ask(ticket, { urgency: at < 3 ? 3 : 0 }));
      expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'queued', 'queued', 'queued']);
      const [first = '', a = '', b = '', urgent = ''] = tickets;
      for (const ticket of [first, urgent, a, b]) {
        const reply = replies[tickets.indexOf(ticket)];
        if (reply !== undefined) await end(reply, ticket);
      }
      const left = replica.grants
        .map(({ ticket }) => String(ticket))
        .filter((ticket) => tickets.includes(ticket));
      expect(left).toEqual([urgent, a, b]);
    });

    test('grants a waiting call by itself when the meter has room again, and refuses one that cannot wait', async () => {
      const ask = caller({ limit: 2, windowMs: 1_000 });
      const [a, b, c, d] = ['a', 'b', 'c', 'd'].map(fresh) as [string, string, string, string];
      for (const ticket of [a, b]) await end(await ask(ticket), ticket);
      expect(await ask(d, { maxWaitMs: 0 })).toMatchObject({ kind: 'refused', reason: 'wait_too_long' });
      await end(await ask(c), c);
    });

    test('closes a bucket for the time that a throttled response named, and puts the call back at its position', async () => {
      const ask = caller({ maxInFlight: 1 });
      const [a, b] = ['a', 'b'].map(fresh) as [string, string];
      const [first, second] = [await ask(a), await ask(b)];
      const closedAt = performance.now();
      const again = replica.granted(a);
      await end(first, a, { kind: 'throttled', closeMs: 300, requeue: true, sleepMs: 0 });
      await replica.limiter.settle(await again, done, null);
      expect((replica.at.get(a) ?? NaN) - closedAt).toBeGreaterThanOrEqual(299);
      await end(second, b);
    });

    describe('for ceilings', () => {
      const ceiling = (perMinute: number | null, perDay: number | null): CeilingRef => ({
        key: ceilingKey(fresh('c')),
        perMinute,
        perDay,
      });
      const take = (of: CeilingRef, limit: Partial<CeilingRef> = {}) =>
        replica.ceilings.take({ ...of, ...limit });
      const kinds = async (of: CeilingRef, ...limits: readonly Partial<CeilingRef>[]): Promise<string[]> => {
        const kinds: string[] = [];
        for (const limit of limits) kinds.push((await take(of, limit)).kind);
        return kinds;
      };
      const forecast = async (
        of: CeilingRef,
        positions: readonly number[],
        asOf?: number,
      ): Promise<number[]> =>
        (await replica.ceilings.forecast(of, positions, asOf)).map(({ waitMs }) => waitMs);
      /** So many windows, of which some has passed since the test began. */
      const isWindows = (waitMs: number | undefined, windows: number): void => {
        expect(waitMs).toBeGreaterThan(windows * ceilingWindowMs - 10_000);
        expect(waitMs).toBeLessThanOrEqual(windows * ceilingWindowMs);
      };

      test('gives as many slots as there are, and says when the next one frees', async () => {
        const three = ceiling(3, null);
        for (const remaining of [2, 1, 0])
          expect(await take(three)).toMatchObject({
            kind: 'taken',
            state: { limit: 3, remaining },
            dayLeft: null,
          });
        const refused = await take(three);
        expect(refused).toMatchObject({ kind: 'refused', isDaily: false });
        isWindows(refused.kind === 'refused' ? refused.waitMs : 0, 1);
      });

      test('takes back the very slot that was taken, once', async () => {
        const one = ceiling(1, 5);
        const first = await take(one);
        if (first.kind !== 'taken') throw new Error('no slot');
        await replica.ceilings.giveSlotBack(one, first.slot);
        expect(await kinds(one, {}, {})).toEqual(['taken', 'refused']);
        expect(await replica.ceilings.dayState(one)).toMatchObject({ limit: 5, remaining: 4 });
      });

      test('refuses by the day without taking a slot of the minute', async () => {
        const day = ceiling(10, 2);
        expect(await kinds(day, {}, {})).toEqual(['taken', 'taken']);
        const refused = await take(day);
        expect(refused).toMatchObject({ kind: 'refused', isDaily: true });
        const waitMs = refused.kind === 'refused' ? refused.waitMs : 0;
        expect(waitMs > 86_000_000 && waitMs <= 86_400_000).toBe(true);
        expect(await replica.ceilings.state(day)).toMatchObject({ limit: 10, remaining: 8 });
        expect(await replica.ceilings.dayState(day)).toMatchObject({ remaining: 0 });
      });

      test('keeps the count of the day when its limit is raised or lowered', async () => {
        const day = ceiling(null, 2);
        const limits = [2, 2, 2, 3, 3, 1].map((perDay) => ({ perDay }));
        expect(await kinds(day, ...limits)).toEqual([
          'taken',
          'taken',
          'refused',
          'taken',
          'refused',
          'refused',
        ]);
        for (const [perDay, remaining] of [
          [5, 2],
          [1, 0],
        ] as const)
          expect(await replica.ceilings.dayState({ ...day, perDay })).toMatchObject({
            limit: perDay,
            remaining,
          });
      });

      test('counts the sends of a window whatever the limit was when they were made', async () => {
        const minute = ceiling(2, null);
        const limits = [2, 2, 2, 3, 3, 1].map((perMinute) => ({ perMinute }));
        expect(await kinds(minute, ...limits)).toEqual([
          'taken',
          'taken',
          'refused',
          'taken',
          'refused',
          'refused',
        ]);
        const [next, second] = await forecast({ ...minute, perMinute: 1 }, [1, 2]);
        isWindows(next, 1);
        isWindows(second, 2);
      });

      test('forecasts the k-th slot from now, and counts no call twice that was sent since the positions were taken', async () => {
        const two = ceiling(2, null);
        await take(two);
        const [first, second, third, fourth] = await forecast(two, [1, 2, 3, 4]);
        expect(first).toBe(0);
        isWindows(second, 1);
        isWindows(third, 1);
        isWindows(fourth, 2);
        isWindows((await forecast(two, [3], 10_000))[0], 1);
        expect(await forecast(two, [2], 10_000)).toEqual([0]);
      });

      test('forecasts the end of the day for the first call beyond the rest of the day', async () => {
        const three = ceiling(null, 3);
        await take(three);
        const [second, third, fourth] = await replica.ceilings.forecast(three, [1, 2, 3]);
        expect([second?.waitMs, third?.waitMs, fourth?.heldBy]).toEqual([0, 0, 'ceiling_day']);
        expect(fourth?.waitMs).toBeGreaterThan(86_300_000);
        expect((await replica.ceilings.forecast(ceiling(2, 5), [6]))[0]).toMatchObject({
          heldBy: 'ceiling_day',
        });
      });

      test('reports slots that come back, and none where nothing limits the workspace', async () => {
        const heard: (number | null)[][] = [];
        for (const limited of [ceiling(3, null), ceiling(null, 3), ceiling(null, null)]) {
          replica.ceilings.listen(() => heard.push([limited.perMinute, limited.perDay]));
          const taken = await take(limited);
          if (taken.kind === 'taken') await replica.ceilings.giveSlotBack(limited, taken.slot);
        }
        expect(heard).toEqual([
          [3, null],
          [null, 3],
        ]);
      });

      test('counts a ceiling of the day without one of the minute', async () => {
        const day = ceiling(null, 1);
        const taken = await take(day);
        expect(taken).toMatchObject({ kind: 'taken', state: null, dayLeft: 0 });
        expect(await take(ceiling(3, 5))).toMatchObject({ kind: 'taken', dayLeft: 4 });
        expect(await take(day)).toMatchObject({ kind: 'refused', isDaily: true });
        if (taken.kind === 'taken') await replica.ceilings.giveSlotBack(day, taken.slot);
        expect(await kinds(day, {})).toEqual(['taken']);
      });
    });
  });
}
