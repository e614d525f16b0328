/** Commands beside a running gateway: `sluice tail`, `top` and `open`. */
import { spawn } from 'node:child_process';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { lineOf, picture } from '../../src/cli/running.ts';
import { begun, ran } from '../support/command.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { listening } from '../support/listening.ts';
import { answering, type RawUpstream, rawUpstream } from '../support/raw-upstream.ts';
import { until } from '../support/until.ts';

/** A page of somebody else: an upstream, and no Sluice. */
let stranger: RawUpstream;
let gateway: TestGateway;
beforeAll(async () => {
  stranger = await rawUpstream(answering('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>'));
  gateway = await startGateway({
    upstreams: `  api: { origins: ["${stranger.origin}"], allowPrivateAddresses: true, limits: { requestsPerMinute: 3 } }`,
  });
});
afterAll(async () => {
  await gateway.close();
  await stranger.close();
});

const send = async (path: string, prefer = 'wait=0'): Promise<number> => {
  const headers = { authorization: `Bearer ${gateway.keys['acme']}`, prefer };
  return (await fetch(`${gateway.url}${path}`, { headers })).status;
};

test('tail shows each call as it ends, in words or with the fields of its log line', async () => {
  const words = begun(['tail', '--admin', gateway.adminUrl]);
  const fields = begun(['tail', '--json', '--admin', gateway.adminUrl]);
  // Calls that ended before anybody listened are not shown.
  await until(async () => {
    await send('/via/nobody/x');
    return words.out.length > 0 && fields.out.length > 0;
  });
  for (const status of [200, 200, 200, 429]) expect(await send('/via/api/x')).toBe(status);
  const said = () =>
    fields.out
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter(({ upstream }) => upstream === 'api');
  await until(async () => said().length === 4 && words.out.some((line) => line.includes('429')));
  const ok = { message: 'call ended', upstream: 'api', outcome: 'ok', status: 200 };
  const shed = { outcome: 'shed', status: 429, code: 'wait_too_long', heldBy: 'ceiling_minute' };
  expect(said()).toMatchObject([ok, ok, ok, shed]);
  expect(words.out.find((line) => line.includes('429'))).toMatch(
    /^\d\d:\d\d:\d\d 429 shed api w_[0-9a-f]{16} GET \d+ ms \(wait_too_long, held by ceiling_minute\)$/,
  );
  expect([...words.out, ...fields.out].join()).not.toContain('acme');
});

test('a line of tail says what held the call, and for how long', () => {
  const ended = { workspace: 'w_1', upstream: 'api', method: 'GET', outcome: 'ok', status: 200, code: null };
  const times = { time: '2026-01-01T12:00:05Z', waitedMs: 900, durationMs: 1_200 };
  const call = { ...ended, ...times, heldBy: null, reason: null, attempts: 1, absorbed: 0 };
  const line = '12:00:05 200 ok api w_1 GET 1.2 s';
  const heldMs = { closed: 600, tokens: 300 };
  expect(lineOf({ ...call, heldMs })).toBe(`${line} (waited 900 ms [closed 600 ms, tokens 300 ms])`);
  expect(lineOf(call)).toBe(`${line} (waited 900 ms)`);
});

test('top shows who is busy, what is left of each ceiling and, as the page does, who was refused without a position', async () => {
  expect([await send('/via/api/x'), await send('/via/api/x', 'reserve, wait=0')]).toEqual([429, 429]);
  const { code, out } = await ran(['top', '--admin', gateway.adminUrl]);
  const lines = out.split('\n');
  expect([code, lines[2]]).toEqual([
    0,
    expect.stringMatching(/^Can we raise traffic\? No for api: calls are refused/),
  ]);
  const row = lines.find((line) => line.startsWith('w_'));
  expect(row).toMatch(/^w_[0-9a-f]{16} +api +0 +0 +0 of 3 .* 2$/);
  expect(out).not.toContain('acme');
});

test.each([
  { columns: 80, rows: 24 },
  { columns: 20, rows: 3 },
])('top keeps to a screen of $columns × $rows', (screen) => {
  const text = 'The provider’s limit of 500 requests a minute; 900 were asked for in the last minute.';
  const recent = { calls: 1_000, absorbed: 0, outcomes: { throttled: 3 }, shed: {}, waitMs: { p95: 10_000 } };
  const of = { ceilings: { perMinute: { limit: 1_000, remaining: 900 } }, inFlight: 0, waiting: 1, recent };
  const names = Array.from({ length: 30 }, (_, at) => `api-${at}`);
  const said = {
    answer: { sentence: text, rest: text, heldBy: text, wrongNow: text },
    replicas: 1,
    upstreams: names.map((upstream) => ({ upstream, answer: { tone: 'green', text: 'Yes: 40 %' } })),
    workspaces: names.map((upstream) => ({
      workspace: 'w_0123456789abcdef',
      upstreams: [{ upstream, ...of }],
    })),
  };
  const lines = picture(said as never, screen).split('\n');
  expect(lines.length).toBeLessThan(screen.rows);
  expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(screen.columns);
});

test('open says what it has done', async () =>
  expect(await ran(['open', '--upstream', 'api', '--admin', gateway.adminUrl])).toMatchObject({
    code: 0,
    out: 'api: what its responses had closed is open again, on all replicas',
  }));

const namesIt = /--admin http:\/\/HOST:PORT names the admin port of a Sluice\.$/;
const nameIt = /^No Sluice answers at .*: name its admin port with --admin http:\/\/HOST:PORT\.$/;
test.each([
  ['open --upstream apj', 'admin', /^No upstream of the configuration has this name: did you mean api\?$/m],
  ['open --upstream nothing', 'admin', /^No upstream of the configuration has this name\.$/m],
  ['open --upstream api', 'data', namesIt],
  ['open --upstream api', 'nobody', nameIt],
  ['tail', 'nobody', nameIt],
  ['top', 'nobody', nameIt],
  ['top', 'stranger', namesIt],
])('%s at the port of %s ends with 1, and says what to correct', async (line, port, words) => {
  const at: Readonly<Record<string, string>> = { admin: gateway.adminUrl, data: gateway.url };
  const admin = at[port] ?? (port === 'stranger' ? stranger.origin : 'http://127.0.0.1:1');
  const { code, err } = await ran([...line.split(' '), '--admin', admin]);
  expect([code, err]).toEqual([1, expect.stringMatching(words)]);
});

test('commands ask an admin port that lies below a path', async () => {
  const asked: string[] = [];
  const proxy = await listening(({ url }, response) => {
    asked.push(url ?? '');
    response.writeHead(404).end();
  });
  const below = `${proxy.url}/sluice`;
  for (const command of [
    ['top', '--once', '--admin', below],
    ['top', '--once', '--admin', `${below}/`],
    ['record', '--seconds', '1', '--admin', below],
  ])
    expect((await ran(command)).code).toBe(1);
  const activity = '/sluice/activity?window=5m';
  expect(asked).toEqual([activity, activity, '/sluice/recording?seconds=1']);
  await proxy.close();
});

test('tail ends when nobody reads its lines any more, as behind `head`', async () => {
  const line = `node bin/sluice.mjs tail --json --admin ${gateway.adminUrl} | head -n 1`;
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

test('tail ends when Sluice does', async () => {
  const other = await startGateway({ upstreams: '  api: { origins: ["https://api.example"] }' });
  const { err, ended } = begun(['tail', '--admin', other.adminUrl]);
  await until(async () => (await fetch(`${other.adminUrl}/livez`)).ok);
  await other.close();
  expect([await ended, err.length]).toEqual([expect.any(Number), 1]);
});
