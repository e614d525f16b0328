/**
 * A lesson that reaches the store late, behind a batch that is under way or over a slow connection, keeps its true age on the
 * store's clock. Otherwise the response to a call that was sent earlier would count as one to a call that was sent later, and
 * the store would forget a level that only earlier calls have shown.
 */
import { describe, expect, test } from '@jest/globals';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { admission } from '../../support/admission.ts';
import { origins } from '../../support/origins.ts';
import { VirtualRedis } from '../../support/virtual-redis.ts';

const key = 'b';
const limit = 600;
const answered = (used: number) => ({
  meters: [{ meter: 'requests' as const, limit, windowMs: 60_000, level: { lowest: used, highest: used } }],
  throttle: null,
});

describe.each(origins)('a store on $name', ({ ms }) => {
  test('learns when a call was sent, however late the lesson arrives', async () => {
    const redis = new VirtualRedis(ms);
    const { limiter } = await redis.replica('a');
    const grants: Grant[] = [];
    for (const ticket of ['t1', 't2', 't3']) {
      void limiter.admit(admission(ticket, { bucket: key, limit, windowMs: 60_000 })).then((reply) => {
        if (reply.kind === 'granted') grants.push(reply.grant);
      });
    }
    await redis.pass(500);
    expect(grants).toHaveLength(3);

    redis.toMs = 80;
    const settledAt = redis.clock.monotonic();
    const [first, second, third] = grants as [Grant, Grant, Grant];
    const done = { kind: 'succeeded', spent: null } as const;
    const heardAt = (): number | null | undefined =>
      redis.server.model(key).bucket?.meters.get('requests')?.heardAt;
    void limiter.learn(first, { feedback: answered(10), sentAgoMs: 40, headAgoMs: 2 });
    // These two go with the next batch.
    void limiter.settle(second, done, { feedback: answered(20), sentAgoMs: 30, headAgoMs: 2 });
    void limiter.learn(third, { feedback: answered(30), sentAgoMs: 20, headAgoMs: 2 });
    await redis.pass(100);
    expect(heardAt()).toBeCloseTo(ms + settledAt - 40, 1);
    await redis.pass(100);
    expect(heardAt()).toBeCloseTo(ms + settledAt - 20, 1);
  });
});
