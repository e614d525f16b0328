/** Thousands of workspaces are reloaded while a gateway serves calls: their text is checked in another thread. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { SettingsWatch } from '../../src/config/reload.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { answering, rawUpstream } from '../support/raw-upstream.ts';
import { closeAll, many, opened } from './world.ts';

afterEach(closeAll);

test('a reload of many workspaces lets calls through all the while', async () => {
  const { key, hash } = createKey();
  const upstream = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
  opened.push(() => upstream.close());
  const upstreams = `  up: { origins: ["${upstream.origin}"], allowPrivateAddresses: true, credential: "Bearer one" }`;
  /** One workspace, acme, with this ceiling. */
  const yamlWith = (ceiling: number): string =>
    gatewayYaml({ upstreams, workspaces: { acme: `    requestsPerMinute: ${ceiling}` } }, { acme: hash });
  const others = many(4_000, (n) => {
    const digest = n.toString(16).padStart(64, '0');
    return `\n  ws-${n}: { keys: ["sha256:${digest}"], requestsPerMinute: { up: ${10 + (n % 7)} } }`;
  });
  const service = await serviceOf(yamlWith(1_000_000), []);
  opened.push(() => service.close());
  const call = async (): Promise<string | null> => {
    const url = `http://127.0.0.1:${service.dataAddress.port}/via/up/x`;
    const response = await fetch(url, { headers: { authorization: `Bearer ${key}` } });
    expect([response.status, await response.text()]).toEqual([200, 'ok']);
    return response.headers.get('ratelimit-policy');
  };
  const folder = mkdtempSync(join(tmpdir(), 'sluice-many-'));
  opened.push(async () => rmSync(folder, { recursive: true }));
  const path = join(folder, 'sluice.yaml');
  writeFileSync(path, yamlWith(999_999) + others.join(''));
  const watch = new SettingsWatch({
    path,
    env: {},
    // Only the test asks for a reload.
    clock: { after: () => () => {} },
    onSettings: (settings) => service.reload(settings),
    onError: (error) => {
      throw error;
    },
  });
  opened.push(() => watch.close());
  let isReloading = true;
  const reloaded = watch.reloadNow().finally(() => (isReloading = false));
  let calls = 0;
  for (; isReloading; calls += 1) await call();
  expect([await reloaded, calls > 20]).toEqual([true, true]);
  expect(await call()).toBe('"workspace";q=999999;w=60');
});
