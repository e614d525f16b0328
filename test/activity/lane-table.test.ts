import { describe, expect, test } from '@jest/globals';
import { ActivityLaneTable, type ActivityLane } from '../../src/activity/lane-table.ts';
import { Minutes } from '../../src/activity/cell.ts';

const minutes = new Minutes(() => 'key');

/** A table for ten lanes; `shown` are workspaces that are shown under a label of their own. */
function tableOf(shown: readonly string[] = []) {
  const dropped: string[] = [];
  const table = new ActivityLaneTable({
    max: 10,
    isShown: (workspaceId) => shown.includes(workspaceId),
    onEvicted: ({ workspaceId }) => void dropped.push(workspaceId),
  });
  /** A call of a workspace in a minute. */
  const call = (workspaceId: string, minute = 0): void => {
    let lane = table.find(workspaceId, 'up');
    if (lane === undefined) {
      lane = {
        workspaceId,
        upstream: 'up',
        minutes,
        total: minutes,
        busy: 0,
        busyAt: minute,
        published: false,
      };
      table.add(lane, minute);
    }
    table.touch(lane);
    lane.busy += 1;
  };
  const names = (): string[] => Array.from(table.values(), (lane: ActivityLane) => lane.workspaceId);
  return { table, dropped, call, names };
}

describe('a full table of lanes', () => {
  test('forgets the lane unused for longest, and keeps its bound', () => {
    const { table, dropped, call } = tableOf();
    for (let n = 0; n < 15; n++) call(`ws-${n}`);
    expect(dropped).toEqual(['ws-0', 'ws-1', 'ws-2', 'ws-3', 'ws-4']);
    expect(table.size).toBe(10);
    expect(table.find('ws-0', 'up')).toBeUndefined();
    expect(table.find('ws-14', 'up')?.workspaceId).toBe('ws-14');
  });

  test('keeps the busier lanes, however many others come', () => {
    const { call, names } = tableOf();
    for (const id of ['a', 'b', 'c', 'a', 'b', 'c']) call(id);
    for (let n = 0; n < 1_000; n++) call(`ws-${n}`);
    expect(names()).toEqual(expect.arrayContaining(['a', 'b', 'c', 'ws-999']));
  });

  test('forgets a busy lane once it has been idle for hours', () => {
    const { call, names } = tableOf();
    for (let n = 0; n < 4; n++) call('once-busy');
    for (let n = 0; n < 100; n++) call(`ws-${n}`, 180);
    expect(names()).not.toContain('once-busy');
  });

  test('keeps the lanes of workspaces with a label of their own, unless they leave no room for others', () => {
    const few = tableOf(['shown']);
    const many = tableOf(Array.from({ length: 9 }, (_, n) => `shown-${n}`));
    few.call('shown');
    for (let n = 0; n < 9; n++) many.call(`shown-${n}`);
    for (let n = 0; n < 100; n++) {
      few.call(`ws-${n}`);
      many.call(`ws-${n}`);
    }
    expect(few.names()).toContain('shown');
    expect(many.names().filter((name) => name.startsWith('shown'))).toEqual([]);
  });

  test('keeps a workspace that calls seldom but more often than others', () => {
    const { table, call, names } = tableOf();
    for (let n = 0; n < 400; n++) {
      call(`ws-${n}`);
      // Eleven others come between: its lane is forgotten each time, until it is known as the busier one.
      if (n % 12 === 0) call('seldom');
    }
    expect(names()).toContain('seldom');
    expect(table.find('seldom', 'up')?.busy).toBe(34);
  });
});
