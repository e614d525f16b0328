/** However many workspaces call, a process shows at most 100 of them under a label of their own. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { rawUpstream, answering } from '../support/raw-upstream.ts';
import type { RawUpstream } from '../support/raw-upstream.ts';
import { startGateway } from '../support/gateway.ts';
import type { TestGateway } from '../support/gateway.ts';

const names = Array.from({ length: 150 }, (_, n) => `tenant-number-${n}`);
let upstream: RawUpstream | null = null;
let gateway: TestGateway | null = null;

beforeAll(async () => {
  upstream = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
  const { origin } = upstream;
  gateway = await startGateway({
    upstreams: `  up:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"`,
    workspaces: Object.fromEntries(names.map((name) => [name, ''])),
  });
  const { url, keys } = gateway;
  await Promise.all(
    names.map(async (name) => {
      const response = await fetch(`${url}/via/up/x`, {
        headers: { authorization: `Bearer ${keys[name] ?? ''}` },
      });
      await response.text();
    }),
  );
});

afterAll(async () => {
  await gateway?.close();
  await upstream?.close();
});

test('metrics show 100 labels and `other`, and count every call', async () => {
  const text = await (await fetch(`${gateway?.adminUrl ?? ''}/metrics`)).text();
  const calls = [...text.matchAll(/^sluice_requests_total\{workspace="([^"]+)".*outcome="ok".*\} (\d+)$/gm)];
  const labels = new Set(calls.map(([, label]) => label ?? ''));
  labels.delete('none');
  expect(labels.size).toBe(101);
  expect(labels).toContain('other');
  expect([...labels].every((label) => label === 'other' || /^w_[0-9a-f]{16}$/.test(label))).toBe(true);
  expect(calls.reduce((sum, [, , count]) => sum + Number(count), 0)).toBe(150);
  expect(text).not.toContain('tenant-number');
  expect(text).not.toMatch(/_bucket\{[^}]*workspace=/);
});

test('activity shows the same labels, with the other workspaces added up', async () => {
  const text = await (await fetch(`${gateway?.adminUrl ?? ''}/activity`)).text();
  const { workspaces } = JSON.parse(text) as { workspaces: { workspace: string }[] };
  expect(workspaces).toHaveLength(101);
  expect(workspaces.filter(({ workspace }) => workspace === 'other')).toHaveLength(1);
  expect(text).not.toContain('tenant-number');
});

test('log lines use the same labels', () => {
  const text = gateway?.logs.join('') ?? '';
  expect(new Set(text.match(/"workspace":"[^"]+"/g)).size).toBeLessThanOrEqual(102);
  expect(text).not.toContain('tenant-number');
});
