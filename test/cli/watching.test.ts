/** `sluice tail` and `sluice top` beside a running gateway. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { begun } from '../support/command.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

let upstream: Server;
let gateway: TestGateway;
beforeAll(async () => {
  upstream = createServer((_request, response) => response.end('ok'));
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  api: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, limits: { requestsPerMinute: 3 } }`,
  });
});
afterAll(async () => {
  await gateway.close();
  upstream.close();
});

const send = async (path: string): Promise<number> =>
  (
    await fetch(`${gateway.url}${path}`, {
      headers: { authorization: `Bearer ${gateway.keys['acme']}`, prefer: 'wait=0' },
    })
  ).status;

test('tail shows each call as it ends, in words or with the fields of its log line', async () => {
  const words = begun(['tail', '--admin', gateway.adminUrl]);
  const fields = begun(['tail', '--json', '--admin', gateway.adminUrl]);
  // Calls that ended before anybody listened are not shown.
  await until(async () => {
    await send('/via/nobody/x');
    return words.out.length > 0 && fields.out.length > 0;
  });
  expect([
    await send('/via/api/x'),
    await send('/via/api/x'),
    await send('/via/api/x'),
    await send('/via/api/x'),
  ]).toEqual([200, 200, 200, 429]);
  const said = () =>
    fields.out
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter(({ upstream }) => upstream === 'api');
  await until(async () => said().length === 4);
  expect(said()).toMatchObject([
    ...Array.from({ length: 3 }, () => ({
      message: 'call ended',
      upstream: 'api',
      outcome: 'ok',
      status: 200,
    })),
    { outcome: 'shed', status: 429, code: 'wait_too_long', heldBy: 'ceiling_minute' },
  ]);
  await until(async () => words.out.some((line) => line.includes('429')));
  expect(words.out.find((line) => line.includes('429'))).toMatch(
    /^\d\d:\d\d:\d\d 429 shed api w_[0-9a-f]{16} GET \d+ ms \(wait_too_long, held by ceiling_minute\)$/,
  );
  expect([...words.out, ...fields.out].join()).not.toContain('acme');
});

test('top shows who is busy and what is left of each ceiling', async () => {
  const { out, ended } = begun(['top', '--admin', gateway.adminUrl]);
  expect(await ended).toBe(0);
  const lines = out.join('\n').split('\n');
  const row = lines.find((line) => line.startsWith('w_')) ?? '';
  expect(lines[2]).toMatch(/^Can we raise traffic\? No for api: calls are refused/);
  expect(row).toMatch(/^w_[0-9a-f]{16} +api +0 +0 +0 of 3 /);
  expect(out.join()).not.toContain('acme');
});

test.each(['tail', 'top'])('%s says where it asked when nobody answers', async (name) => {
  const { err, ended } = begun([name, '--admin', 'http://127.0.0.1:1']);
  expect([await ended, err.join()]).toEqual([1, expect.stringContaining('--admin http://HOST:PORT')]);
});

test('tail ends when Sluice does', async () => {
  const other = await startGateway({ upstreams: '  api: { origins: ["https://api.example"] }' });
  const { err, ended } = begun(['tail', '--admin', other.adminUrl]);
  await until(async () => (await fetch(`${other.adminUrl}/livez`)).ok);
  await other.close();
  expect([await ended, err.length]).toEqual([expect.any(Number), 1]);
});
