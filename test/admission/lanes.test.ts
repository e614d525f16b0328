/** What this replica knows of a lane and its ceiling, and when that knowledge is dropped. */
import { expect, test } from '@jest/globals';
import { bucketKey, ticketId } from '../../src/ids.ts';
import { applyLimits, ceilingFullFor, Lanes } from '../../src/admission/lanes.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const inB = (lane: string) => callOf(new FakeClock(), 'call', { bucket: 'b', lane })[0];
const name = inB('l');

test('a lane whose ceiling limits changed forgets what it knew of the ceiling and reports slots again', () => {
  const lane = new Lanes(new FakeClock()).of(name);
  applyLimits(lane, '2.2');
  lane.gate.asleep = { until: 50_000, because: 'ceiling_day' };
  lane.edge.fullUntil = 60_000;
  applyLimits(lane, '2.2');
  expect(lane.edge).toMatchObject({ fullUntil: 60_000, isReported: false });
  expect(ceilingFullFor(lane, 0)).toEqual({ waitMs: 60_000, heldBy: 'ceiling_minute' });
  applyLimits(lane, '5.2');
  expect(lane.gate.asleep).toBeNull();
  expect(lane.edge).toMatchObject({ fullUntil: null, isReported: true });
  expect(ceilingFullFor(lane, 0)).toBeNull();
});

test('a lane held for two reasons names the longer one', () => {
  const lane = new Lanes(new FakeClock()).of(name);
  lane.gate.asleep = { until: 90_000, because: 'ceiling_day' };
  lane.edge.fullUntil = 60_000;
  expect(ceilingFullFor(lane, 10_000)).toEqual({ waitMs: 80_000, heldBy: 'ceiling_day' });
  expect(ceilingFullFor(lane, 90_000)).toBeNull();
});

test('unused lanes are forgotten when there are very many, sleeping lanes and lanes with calls are not', async () => {
  const clock = new FakeClock();
  const lanes = new Lanes(clock);
  const [asleep, busy, unused] = ['asleep', 'busy', 'unused'].map((lane) => lanes.of(inB(lane)));
  Object.assign(asleep?.gate ?? {}, { asleep: { until: 9e6, because: 'ceiling_day' } });
  Object.assign(busy ?? {}, { calls: 1 });
  for (let at = 0; at < 10_000; at += 1) lanes.of(inB(`l${at}`));
  clock.outside(121_000, () => {});
  await clock.run(121_000);
  lanes.of(inB('new'));
  expect(lanes.of(inB('unused'))).not.toBe(unused);
  expect(lanes.of(inB('asleep'))).toBe(asleep);
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
