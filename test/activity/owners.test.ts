import { describe, expect, test } from '@jest/globals';
import { Owners, pauseMs } from '../../src/activity/owners.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { manualClock } from '../support/manual-clock.ts';

const label = (workspaceId: string): string => workspaceLabel('key', workspaceId);

function ownersOf(count: number) {
  const clock = manualClock();
  const workspaces = new Map(Array.from({ length: count }, (_, n) => [`ws-${n}`, n]));
  let computed = 0;
  let maxAtOnce = 0;
  const owners = new Owners({
    clock: {
      ...clock,
      after(delayMs, run) {
        computed = 0;
        queueMicrotask(run);
        return () => void delayMs;
      },
    },
    workspaces: () => workspaces,
    labelOf(workspaceId) {
      computed += 1;
      maxAtOnce = Math.max(maxAtOnce, computed);
      return label(workspaceId);
    },
  });
  return { owners, clock, workspaces, maxAtOnce: () => maxAtOnce };
}

describe('the workspace behind a label that another replica reported', () => {
  test('is found among thousands, in slices', async () => {
    const { owners, maxAtOnce } = ownersOf(3_000);
    const found = await owners.of([label('ws-2999'), label('nobody')]);
    expect([...found]).toEqual([[label('ws-2999'), 'ws-2999']]);
    expect(maxAtOnce()).toBeLessThanOrEqual(250);
  });

  test('is not searched for again when no workspace has the label, until the configuration changes', async () => {
    const { owners, clock, workspaces, maxAtOnce } = ownersOf(10);
    await owners.of([label('later')]);
    const first = maxAtOnce();
    clock.advance(pauseMs);
    await owners.of([label('later')]);
    expect(maxAtOnce()).toBe(first);
    workspaces.set('later', 0);
    owners.reload();
    expect((await owners.of([label('later')])).get(label('later'))).toBe('later');
  });

  test('is searched for at bounded intervals, however many unknown labels there are', async () => {
    const { owners, clock } = ownersOf(10);
    await owners.of([label('unknown')]);
    expect((await owners.of([label('ws-1')])).size).toBe(0);
    clock.advance(pauseMs);
    expect((await owners.of([label('ws-1')])).get(label('ws-1'))).toBe('ws-1');
  });

  test('is known without a search when the workspace called this replica', async () => {
    const { owners } = ownersOf(10);
    await owners.of([label('unknown')]);
    expect(owners.labelOf('ws-3')).toBe(label('ws-3'));
    expect((await owners.of([label('ws-3')])).get(label('ws-3'))).toBe('ws-3');
  });
});
