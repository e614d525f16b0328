/** The line before Redis: who goes next, how many at once, and that nobody stays in it. */
import { describe, expect, test } from '@jest/globals';
import { createCommandWindow, type CommandWindow } from '../../src/limiter/redis/client/command-window.ts';

/** Commands under way before any reply. */
const atFirst = 64;

/** A window in which every place is taken. */
function full(): CommandWindow {
  const window = createCommandWindow();
  let taken = 0;
  while (window.tryEnter()) taken += 1;
  expect(taken).toBe(atFirst);
  return window;
}

/** Waits under these names; `went` has those that got their place, in order. */
function line(window: CommandWindow) {
  const went: string[] = [];
  const wait = (name: string, lane: string | null): void => {
    void window.wait(lane).then((hasPlace) => went.push(hasPlace ? name : `${name} away`));
  };
  const leave = async (times: number, wasInTime = true): Promise<void> => {
    for (let n = 0; n < times; n += 1) window.leave(wasInTime);
    await Promise.resolve();
    await Promise.resolve();
  };
  return { went, wait, leave };
}

describe('the command window', () => {
  test('takes lanes in turn, each in order, and newcomers after everything else', async () => {
    const { went, wait, leave } = line(full());
    for (const name of ['a1', 'a2', 'a3', 'a4']) wait(name, 'a');
    wait('b1', 'b');
    wait('settle', null);
    wait('b2', 'b');
    wait('tick', null);
    await leave(8);
    expect(went).toEqual(['settle', 'tick', 'a1', 'b1', 'a2', 'b2', 'a3', 'a4']);
  });

  test('lets nobody in before a place is free', async () => {
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

  test('gets smaller with commands that time out, down to a few, and larger again with others', async () => {
    const window = full();
    const { went, wait, leave } = line(window);
    for (let n = 0; n < 40; n += 1) wait(`${n}`, null);
    await leave(atFirst - 8, false);
    expect(went).toEqual([]);
    await leave(1);
    expect(went).toHaveLength(1);
    // A success for each place makes room for one more.
    for (let n = 0; n < 9; n += 1) await leave(1);
    expect(went.length).toBeGreaterThan(10);
    expect(went.length).toBeLessThan(14);
  });

  test('sends everybody away at once', async () => {
    const window = full();
    const { went, wait, leave } = line(window);
    wait('a1', 'a');
    wait('settle', null);
    window.dismiss();
    await leave(0);
    expect(went).toEqual(['settle away', 'a1 away']);
    await leave(atFirst);
    expect(went).toHaveLength(2);
    expect(window.tryEnter()).toBe(true);
  });
});
