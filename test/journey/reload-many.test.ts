/**
 * Thousands of workspaces are reloaded while a gateway serves calls: the text is checked in another thread, and what is
 * left for this one comes in slices, between which calls go on.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import { startCheckThread } from '../../src/config/check-thread.ts';
import { SettingsWatch } from '../../src/config/reload.ts';
import type { Service } from '../../src/service.ts';
import { createSlices, maxItems } from '../../src/slices.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { answering, rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';

const count = 4_000;
const { key, hash } = createKey();
let upstream: RawUpstream;
let service: Service;
let iterations = 0;
let isOver = false;
/** Items of each slice, and of all slices in each turn of the event loop. */
let slices: number[] = [];
let inIteration = new Map<number, number>();

const countingSlices = createSlices(systemClock, (items) => {
  slices.push(items);
  inIteration.set(iterations, (inIteration.get(iterations) ?? 0) + items);
});

function countIterations(): void {
  iterations += 1;
  if (!isOver) setImmediate(countIterations);
}

/** One workspace, acme, with this ceiling. */
const yamlWith = (ceiling: number): string =>
  gatewayYaml(
    {
      upstreams: `  up:\n    origins: ["${upstream.origin}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"`,
      workspaces: { acme: `    requestsPerMinute: ${ceiling}` },
    },
    { acme: hash },
  );

/** The same among {@link count}. */
const manyWith = (ceiling: number): string =>
  yamlWith(ceiling) +
  Array.from({ length: count - 1 }, (_, n) => {
    const digest = n.toString(16).padStart(64, '0');
    return `\n  ws-${n}: { keys: ["sha256:${digest}"], requestsPerMinute: { up: ${10 + (n % 7)} } }`;
  }).join('');

async function call(): Promise<string | null> {
  const response = await fetch(`http://127.0.0.1:${service.dataAddress.port}/via/up/x`, {
    headers: { authorization: `Bearer ${key}` },
  });
  await response.text();
  expect(response.status).toBe(200);
  return response.headers.get('ratelimit-policy');
}

beforeAll(async () => {
  upstream = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
});

beforeEach(async () => {
  service = await serviceOf(yamlWith(1_000_000), [], { slices: countingSlices });
  [slices, inIteration, isOver] = [[], new Map(), false];
  setImmediate(countIterations);
});

afterEach(async () => {
  isOver = true;
  await service.close();
});

afterAll(() => upstream.close());

test('a reload of many workspaces lets calls through all the while and takes at most two slices per event-loop tick', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-many-'));
  const path = join(folder, 'sluice.yaml');
  let threads = 0;
  let iterationsOfThread = 0;
  const watch: SettingsWatch = new SettingsWatch({
    path,
    env: {},
    // Only the test asks for a reload.
    clock: { after: () => () => {} },
    slices: countingSlices,
    startThread(task) {
      threads += 1;
      const thread = startCheckThread(task);
      const from = iterations;
      thread.on('message', () => (iterationsOfThread = iterations - from));
      return thread;
    },
    onSettings: (settings) => service.reload(settings),
    onError: (error) => {
      throw error;
    },
  });
  try {
    writeFileSync(path, manyWith(999_999));
    let isReloading = true;
    const reloaded = watch.reloadNow().finally(() => (isReloading = false));
    let calls = 0;
    while (isReloading) {
      await call();
      calls += 1;
    }
    expect(await reloaded).toBe(true);
    expect([threads, calls > 20, iterationsOfThread > 100]).toEqual([1, true, true]);
    // Every workspace once to build it, once to take its keys over.
    expect(slices.reduce((sum, n) => sum + n, 0)).toBe(2 * count);
    expect(Math.max(...slices)).toBe(maxItems);
    expect(Math.max(...inIteration.values())).toBeLessThanOrEqual(2 * maxItems);
    expect(await call()).toBe('"workspace";q=999999;w=60');
  } finally {
    await watch.close();
    rmSync(folder, { recursive: true });
  }
});
