/** Where a changed text is checked: a short one in this thread, a long one in a thread of its own. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { maxReloadLengthHere, settingsApart } from '../../src/config/load.ts';
import { createSlices } from '../../src/slices.ts';

let threads = 0;
function count(): void {
  threads += 1;
}

beforeEach(() => {
  threads = 0;
  subscribe('worker_threads', count);
});

afterEach(() => {
  unsubscribe('worker_threads', count);
});

function textOf(workspaces: number): string {
  const one = (n: number): string =>
    `  workspace-${n}:\n    keys: ["sha256:${String(n).padStart(64, 'a')}"]\n    requestsPerMinute: ${100 + n}`;
  const all = Array.from({ length: workspaces }, (_, n) => one(n)).join('\n');
  return `upstreams:\n  chat:\n    origins: [https://api.example.com]\n    kind: language-model\nworkspaces:\n${all}\n`;
}

test.each([
  ['a text of ten workspaces is checked without a thread', 10, 0],
  ['a text of two hundred workspaces is checked in a thread of its own', 200, 1],
])('%s', async (_what, workspaces, expected) => {
  const text = textOf(workspaces);
  const slices = createSlices(systemClock);
  const { signal } = new AbortController();
  const settings = await settingsApart({ text, path: 'sluice.yaml', env: {} }, { slices, signal });
  expect(settings.workspaces.size).toBe(workspaces);
  expect(text.length <= maxReloadLengthHere).toBe(expected === 0);
  expect(threads).toBe(expected);
});
