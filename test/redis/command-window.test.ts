/** The window of Redis commands in flight: which waiting command is next, how many run at once, and that none waits forever. */
import { describe, expect, test } from '@jest/globals';
import { laneKey } from '../../src/ids.ts';
import { CommandWindow } from '../../src/redis/command-window.ts';

/** Commands that may be in flight before any reply. */
const atFirst = 64;

/** A window that is full. */
function full(): CommandWindow {
  const window = new CommandWindow();
  let taken = 0;
  while (window.tryEnter()) taken += 1;
  expect(taken).toBe(atFirst);
  return window;
}

/** Makes named commands wait; `went` has those that were let through or dismissed, in order. */
function line(window: CommandWindow) {
  const went: string[] = [];
  const wait = (name: string, lane: string | null): void => {
    void window
      .wait(lane === null ? null : laneKey(lane))
      .then((isLetIn) => went.push(isLetIn ? name : `${name}: dismissed`));
  };
  const leave = async (times: number, wasInTime = true): Promise<void> => {
    for (let n = 0; n < times; n += 1) window.leave(wasInTime);
    await Promise.resolve();
    await Promise.resolve();
  };
  return { went, wait, leave };
}

describe('the window of Redis commands in flight', () => {
  test('serves commands of no lane first, then lanes in rotation and each in order', async () => {
    const { went, wait, leave } = line(full());
    for (const name of ['a1', 'a2', 'a3', 'a4']) wait(name, 'a');
    wait('b1', 'b');
    wait('settle', null);
    wait('b2', 'b');
    wait('tick', null);
    await leave(8);
    expect(went).toEqual(['settle', 'tick', 'a1', 'b1', 'a2', 'b2', 'a3', 'a4']);
  });

  test('lets no command pass those that wait for room', async () => {
    const window = full();
    const { went, wait, leave } = line(window);
    wait('a1', 'a');
    wait('a2', 'a');
    await leave(1);
    expect(went).toEqual(['a1']);
    expect(window.tryEnter()).toBe(false);
    await leave(2);
    expect(went).toEqual(['a1', 'a2']);
    expect(window.tryEnter()).toBe(true);
  });

  test('shrinks to a minimum while commands time out, and grows again with commands that do not', async () => {
    const window = full();
    const { went, wait, leave } = line(window);
    for (let n = 0; n < 40; n += 1) wait(`${n}`, null);
    await leave(atFirst - 8, false);
    expect(went).toEqual([]);
    await leave(1);
    expect(went).toHaveLength(1);
    // As many successes as the window is wide make it wider by one.
    for (let n = 0; n < 9; n += 1) await leave(1);
    expect(went.length).toBeGreaterThan(10);
    expect(went.length).toBeLessThan(14);
  });

  test('dismisses all waiting commands at once', async () => {
    const window = full();
    const { went, wait, leave } = line(window);
    wait('a1', 'a');
    wait('settle', null);
    window.dismiss();
    await leave(0);
    expect(went).toEqual(['settle: dismissed', 'a1: dismissed']);
    await leave(atFirst);
    expect(went).toHaveLength(2);
    expect(window.tryEnter()).toBe(true);
  });
});
