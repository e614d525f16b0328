/** What this replica knows of a lane and its ceiling, and when that knowledge is dropped. */
import { expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../src/ids.ts';
import { Lanes } from '../../src/admission/lanes.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const inB = (lane: string) => callOf(new FakeClock(), 'call', { bucket: 'b', lane })[0];

test('unused lanes are forgotten when there are very many, lanes with calls are not', async () => {
  const clock = new FakeClock();
  const lanes = new Lanes(clock);
  const [busy, unused] = ['busy', 'unused'].map((lane) => lanes.of(inB(lane)));
  Object.assign(busy ?? {}, { calls: 1 });
  for (let at = 0; at < 10_000; at += 1) lanes.of(inB(`l${at}`));
  clock.outside(121_000, () => {});
  await clock.run(121_000);
  lanes.of(inB('new'));
  expect(lanes.of(inB('unused'))).not.toBe(unused);
  expect(lanes.of(inB('busy'))).toBe(busy);
});

test('a lane that another replica held to single calls at a full ceiling is no longer held once there is room', async () => {
  const clock = new FakeClock();
  const { queue, limiter } = embeddedQueue({ clock });
  const admitted = { lane: 'l', perMinute: 2, ceilingTag: '2.none' };
  const elsewhere = await limiter.admit(admission('elsewhere', { ...admitted, arrivedAt: 0 }));
  if (elsewhere.kind !== 'granted') throw new Error('not granted');
  await limiter.settle(elsewhere.grant, { kind: 'returned', sleepMs: 0, because: 'ceiling_minute' }, null);
  await limiter.cancel(bucketKey('bucket'), ticketId('elsewhere'));
  const leases: Lease[] = [];
  for (let at = 0; at < 5; at += 1) {
    void queue
      .enter(...callOf(clock, `t${at}`, { lane: 'l', perMinute: 100 }))
      .then(async (ticket) => leases.push(await ticket.whenGranted()));
  }
  await clock.run(1_000);
  expect(leases).toHaveLength(5);
});
