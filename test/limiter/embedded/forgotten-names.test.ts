import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { createEmbeddedLimiter } from '../../../src/limiter/embedded/limiter.ts';
import type { Limiter } from '../../../src/limiter/limiter.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { admission } from '../../support/admission.ts';

let clock: FakeClock;
let limiter: Limiter;
beforeEach(() => {
  clock = new FakeClock();
  limiter = createEmbeddedLimiter(clock, { onGrant: () => {}, onClosed: () => {} });
});
afterEach(() => limiter.close());

const setting = {
  meters: [{ meter: 'requests', limit: 500, windowMs: 60_000 }],
  learn: true,
  probe: 1,
} as const;

test('the embedded limiter forgets at once a bucket to which no call was sent, and keeps one with a call in flight', async () => {
  for (let at = 0; at < 50; at += 1) {
    const bucket = `made-up-${at}`;
    const reply = await limiter.admit(admission(`t${at}`, { bucket, setting }));
    if (reply.kind === 'granted') await limiter.settle(reply.grant, { kind: 'dropped' }, null);
  }
  await limiter.admit(admission('busy', { bucket: 'real', setting }));
  expect(limiter.snapshot()).toHaveLength(51);
  await clock.run(7_000);
  expect(limiter.snapshot().map(({ bucket }) => bucket)).toEqual(['real']);
});
