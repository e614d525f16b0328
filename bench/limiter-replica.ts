/**
 * One replica of `limiters.ts`, a process of its own: what the gateway has between a call and its upstream, without HTTP. Its argument
 * says where Redis is, its environment whether the limiter is one process' own (`SLUICE_LIMITER=embedded`). It answers each message of its
 * parent with one.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { AdmissionQueue } from '../src/admission/admission.ts';
import { systemClock, systemRandom } from '../src/clock.ts';
import { createStores, type Stores } from '../src/limiter/stores.ts';
import { callOf } from '../test/support/admission-queue.ts';
import { noTelemetry } from '../test/support/no-telemetry.ts';
import { redisSettings } from '../test/support/redis-replica.ts';
import type { Stretch, Taken } from './limiters.ts';

const url = process.argv[2] ?? '';
const failures: string[] = [];
const settings = redisSettings(`url: "${url}", commandTimeoutMs: 10000`);
const stores: Stores = createStores({
  settings: process.env['SLUICE_LIMITER'] === 'embedded' ? { ...settings, redis: null } : settings,
  clock: systemClock,
  random: systemRandom,
  telemetry: noTelemetry,
  listener: {
    onGrant: (grant) => queue.listener.onGrant(grant),
    onClosed: (bucket, ms) => queue.listener.onClosed(bucket, ms),
  },
});
const queue: AdmissionQueue = new AdmissionQueue({
  clock: systemClock,
  limiter: stores.limiter,
  ceilings: stores.ceilings,
  onFailure: (failure) => failures.push(String(failure)),
});
await stores.ready();

const maxUnanswered = 64;
let calls = 0;
/** A call that is sent when it is granted, and answered in the next turn. Milliseconds until it was granted. */
async function call(buckets: number): Promise<number> {
  calls += 1;
  const options = {
    bucket: `log.bucket-${calls % buckets}`,
    lane: `lane-${calls % buckets}`,
    workspace: 'bench',
    limit: 1e8,
    windowMs: 60_000,
    perMinute: 100_000_000,
  };
  const startedAt = performance.now();
  const ticket = await queue.enter(...callOf(systemClock, `${process.pid}-${calls}`, options));
  const lease = await ticket.whenGranted();
  const tookMs = performance.now() - startedAt;
  await new Promise(setImmediate);
  lease.settle(
    { kind: 'succeeded', spent: null },
    { feedback: { meters: [], throttle: null }, sentAgoMs: 1, headAgoMs: 0 },
  );
  ticket.leave();
  return tookMs;
}

async function run({ pace, calls: count, buckets }: Stretch): Promise<number[]> {
  const took: number[] = [];
  if ('connections' in pace) {
    let left = count;
    const connection = async (): Promise<void> => {
      while (left > 0) {
        left -= 1;
        took.push(await call(buckets));
      }
    };
    await Promise.all(Array.from({ length: pace.connections }, connection));
    return took;
  }
  const startedAt = performance.now();
  const unanswered = new Set<Promise<unknown>>();
  for (let n = 0; n < count; n += 1) {
    const waitMs = startedAt + (n * 1_000) / pace.perSecond - performance.now();
    if (waitMs > 0) await pause(waitMs);
    // A machine that stands still leaves no crowd behind.
    while (unanswered.size >= maxUnanswered) await Promise.race(unanswered);
    const one = call(buckets).then((ms) => {
      took.push(ms);
      unanswered.delete(one);
    });
    unanswered.add(one);
  }
  await Promise.all(unanswered);
  return took;
}

process.on('message', (stretch: Stretch) => {
  void run(stretch).then((took) => {
    const medianMs = took.toSorted((a, b) => a - b)[took.length >> 1] ?? NaN;
    process.send?.({ medianMs, failures: failures.splice(0) } satisfies Taken);
  });
});
process.once('disconnect', () => process.exit());
process.send?.('ready');
