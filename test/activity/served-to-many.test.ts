/** 2,000 workspaces call a real gateway once each, ten of them often: the activity that its admin port shows. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import type { AllActivity } from '../../src/activity/shape.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { answering, rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';

const names = Array.from({ length: 2_000 }, (_, n) => `tenant-number-${n}`);
/** The busy workspaces, which call last. */
const busy = names.slice(-10);
let upstream: RawUpstream;
let gateway: TestGateway;

async function call(name: string): Promise<void> {
  const response = await fetch(`${gateway.url}/via/up/x`, {
    headers: { authorization: `Bearer ${gateway.keys[name] ?? ''}` },
  });
  await response.text();
}

beforeAll(async () => {
  upstream = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
  gateway = await startGateway({
    upstreams: `  up:\n    origins: ["${upstream.origin}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"`,
    workspaces: Object.fromEntries(names.map((name) => [name, ''])),
  });
  const calls = [...names, ...busy.flatMap((name) => Array.from({ length: 9 }, () => name))];
  for (let from = 0; from < calls.length; from += 40)
    await Promise.all(calls.slice(from, from + 40).map(call));
});

afterAll(async () => {
  await gateway.close();
  await upstream.close();
});

test('activity has 100 rows with a label, the busiest first, and one row for the others, with all calls', async () => {
  const all = (await (await fetch(`${gateway.adminUrl}/activity`)).json()) as AllActivity;
  const calls = all.workspaces.map(({ upstreams }) => upstreams[0]?.recent.calls ?? 0);
  expect(calls.reduce((sum, n) => sum + n, 0)).toBe(2_090);
  expect(all.workspaces).toHaveLength(101);
  expect(all.workspaces.at(-1)?.workspace).toBe('other');
  expect(calls.slice(0, 11)).toEqual([...busy.map(() => 10), 1]);
});
