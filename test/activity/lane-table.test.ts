import { describe, expect, test } from '@jest/globals';
import { Minutes } from '../../src/activity/cell.ts';
import { ActivityLaneTable } from '../../src/activity/lane-table.ts';

const minutes = new Minutes(() => 'key');

/** A table for ten lanes; `shown` are workspaces that are shown under a label of their own. */
function tableOf(shown: readonly string[] = []) {
  const table = new ActivityLaneTable(10, (workspaceId) => shown.includes(workspaceId));
  const call = (workspaceId: string): void => {
    const known = table.find(workspaceId, 'up');
    if (known === undefined)
      table.add({ workspaceId, upstream: 'up', minutes, total: minutes, busy: 0, busyAt: 0 });
    else table.touch(known);
  };
  const names = (): string[] => Array.from(table.values(), ({ workspaceId }) => workspaceId);
  return { table, call, names };
}

describe('a full table of lanes', () => {
  test('forgets the lane unused for longest, and keeps its bound', () => {
    const { table, call, names } = tableOf();
    for (let n = 0; n < 10; n++) call(`ws-${n}`);
    call('ws-0');
    for (let n = 10; n < 15; n++) call(`ws-${n}`);
    expect(names()).toEqual([
      'ws-6',
      'ws-7',
      'ws-8',
      'ws-9',
      'ws-0',
      'ws-10',
      'ws-11',
      'ws-12',
      'ws-13',
      'ws-14',
    ]);
    expect(table.find('ws-1', 'up')).toBeUndefined();
  });

  test('keeps the lanes of workspaces with a label of their own, unless there are no others', () => {
    const few = tableOf(['shown']);
    const many = tableOf(Array.from({ length: 11 }, (_, n) => `shown-${n}`));
    few.call('shown');
    for (let n = 0; n < 11; n++) many.call(`shown-${n}`);
    for (let n = 0; n < 100; n++) few.call(`ws-${n}`);
    expect(few.names()).toContain('shown');
    expect([few.table.size, many.table.size]).toEqual([10, 10]);
  });
});
