/** A refusal names what holds the call, and whose that is. */
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { answering, rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';
import { until } from '../support/until.ts';

let silent: RawUpstream;
let upstreams: readonly RawUpstream[];
let gateway: TestGateway;
beforeAll(async () => {
  const ok = await rawUpstream(answering('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
  const closing = await rawUpstream(
    answering('HTTP/1.1 429 Too Many Requests\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n'),
  );
  silent = await rawUpstream(() => {});
  upstreams = [ok, closing, silent];
  const entry = (name: string, at: RawUpstream, limits: string): string =>
    `  ${name}: { origins: ["${at.origin}"], allowPrivateAddresses: true, limits: { ${limits} } }`;
  gateway = await startGateway({
    upstreams: [
      entry('minute', ok, 'requestsPerMinute: 100'),
      entry('day', ok, 'requestsPerDay: 100'),
      entry('their-day', ok, 'requestsPerDay: 1, learn: false'),
      entry('closed', closing, ''),
      entry('serial', silent, 'maxInFlight: 1, maxQueued: 1'),
    ].join('\n'),
    workspaces: {
      acme: '    requestsPerMinute: { minute: 1 }\n    requestsPerDay: { day: 1, their-day: none }',
    },
  });
});
afterAll(async () => {
  await gateway.close();
  for (const each of upstreams) await each.close();
});

/** A call that may wait so many seconds, and what its refusal says. */
async function call(name: string, seconds = 0) {
  const headers = { authorization: `Bearer ${gateway.keys['acme'] ?? ''}`, prefer: `wait=${seconds}` };
  const response = await fetch(`${gateway.url}/via/${name}/x`, { headers });
  const text = await response.text();
  return (text.startsWith('{') ? JSON.parse(text) : {}) as { readonly code?: string };
}

test.each([
  [
    'minute',
    'ceiling_minute',
    /workspace has used up its requests per minute .* Prefer: wait=\d+ lets it wait/,
  ],
  ['day', 'ceiling_day', /workspace has used up its requests per day/],
  ['their-day', 'upstream_day', /upstream's quota of the day is used up/],
  ['closed', 'closed', /named a time before which nothing may be sent; .* can lift it \(`sluice open`\)/],
])('a refusal by %s names what holds the call: %s', async (name, heldBy, words) => {
  await call(name);
  const detail = expect.stringMatching(words);
  expect(await call(name)).toMatchObject({ status: 429, heldBy, detail });
  await until(() => gateway.logs.some((line) => line.includes(`"heldBy":"${heldBy}"`)));
});

test('a refusal names calls in flight, and a full queue, as what holds the call', async () => {
  const underWay = call('serial').catch(() => {});
  await until(() => silent.connections.length === 1);
  const serialized = { heldBy: 'serialized', detail: expect.stringContaining('`maxInFlight`') };
  expect(await call('serial', 1)).toMatchObject(serialized);
  const waiting = call('serial', 60).catch(() => {});
  await until(async () => (await call('serial', 1)).code === 'queue_full');
  const queue = { heldBy: 'queue', detail: expect.stringContaining('send fewer at once') };
  expect(await call('serial', 60)).toMatchObject(queue);
  await gateway.close();
  await Promise.all([underWay, waiting]);
});
