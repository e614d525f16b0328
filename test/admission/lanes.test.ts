/** What this process knows of a lane and its ceiling, and when it does not hold any more. */
import { expect, test } from '@jest/globals';
import { applyLimits, knownFull, Lanes } from '../../src/admission/lanes.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { admission } from '../support/admission.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

const name = { bucket: 'b', lane: 'l' };

test('what was found out under other limits is forgotten, and the scheduler is told of slots again', () => {
  const lane = new Lanes(new FakeClock()).of(name);
  applyLimits(lane, '2.2');
  lane.gate.asleep = { until: 50_000, because: 'ceiling_day' };
  lane.edge.fullUntil = 60_000;
  applyLimits(lane, '2.2');
  expect(lane.edge).toMatchObject({ fullUntil: 60_000, isReported: false });
  expect(knownFull(lane, 0)).toEqual({ waitMs: 60_000, heldBy: 'ceiling_minute' });
  applyLimits(lane, '5.2');
  expect(lane.gate.asleep).toBeNull();
  expect(lane.edge).toMatchObject({ fullUntil: null, isReported: true });
  expect(knownFull(lane, 0)).toBeNull();
});

test('the longer of two waits is named', () => {
  const lane = new Lanes(new FakeClock()).of(name);
  lane.gate.asleep = { until: 90_000, because: 'ceiling_day' };
  lane.edge.fullUntil = 60_000;
  expect(knownFull(lane, 10_000)).toEqual({ waitMs: 80_000, heldBy: 'ceiling_day' });
  expect(knownFull(lane, 90_000)).toBeNull();
});

test('when there are very many lanes, unused ones are forgotten, sleeping ones and those with calls are not', async () => {
  const clock = new FakeClock();
  const lanes = new Lanes(clock);
  lanes.of({ bucket: 'b', lane: 'asleep' }).gate.asleep = { until: 9e6, because: 'ceiling_day' };
  lanes.of({ bucket: 'b', lane: 'busy' }).calls = 1;
  for (let at = 0; at < 10_000; at += 1) lanes.of({ bucket: 'b', lane: `l${at}` });
  clock.outside(121_000, () => {});
  await clock.run(121_000);
  lanes.of({ bucket: 'b', lane: 'new' });
  expect(lanes.find({ bucket: 'b', lane: 'l7' })).toBeUndefined();
  expect(lanes.find({ bucket: 'b', lane: 'asleep' })).toBeDefined();
  expect(lanes.find({ bucket: 'b', lane: 'busy' })).toBeDefined();
});

test('a lane that another replica narrowed at the edge of its ceiling is wide again once there is room', async () => {
  const clock = new FakeClock();
  const { queue, limiter } = embeddedQueue({ clock });
  const word = { lane: 'l', perMinute: 2, ceiling: '2.none' };
  const elsewhere = await limiter.admit(admission('elsewhere', { ...word, arrivedAt: 0 }));
  if (elsewhere.kind !== 'granted') throw new Error('not granted');
  await limiter.settle(elsewhere.grant, { kind: 'returned', sleepMs: 0, because: 'ceiling_minute' }, null);
  await limiter.cancel('bucket', 'elsewhere');
  const leases: Lease[] = [];
  for (let at = 0; at < 5; at += 1) {
    void queue
      .enter(...callOf(clock, `t${at}`, { lane: 'l', perMinute: 100 }))
      .then(async (ticket) => leases.push(await ticket.granted()));
  }
  await clock.run(1_000);
  expect(leases).toHaveLength(5);
});
