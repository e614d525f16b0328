/** Without Redis: a call that moves to another bucket while its grant of the former one is under way keeps its place there. */
import { expect, test } from '@jest/globals';
import { bucketKey, laneKey } from '../../../src/ids.ts';
import { LocalCalls, type LocalCallsParts } from '../../../src/limiter/failover/local-calls.ts';
import type { Grant } from '../../../src/limiter/limiter.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { admission } from '../../support/admission.ts';
import { FakeClock } from '../../support/fake-clock.ts';

test('the grant of the former bucket goes back, and the call can still leave the other one', async () => {
  const grants: Grant[] = [];
  const pending: Promise<unknown>[] = [];
  const local = new LocalCalls({
    clock: new FakeClock(),
    telemetry: noTelemetry,
    listener: { onGrant: (grant) => grants.push(grant), onClosed: () => {} },
    replicas: () => 1,
    leaseMs: 15_000,
    usage: {
      seed: async () => {},
      shared: ({ setting }: { readonly setting: unknown }) => setting,
    } as unknown as LocalCallsParts['usage'],
    background: {
      run: (work: Promise<unknown>) => pending.push(work),
    } as unknown as LocalCallsParts['background'],
  });
  const call = { ...admission('a', { limit: 1 }), position: { kind: 'kept', order: 1 } } as const;
  const other = { ...call, bucket: bucketKey('other'), lane: laneKey('other') };
  await local.enter(call);
  await local.cancel(call.bucket, call.ticket);
  await local.enter(other);
  const [former, present] = grants;
  expect([former?.bucket, present?.bucket]).toEqual([call.bucket, other.bucket]);
  if (former !== undefined)
    await local.settle(former, { settlement: { kind: 'dropped' }, lesson: null }, false);
  expect(local.hasTicket(call.ticket)).toBe(true);
  const returned = { kind: 'returned', sleepMs: 1_000, because: 'backoff' } as const;
  if (present !== undefined) await local.settle(present, { settlement: returned, lesson: null }, false);
  expect(local.snapshot().map(({ bucket, waiting, inFlight }) => [bucket, waiting, inFlight])).toEqual([
    [call.bucket, 0, 0],
    [other.bucket, 1, 0],
  ]);
  await local.cancel(other.bucket, call.ticket);
  await Promise.all(pending);
  await local.close();
});
