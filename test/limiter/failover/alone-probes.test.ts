/** Without Redis: a bucket of which this replica knows nothing is probed, as any bucket of unknown level. */
import { afterEach, expect, test } from '@jest/globals';
import { bucketKey } from '../../../src/ids.ts';
import type { Grant, Limiter } from '../../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../../src/limiter/embedded/limiter.ts';
import type { LastReading } from '../../../src/limiter/redis/bucket-session.ts';
import { UnreportedUsage } from '../../../src/limiter/failover/unreported-usage.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { admission } from '../../support/admission.ts';

let store: Limiter | null = null;
afterEach(() => store?.close());

const options = { limit: 1_000, windowMs: 60_000, probe: 1 };
const seen: LastReading = {
  setting: null,
  takenSince: {},
  bucket: bucketKey('bucket'),
  closedMs: 0,
  waiting: 0,
  inFlight: 0,
  meters: [{ meter: 'requests', limit: 1_000, level: 100, windowMs: 60_000 }],
};

/** How many of 40 calls that come at once are sent before any response came, and after the first response. */
async function sent(known: LastReading | null) {
  const clock = new FakeClock();
  const grants: Grant[] = [];
  const alone = createEmbeddedLimiter(clock, { onGrant: (grant) => grants.push(grant), onClosed: () => {} });
  store = alone;
  const usage = new UnreportedUsage({
    remote: {
      lastReading: () => known,
      positions: { orderAt: () => 1 },
      report: async () => 'counted',
    },
    clock,
    replicas: () => 1,
  });
  for (let at = 0; at < 40; at += 1) {
    const entering = admission(`t${at}`, options);
    await usage.seed(alone, entering, 0);
    const reply = await alone.admit({ ...entering, setting: usage.shared(entering) });
    if (reply.kind === 'granted') grants.push(reply.grant);
  }
  const before = grants.length;
  const [first] = grants;
  if (first !== undefined) await alone.settle(first, { kind: 'succeeded', spent: null }, null);
  const level = alone.snapshot()[0]?.meters[0]?.level;
  return { before, after: grants.length, level };
}

test('a replica without Redis probes a bucket of which it knows nothing', async () => {
  expect(await sent(null)).toEqual({ before: 1, after: 40, level: 40 });
});

test('a replica without Redis goes on in a known bucket from the last level that Redis reported', async () => {
  expect(await sent(seen)).toEqual({ before: 40, after: 40, level: 140 });
});
