/**
 * What every store of limiter state promises, run against each of them: the same suite, the same results.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { ceilingKey } from '../../src/ids.ts';
import { type CeilingRef, ceilingWindowMs } from '../../src/limiter/policy/ceiling.policy.ts';
import type { AdmissionReply, Settlement } from '../../src/limiter/limiter.ts';
import { admission } from '../support/admission.ts';
import { startReplica, type TestReplica } from '../support/redis-replica.ts';

export interface StoreUnderTest {
  /** Content of `redis:`, or `null` for the embedded store. */
  begin(): Promise<string | null>;
  end(): Promise<void>;
}

const done: Settlement = { kind: 'succeeded', spent: null };
let names = 0;
/** A name that no other test has used. */
export const fresh = (word: string): string => `${word}${(names += 1)}`;

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

    test('grants a capped lane one call at a time, by urgency, and closes a bucket for the time that a response named', async () => {
      const bucket = fresh('upstream.b');
      const tickets = ['first', 'a', 'urgent'].map(fresh);
      const [first = '', a = '', urgent = ''] = tickets;
      const replies: AdmissionReply[] = [];
      for (const ticket of tickets) {
        const asked = { bucket, maxInFlight: 1, urgency: ticket === urgent ? 0 : 3 };
        replies.push(await replica.limiter.admit(admission(ticket, asked)));
      }
      expect(replies.map(({ kind }) => kind)).toEqual(['granted', 'queued', 'queued']);
      const [reply] = replies;
      if (reply?.kind !== 'granted') throw new Error('nothing was granted');
      const closedAt = performance.now();
      const refused = { kind: 'throttled', closeMs: 300, requeue: true, sleepMs: 0 } as const;
      await replica.limiter.settle(reply.grant, refused, null);
      for (const ticket of [urgent, first, a])
        await replica.limiter.settle(await replica.granted(ticket), done, null);
      const left = replica.grants.map(({ ticket }) => String(ticket)).filter((one) => tickets.includes(one));
      expect(left).toEqual([urgent, first, a]);
      expect((replica.at.get(urgent) ?? NaN) - closedAt).toBeGreaterThanOrEqual(299);
    });

    describe('for ceilings', () => {
      const ceiling = (perMinute: number | null, perDay: number | null): CeilingRef => ({
        key: ceilingKey(fresh('c')),
        perMinute,
        perDay,
      });
      const forecast = async (of: CeilingRef, at: readonly number[], asOf?: number): Promise<number[]> =>
        (await replica.ceilings.forecast(of, at, asOf)).map(({ waitMs }) => waitMs);
      /** So many windows, of which some has passed since the test began. */
      const isWindows = (waitMs: number | undefined, windows: number): void => {
        expect(waitMs).toBeGreaterThan(windows * ceilingWindowMs - 10_000);
        expect(waitMs).toBeLessThanOrEqual(windows * ceilingWindowMs);
      };

      test('gives as many slots as there are, takes back the very slot that was taken, once, and says when the next one frees', async () => {
        const two = ceiling(2, 3);
        const take = () => replica.ceilings.take(two);
        const first = await take();
        expect(first).toMatchObject({ kind: 'taken', state: { limit: 2, remaining: 1 }, dayLeft: 2 });
        expect(await take()).toMatchObject({ kind: 'taken', state: { remaining: 0 }, dayLeft: 1 });
        const full = await take();
        expect(full).toMatchObject({ kind: 'refused', isDaily: false });
        isWindows(full.kind === 'refused' ? full.waitMs : 0, 1);
        for (let time = 0; time < 2; time += 1)
          if (first.kind === 'taken') await replica.ceilings.giveSlotBack(two, first.slot);
        expect([(await take()).kind, (await take()).kind]).toEqual(['taken', 'refused']);
      });

      test('refuses by the day without taking a slot of the minute', async () => {
        const day = ceiling(10, 1);
        expect((await replica.ceilings.take(day)).kind).toBe('taken');
        const refused = await replica.ceilings.take(day);
        expect(refused).toMatchObject({ kind: 'refused', isDaily: true });
        const waitMs = refused.kind === 'refused' ? refused.waitMs : 0;
        expect(waitMs > 86_000_000 && waitMs <= 86_400_000).toBe(true);
        expect(await replica.ceilings.state(day)).toMatchObject({ limit: 10, remaining: 9 });
        expect(await replica.ceilings.dayState(day)).toMatchObject({ remaining: 0 });
      });

      test('forecasts the k-th slot from now, and counts no call twice that was sent since the positions were taken', async () => {
        const two = ceiling(2, null);
        await replica.ceilings.take(two);
        const [first, second, third, fourth] = await forecast(two, [1, 2, 3, 4]);
        expect(first).toBe(0);
        isWindows(second, 1);
        isWindows(third, 1);
        isWindows(fourth, 2);
        isWindows((await forecast(two, [3], 10_000))[0], 1);
        expect(await forecast(two, [2], 10_000)).toEqual([0]);
      });

      test('reports slots that come back, and none where nothing limits the workspace', async () => {
        const heard: (number | null)[][] = [];
        for (const limited of [ceiling(3, null), ceiling(null, 3), ceiling(null, null)]) {
          replica.ceilings.listen(() => heard.push([limited.perMinute, limited.perDay]));
          const taken = await replica.ceilings.take(limited);
          if (taken.kind === 'taken') await replica.ceilings.giveSlotBack(limited, taken.slot);
        }
        expect(heard).toEqual([
          [3, null],
          [null, 3],
        ]);
      });
    });
  });
}
