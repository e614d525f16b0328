/**
 * Thousands of workspaces are reloaded while a gateway serves calls: the text is checked in another thread, and what is
 * left for this one comes in slices, between which calls go on.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import { startCheckThread } from '../../src/config/check-thread.ts';
import { SettingsWatch } from '../../src/config/reload.ts';
import { createSlices, maxItems } from '../../src/slices.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { answering, rawUpstream } from '../support/raw-upstream.ts';
import { closeAll, many, opened } from './world.ts';

afterEach(closeAll);

test('a reload of many workspaces lets calls through all the while and takes at most two slices per event-loop tick', async () => {
  const count = 4_000;
  const { key, hash } = createKey();
  const upstream = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
  opened.push(() => upstream.close());
  const upstreams = `  up: { origins: ["${upstream.origin}"], allowPrivateAddresses: true, credential: "Bearer one" }`;
  /** One workspace, acme, with this ceiling. */
  const yamlWith = (ceiling: number): string =>
    gatewayYaml({ upstreams, workspaces: { acme: `    requestsPerMinute: ${ceiling}` } }, { acme: hash });
  const others = many(count - 1, (n) => {
    const digest = n.toString(16).padStart(64, '0');
    return `\n  ws-${n}: { keys: ["sha256:${digest}"], requestsPerMinute: { up: ${10 + (n % 7)} } }`;
  });

  let [iterations, isOver] = [0, false];
  const countIterations = (): void => {
    iterations += 1;
    if (!isOver) setImmediate(countIterations);
  };
  /** Items of each slice, and of all slices in each turn of the event loop. */
  const slices: number[] = [];
  const inIteration = new Map<number, number>();
  const counting = createSlices(systemClock, (items) => {
    slices.push(items);
    inIteration.set(iterations, (inIteration.get(iterations) ?? 0) + items);
  });
  const service = await serviceOf(yamlWith(1_000_000), [], { slices: counting });
  opened.push(() => service.close());
  slices.length = 0;
  inIteration.clear();
  setImmediate(countIterations);
  opened.push(async () => (isOver = true));

  const call = async (): Promise<string | null> => {
    const url = `http://127.0.0.1:${service.dataAddress.port}/via/up/x`;
    const response = await fetch(url, { headers: { authorization: `Bearer ${key}` } });
    expect([response.status, await response.text()]).toEqual([200, 'ok']);
    return response.headers.get('ratelimit-policy');
  };
  const folder = mkdtempSync(join(tmpdir(), 'sluice-many-'));
  opened.push(async () => rmSync(folder, { recursive: true }));
  const path = join(folder, 'sluice.yaml');
  let [threads, iterationsOfThread] = [0, 0];
  const watch: SettingsWatch = new SettingsWatch({
    path,
    env: {},
    // Only the test asks for a reload.
    clock: { after: () => () => {} },
    slices: counting,
    startThread(task) {
      threads += 1;
      const from = iterations;
      const thread = startCheckThread(task);
      thread.on('message', () => (iterationsOfThread = iterations - from));
      return thread;
    },
    onSettings: (settings) => service.reload(settings),
    onError: (error) => {
      throw error;
    },
  });
  opened.push(() => watch.close());
  writeFileSync(path, yamlWith(999_999) + others.join(''));
  let isReloading = true;
  const reloaded = watch.reloadNow().finally(() => (isReloading = false));
  let calls = 0;
  for (; isReloading; calls += 1) await call();
  expect(await reloaded).toBe(true);
  expect([threads, calls > 20, iterationsOfThread > 100]).toEqual([1, true, true]);
  // Every workspace once to build it, once to take its keys over.
  expect(slices.reduce((sum, n) => sum + n, 0)).toBe(2 * count);
  expect(Math.max(...slices)).toBe(maxItems);
  expect(Math.max(...inIteration.values())).toBeLessThanOrEqual(2 * maxItems);
  expect(await call()).toBe('"workspace";q=999999;w=60');
});
