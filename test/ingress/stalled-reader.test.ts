/** Slow is not stalled: what a client that takes little, takes nothing, or has nothing to take is taken for. */
import { Socket } from 'node:net';
import { expect, test } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { StalledReader } from '../../src/ingress/stalled-reader.ts';

const limitMs = 1_000;

function watched() {
  const timers = new Set<() => void>();
  let now = 0;
  const clock: Clock = {
    now: () => 0,
    monotonic: () => now,
    after(delayMs, run) {
      expect(delayMs).toBe(limitMs);
      const timer = () => run();
      timers.add(timer);
      return () => void timers.delete(timer);
    },
  };
  const response: { writableLength: number; socket: Socket | null } = {
    writableLength: 0,
    socket: new Socket(),
  };
  let stalled = 0;
  const reader = new StalledReader({ response, clock, maxMs: limitMs, onStalled: () => (stalled += 1) });
  const pass = (): void => {
    const due = [...timers];
    timers.clear();
    now += limitMs;
    for (const timer of due) timer();
  };
  return { reader, response, pass, stalled: () => stalled, timers: () => timers.size };
}

test('a client that reads nothing until the limit is stalled, and reported once', () => {
  const { reader, response, pass, stalled, timers } = watched();
  response.writableLength = 100;
  reader.waiting();
  reader.waiting();
  expect(timers()).toBe(1);
  pass();
  expect([stalled(), timers()]).toEqual([1, 0]);
});

test('a client that reads a little within each limit is not stalled, until it stops', () => {
  const { reader, response, pass, stalled } = watched();
  response.writableLength = 100;
  reader.waiting();
  for (let left = 99; left > 90; left -= 1) {
    response.writableLength = left;
    pass();
    expect(stalled()).toBe(0);
  }
  pass();
  expect(stalled()).toBe(1);
});

test('a client that has read everything is no longer watched, until bytes wait for it again', () => {
  const { reader, pass, stalled, timers } = watched();
  reader.waiting();
  reader.moved();
  expect(timers()).toBe(0);
  reader.waiting();
  pass();
  expect(stalled()).toBe(1);
});

test('a response behind another one is not held against its client before it is next to be written', () => {
  const { reader, response, pass, stalled } = watched();
  const { socket } = response;
  response.socket = null;
  response.writableLength = 100;
  reader.waiting();
  pass();
  expect([stalled(), reader.waitedMs]).toEqual([0, 0]);
  response.socket = socket;
  expect(reader.waitedMs).toBe(limitMs);
  pass();
  expect(stalled()).toBe(1);
});
