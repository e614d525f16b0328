/** `sluice tail` and `sluice top` beside a running gateway. */
import { spawn } from 'node:child_process';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { lineOf } from '../../src/cli/tail.ts';
import { table } from '../../src/cli/top.ts';
import { begun } from '../support/command.ts';
import { rawUpstream } from '../support/raw-upstream.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const bin = fileURLToPath(new URL('../../bin/sluice.mjs', import.meta.url));

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

const send = async (path: string, prefer = 'wait=0'): Promise<number> =>
  (
    await fetch(`${gateway.url}${path}`, {
      headers: { authorization: `Bearer ${gateway.keys['acme']}`, prefer },
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

test('a line of tail says what held the call, and for how long', () => {
  const call = {
    time: '2026-01-01T12:00:05Z',
    workspace: 'w_1',
    upstream: 'api',
    method: 'GET',
    outcome: 'ok',
    status: 200,
    code: null,
    heldBy: null,
    reason: null,
    waitedMs: 900,
    attempts: 1,
    absorbed: 0,
    durationMs: 1_200,
  };
  const line = '12:00:05 200 ok api w_1 GET 1.2 s';
  expect(lineOf({ ...call, heldMs: { closed: 600, tokens: 300 } })).toBe(
    `${line} (waited 900 ms [closed 600 ms, tokens 300 ms])`,
  );
  expect(lineOf(call)).toBe(`${line} (waited 900 ms)`);
});

test('top shows who is busy, what is left of each ceiling and, as the page does, who was refused without a position', async () => {
  expect([await send('/via/api/x'), await send('/via/api/x', 'reserve, wait=0')]).toEqual([429, 429]);
  const { out, ended } = begun(['top', '--admin', gateway.adminUrl]);
  expect(await ended).toBe(0);
  const lines = out.join('\n').split('\n');
  const row = lines.find((line) => line.startsWith('w_')) ?? '';
  expect(lines[2]).toMatch(/^Can we raise traffic\? No for api: calls are refused/);
  expect(row).toMatch(/^w_[0-9a-f]{16} +api +0 +0 +0 of 3 .* 2$/);
  expect(out.join()).not.toContain('acme');
});

/** What `/activity` says of so many upstreams, each with a workspace; the last one is in trouble. */
const wide = (n: number): Parameters<typeof table>[0] => ({
  answer: {
    sentence: 'No for api-29: it is full, and calls are refused.',
    rest: 'Yes for 29 of 30.',
    heldBy: 'The provider’s limit of 500 requests a minute; 900 were asked for in the last minute.',
    wrongNow: '129 calls were refused since 17:20 UTC. 72 calls wait, the longest for 74 s of 75 s.',
  },
  replicas: 1,
  upstreams: Array.from({ length: n }, (_, at) => ({
    upstream: `api-${at}`,
    answer: at === n - 1 ? { tone: 'red', text: 'No: calls refused' } : { tone: 'green', text: 'Yes: 40 %' },
  })),
  workspaces: Array.from({ length: n }, (_, at) => ({
    workspace: 'w_0123456789abcdef',
    upstreams: [
      {
        upstream: `api-${at}`,
        ceilings: { perMinute: { limit: 1_000, remaining: 1_000 } },
        waiting: at,
        inFlight: 0,
        recent: {
          calls: 1_000,
          absorbed: 0,
          outcomes: { throttled: 3 },
          shed: { wait_too_long: 2 },
          waitMs: { p95: 10_000 },
        },
      },
    ],
  })),
});

test.each([
  { columns: 80, rows: 24 },
  { columns: 40, rows: 10 },
  { columns: 20, rows: 3 },
])('top keeps to a screen of $columns × $rows, worst first', (screen) => {
  for (const n of [1, 3, 30]) {
    const lines = table(wide(n), screen).split('\n');
    expect(lines.length).toBeLessThan(screen.rows);
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(screen.columns);
  }
  if (screen.rows < 24) return;
  const cut = table(wide(30), screen);
  expect(cut).toMatch(/^ {2}api-29 {2}No: calls refused$/m);
  expect(cut).toMatch(/… \d+ more lines: sluice top --once$/);
  expect(table(wide(30), null).split('\n').length).toBeGreaterThan(60);
  expect(table(wide(1), null)).toMatch(/ absorbed {2}refused\n.* 0 {8}5$/);
});

test('commands ask an admin port that lies below a path', async () => {
  const asked: string[] = [];
  const proxy = createServer((request, response) => {
    asked.push(request.url ?? '');
    response.writeHead(404).end();
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  const { port } = proxy.address() as AddressInfo;
  for (const admin of [`http://127.0.0.1:${port}/sluice`, `http://127.0.0.1:${port}/sluice/`])
    expect(await begun(['top', '--once', '--admin', admin]).ended).toBe(1);
  // What answers with a page of its own is no Sluice either.
  const stranger = await rawUpstream(async (connection) => {
    await connection.requests(1);
    connection.send('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>');
  });
  const { err, ended } = begun(['top', '--admin', stranger.origin]);
  expect([await ended, err.join()]).toEqual([1, expect.stringContaining('names the admin port')]);
  await stranger.close();
  expect(await begun(['record', '--seconds', '1', '--admin', `http://127.0.0.1:${port}/sluice`]).ended).toBe(
    1,
  );
  expect(asked).toEqual([
    '/sluice/activity?window=5m',
    '/sluice/activity?window=5m',
    '/sluice/recording?seconds=1',
  ]);
  await new Promise((resolve) => proxy.close(resolve));
});

test('tail ends when nobody reads its lines any more, as behind `head`', async () => {
  const line = `node ${bin} tail --json --admin ${gateway.adminUrl} | head -n 1`;
  const piped = spawn('bash', ['-c', line], { stdio: ['ignore', 'pipe', 'inherit'] });
  let ended = false;
  let printed = '';
  piped.stdout.on('data', (chunk) => (printed += String(chunk)));
  piped.once('exit', () => (ended = true));
  // It learns that its reader is gone by the next line.
  await until(async () => {
    await send('/via/nobody/x');
    return ended;
  }, 50);
  expect(JSON.parse(printed)).toMatchObject({ message: 'call ended' });
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
