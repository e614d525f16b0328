/** What the desk knows of the ceiling between a lane's grants, and when it does not hold any more. */
import { expect, test } from '@jest/globals';
import { fullFor, Gates } from '../../src/admission/gates.ts';
import type { Lease } from '../../src/admission/ticket.ts';
import { admission } from '../support/admission.ts';
import { embeddedDesk, entry } from '../support/desk.ts';
import { FakeClock } from '../support/fake-clock.ts';

const lane = { bucket: 'b', lane: 'l' };

test('what was found out under other limits is forgotten, and the scheduler is told of slots again', () => {
  const gates = new Gates(new FakeClock());
  const gate = gates.underLimits(lane, '2.2');
  Object.assign(gate, {
    asleep: { until: 50_000, because: 'ceiling_day' },
    fullUntil: 60_000,
    atEdge: false,
  });
  expect(gates.underLimits(lane, '2.2')).toMatchObject({ fullUntil: 60_000, atEdge: false });
  expect(fullFor(gate, 0)).toEqual({ ms: 60_000, because: 'ceiling_minute' });
  gates.underLimits(lane, '5.2');
  expect(gate).toMatchObject({ asleep: null, fullUntil: null, atEdge: true });
  expect(fullFor(gate, 0)).toBeNull();
});

test('the longer of two waits is named', () => {
  const gate = new Gates(new FakeClock()).of(lane);
  Object.assign(gate, { asleep: { until: 90_000, because: 'ceiling_day' }, fullUntil: 60_000 });
  expect(fullFor(gate, 10_000)).toEqual({ ms: 80_000, because: 'ceiling_day' });
  expect(fullFor(gate, 90_000)).toBeNull();
});

test('gates that are not used any more are forgotten when there are very many, sleeping ones are not', async () => {
  const clock = new FakeClock();
  const gates = new Gates(clock);
  Object.assign(gates.of({ bucket: 'b', lane: 'asleep' }), {
    asleep: { until: 9e6, because: 'ceiling_day' },
  });
  for (let at = 0; at < 10_000; at += 1) gates.of({ bucket: 'b', lane: `l${at}` });
  clock.outside(121_000, () => {});
  await clock.run(121_000);
  gates.of({ bucket: 'b', lane: 'new' });
  expect(gates.find({ bucket: 'b', lane: 'l7' })).toBeUndefined();
  expect(gates.find({ bucket: 'b', lane: 'asleep' })).toBeDefined();
});

test('a lane that another replica narrowed at the edge of its ceiling is wide again once there is room', async () => {
  const clock = new FakeClock();
  const { desk, limiter } = embeddedDesk({ clock });
  const word = { lane: 'l', perMinute: 2, ceiling: '2.none' };
  const elsewhere = await limiter.admit(admission('elsewhere', { ...word, arrivedAt: 0 }));
  if (elsewhere.kind !== 'granted') throw new Error('not granted');
  await limiter.settle(elsewhere.grant, { kind: 'returned', sleepMs: 0, because: 'ceiling_minute' }, null);
  await limiter.cancel('bucket', 'elsewhere');
  const leases: Lease[] = [];
  for (let at = 0; at < 5; at += 1) {
    void desk
      .enter(entry(clock, `t${at}`, { lane: 'l', perMinute: 100 }))
      .then(async (ticket) => leases.push(await ticket.granted()));
  }
  await clock.run(1_000);
  expect(leases).toHaveLength(5);
});
