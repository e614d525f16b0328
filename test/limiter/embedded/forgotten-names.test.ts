import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { createEmbeddedLimiter, type Limiter } from '../../../src/limiter/over-log/limiter.ts';
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

/** A call that is granted, and was not sent. */
async function notSent(name: string, bucket: string): Promise<void> {
  const reply = await limiter.admit(admission(name, { bucket, setting }));
  if (reply.kind === 'granted') await limiter.settle(reply.grant, { kind: 'dropped' }, null);
}

const pass = async (ms: number): Promise<void> => {
  const until = clock.monotonic() + ms;
  clock.outside(until, () => {});
  await clock.run(until);
};

const known = (): string[] => limiter.snapshot().map(({ bucket }) => bucket);

test('the embedded limiter forgets at once a bucket to which no call was sent, and keeps one with a call in flight', async () => {
  for (let at = 0; at < 50; at += 1) await notSent(`t${at}`, `own.made-up-${at}`);
  await limiter.admit(admission('busy', { bucket: 'own.real', setting }));
  expect(known()).toHaveLength(51);
  await pass(7_000);
  expect(known()).toEqual(['own.real']);
});

test('the embedded limiter forgets credentials that nobody uses, but not what it has learned with one', async () => {
  for (let at = 0; at < 50; at += 1) await notSent(`t${at}`, `made-up-${at}.bucket`);
  const reply = await limiter.admit(admission('learned', { bucket: 'learned.bucket', setting }));
  if (reply.kind !== 'granted') throw new Error('not granted');
  await limiter.settle(
    reply.grant,
    { kind: 'throttled', closeMs: 600_000, requeue: false, sleepMs: 0 },
    null,
  );
  expect(known()).toHaveLength(51);
  for (let minutes = 0; minutes < 3; minutes += 1) {
    await pass(61_000);
    await notSent(`later-${minutes}`, 'used.bucket');
  }
  expect(known()).toEqual(['learned.bucket', 'used.bucket']);
});
