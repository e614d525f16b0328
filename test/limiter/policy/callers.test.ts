/** Callers of a workspace take turns within its lane. */
import { expect, test } from '@jest/globals';
import { callerKey, ticketId } from '../../../src/ids.ts';
import { maxCallers } from '../../../src/limiter/policy/lanes.policy.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { Chance } from '../../simulation/chance.ts';
import { names, returned, TestBucket, throttled } from './scheduling.ts';

/** A ticket and its caller. */
type Asking = readonly [ticket: string, caller: string | null];

const by = (caller: string | null): AdmissionOptions =>
  caller === null ? {} : { caller: callerKey(caller) };
const enter = (line: TestBucket, asking: readonly Asking[], options: AdmissionOptions = {}): string[] =>
  asking.flatMap(([ticket, caller]) => line.enter([ticket], { ...by(caller), ...options }));
/** So many calls of one caller, who gives them its name and a number; so many of nobody. */
const many = (caller: string, count: number): Asking[] =>
  names(count, caller).map((ticket) => [ticket, caller]);
const unnamed = (count: number): Asking[] => names(count, 'n').map((ticket) => [ticket, null]);

/** A bucket in which a place comes free every hundred milliseconds: it is full at one second, with these calls waiting. */
function waiting(instant: Instant, asking: readonly Asking[]): TestBucket {
  const line = new TestBucket(instant, { limit: 10, windowMs: 1_000 });
  line.enter(names(10, 'full'));
  enter(line, asking);
  return line;
}

/** The tickets in the order in which they leave. */
const orderOf = (line: TestBucket): string[] => [...line.run(600_000).keys()];

atOrigins('callers of a workspace', (instant) => {
  test('take turns, each with its calls in the order of their arrival', () => {
    const line = waiting(instant, [...many('loop', 5), ...many('ann', 2), ...many('bob', 1)]);
    const order = ['ann0', 'bob0', 'loop0', 'ann1', 'loop1', 'loop2', 'loop3', 'loop4'];
    expect(orderOf(line)).toEqual(order);
  });

  test('are let in where the turn of the first one that is named is within its wait, however many calls name none', () => {
    const line = waiting(instant, unnamed(3));
    expect(line.admit('named', { ...by('k'), maxWaitMs: 250 })).toMatchObject({ kind: 'queued', ahead: 1 });
    expect(orderOf(line)).toEqual(['n0', 'named', 'n1', 'n2']);
  });

  test('have urgency among their own calls only', () => {
    const line = waiting(instant, [...many('a', 1), ...many('b', 1)]);
    line.enter(['a-urgent'], { ...by('a'), urgency: 0 });
    expect(orderOf(line)).toEqual(['a-urgent', 'b0', 'a0']);
  });

  test('are one where calls name none', () => {
    const line = waiting(instant, [...unnamed(3), ...many('a', 2), ['n3', null]]);
    expect(orderOf(line)).toEqual(['n0', 'a0', 'n1', 'a1', 'n2', 'n3']);
  });

  test('keep the place of a call that goes back to its lane', () => {
    const line = waiting(instant, [...many('a', 3), ...many('b', 3)]);
    expect(line.leavesAt('a0')).toBeLessThan(1_200);
    line.settle('a0', returned('backoff', 20));
    expect(orderOf(line)).toEqual(['a0', 'b0', 'a1', 'b1', 'a2', 'b2']);
  });

  test('have at most one turn before others when many of their calls come back together', () => {
    const line = waiting(instant, []).at(20_000);
    const sent = enter(line, many('a', 5));
    expect(sent).toHaveLength(5);
    for (const ticket of sent) line.settle(ticket, throttled(100, { requeue: true }));
    enter(line.at(20_050), many('b', 1));
    expect(orderOf(line).indexOf('b0')).toBeLessThanOrEqual(1);
  });

  test('owe no turn when nobody waited beside them', () => {
    const line = waiting(instant, many('a', 3));
    expect(orderOf(line)).toEqual(['a0', 'a1', 'a2']);
    enter(line, [...many('b', 2), ['a3', 'a'], ['a4', 'a']]);
    expect(line.lane().callers).toBeNull();
  });

  test('do not catch up for the time in which they asked for nothing', () => {
    const line = waiting(instant, [...many('a', 60), ...many('b', 1)]);
    line.run(4_000);
    enter(line, many('b', 11).slice(1));
    const next = orderOf(line).slice(0, 10);
    expect(next.filter((ticket) => ticket.startsWith('b'))).toHaveLength(5);
  });

  test.each([1, 2, 3, 4, 5, 6])('are told where they stand: seed %i', (seed) => {
    const draw = new Chance(seed);
    const asking = names(40).map((ticket): Asking => [
      ticket,
      draw.pick(['a', 'b', 'c', 'd', null, 'a', 'a']),
    ]);
    const line = waiting(instant, asking);
    // Some turns were taken before.
    line.run(1_000 + 100 * draw.whole(0, 12));
    const told = asking.flatMap(([ticket]) => {
      const position = line.at(2_300).forecast(ticket);
      return position === null || line.bucket.tickets.get(ticketId(ticket))?.lease !== null
        ? []
        : [[ticket, position.ahead]];
    });
    const order = orderOf(line);
    expect(told.length).toBeGreaterThan(20);
    expect(Object.fromEntries(told)).toEqual(Object.fromEntries(order.map((ticket, at) => [ticket, at])));
  });
});

// These take seconds, and have nothing to do with where a clock begins.
const began: Instant = (afterMs) => 1.79e12 + afterMs;
test('callers that are gone leave their places to new ones', () => {
  const line = waiting(began, many('loop', 3_000));
  for (let at = 0; at < maxCallers + 200; at += 1) {
    enter(line.at(2_000 + 200 * at), [[`t${at}`, `c_${at}`]]);
    line.run(2_199 + 200 * at);
  }
  const lines = line.lane().callers?.lines;
  expect(lines?.size).toBeLessThanOrEqual(maxCallers);
  expect(lines?.has(callerKey('other'))).toBe(false);
});

test('callers of a workspace are no more than a thousand and one at a time', () => {
  const line = waiting(
    began,
    names(maxCallers + 50).map((ticket, at) => [ticket, `c_${String(at).padStart(4, '0')}`]),
  );
  const { callers } = line.lane();
  expect(callers?.lines.size).toBe(maxCallers + 1);
  // One beyond the bound that leaves is gone from among the further ones.
  enter(line, [['gone', 'c_1020']]);
  line.cancel('gone');
  expect(callers?.lines.get(callerKey('other'))?.line.size).toBe(50);
  // Callers beyond the bound stay in order, also those that become known meanwhile.
  enter(line, [['again', 'c_1020']]);
  line.cancel('t0');
  enter(line, [['once more', 'c_1020']]);
  const left = orderOf(line);
  const own = ['t1020', 'again', 'once more'];
  expect(left.filter((ticket) => own.includes(ticket))).toEqual(own);
  expect(left.indexOf('t1000')).toBeLessThan(left.indexOf('t1001'));
});
