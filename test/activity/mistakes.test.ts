/** What an operator did wrong, or what an upstream does, is told by the answer of a real gateway alone: one mistake each. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import type { AllActivity } from '../../src/activity/shape.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let upstream: Server;
let gateway: TestGateway;
/** Status and body of the upstream's next answers; `broken`: it cuts the connection instead. */
let answer: readonly [status: number, body: string] | 'broken';

beforeEach(async () => {
  answer = [200, '{}'];
  upstream = createServer((request, response) => {
    request.resume();
    if (answer === 'broken') request.socket.destroy();
    else response.writeHead(answer[0], { 'content-type': 'application/json' }).end(answer[1]);
  });
  await new Promise<void>((done) => upstream.listen(0, '127.0.0.1', done));
});

afterEach(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise<void>((done) => upstream.close(() => done()));
});

async function start(more: string, workspace = ''): Promise<void> {
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    upstreams: `  api:\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: "Bearer one"\n${more}`,
    workspaces: { acme: workspace },
  });
}

/** Calls one after the other, none of which may wait. */
async function calls(count: number): Promise<readonly number[]> {
  const statuses: number[] = [];
  for (let n = 0; n < count; n++) {
    const response = await fetch(`${gateway.url}/via/api/path`, {
      headers: { authorization: `Bearer ${gateway.keys['acme']}`, prefer: 'wait=0' },
    });
    await response.text();
    statuses.push(response.status);
  }
  return statuses;
}

const said = async (): Promise<AllActivity> =>
  (await (await fetch(`${gateway.adminUrl}/activity`)).json()) as AllActivity;
const metric = async (series: string): Promise<string | undefined> =>
  (await (await fetch(`${gateway.adminUrl}/metrics`)).text())
    .split('\n')
    .find((line) => line.startsWith(`${series} `))
    ?.slice(series.length + 1);

test('there is no room beside refusals: of 12 calls on a limit of 5, the answer is no', async () => {
  await start('    limits: { requestsPerMinute: 5 }');
  expect((await calls(12)).filter((status) => status === 429)).toHaveLength(7);
  const { answer: all, upstreams } = await said();
  expect(all.sentence).toMatch(/^No for api: /);
  expect(all.wrongNow).toMatch(/^7.calls were refused since/);
  expect(upstreams[0]).toMatchObject({ growth: 0, answer: { tone: 'red', text: 'No: calls refused' } });
  expect(await metric('sluice_headroom_ratio{upstream="api"}')).toBe('0');
});

test('a full ceiling is told as yours, with its number and whose it is', async () => {
  await start('    limits: { requestsPerMinute: none }', '    requestsPerMinute: { api: 3 }');
  await calls(5);
  const { answer: all, upstreams } = await said();
  expect(all.sentence).toBe('No for api: calls are refused at your ceilings.');
  expect(all.heldBy).toMatch(
    /^Your ceiling of 3 requests a minute to api for w_[0-9a-f]{16}; 5 were asked for/,
  );
  expect(upstreams[0]?.limits).toMatchObject([{ owner: 'ceiling', limit: 3, used: 3 }]);
});

test('a pause is told, with its end and the command that ends it, and so are its refusals', async () => {
  await start('');
  const pause = await fetch(`${gateway.adminUrl}/upstreams/api/pause?seconds=90`, {
    method: 'POST',
    headers: { 'sluice-admin': 'yes' },
  });
  expect(pause.status).toBe(200);
  await calls(2);
  const { answer: all, upstreams } = await said();
  expect(all.sentence).toBe('No for api: an operator paused it.');
  expect(all.heldBy).toMatch(/^The pause since \d\d:\d\d.UTC\. It ends by itself at \d\d:\d\d:\d\d.UTC\.$/);
  expect(all.next).toContainEqual({ text: 'Go on now', command: 'sluice resume --upstream api' });
  expect(upstreams[0]?.lastHour.heldBy).toEqual({ paused: 2 });
  expect(await metric('sluice_upstream_paused{upstream="api"}')).toBe('1');

  await fetch(`${gateway.adminUrl}/upstreams/api/resume`, {
    method: 'POST',
    headers: { 'sluice-admin': 'yes' },
  });
  expect((await said()).answer.heldBy).toBe('A pause of the last hour, which is over.');
});

test('refusals of the upstream itself are told as such while no limit is used up', async () => {
  await start('    limits: { requestsPerMinute: 60 }');
  answer = [429, '{"error":"slow down"}'];
  expect(await calls(3)).toContain(429);
  const { answer: all } = await said();
  expect(all.sentence).toBe('No for api: it says “too many requests”, and no known limit was used up.');
  expect(all.heldBy).toMatch(/^api’s own “too many requests” of \d\d:\d\d.UTC(; .+ are left)?\.$/);
});

test('what an upstream refuses after a pause is told as its own, not as the pause', async () => {
  await start('');
  const control = (verb: string): Promise<Response> =>
    fetch(`${gateway.adminUrl}/upstreams/api/${verb}`, {
      method: 'POST',
      headers: { 'sluice-admin': 'yes' },
    });
  await control('pause?seconds=90');
  await calls(2);
  await control('resume');
  expect((await said()).answer.sentence).toBe('No for api: calls were refused while it was paused.');
  answer = [429, '{"error":"slow down"}'];
  await calls(2);
  expect((await said()).answer.sentence).toBe(
    'No for api: it says “too many requests”, and no known limit was used up.',
  );
});

test('an upstream that breaks calls off is told as such, before ceilings that are full', async () => {
  await start('    limits: { requestsPerMinute: none }', '    requestsPerMinute: { api: 3 }');
  answer = 'broken';
  await calls(5);
  const { answer: all, upstreams } = await said();
  expect(all.sentence).toBe('No for api: it cannot be reached, or breaks calls off.');
  expect(all.wrongNow).toMatch(/^3.calls failed since \d\d:\d\d.UTC\. 2.calls were refused since/);
  expect(upstreams[0]).toMatchObject({
    recent: { failed: 3, refused: 2 },
    answer: { tone: 'red', text: 'No: calls fail' },
  });
});

test('an upstream that refuses the credential is told as such, and not that every API can take more', async () => {
  await start('    limits: { requestsPerMinute: 60 }');
  answer = [401, '{"error":"who are you?"}'];
  expect(await calls(5)).toEqual([401, 401, 401, 401, 401]);
  const { answer: all, upstreams } = await said();
  expect(all.sentence).toBe('No for api: it answers every call with an error.');
  expect(all.wrongNow).toMatch(/^5.calls ended so since \d\d:\d\d.UTC\. None are refused\./);
  expect(all.next).toContainEqual({
    text: 'Does it take the credential?',
    command: 'sluice check --connect',
  });
  expect(upstreams[0]).toMatchObject({ answer: { tone: 'red', text: 'No: only errors' } });
  answer = [200, '{}'];
  await calls(1);
  expect((await said()).answer.sentence).toBe('Yes: every API can take more.');
});

test('out of credit is told by its name', async () => {
  await start('    kind: language-model');
  answer = [
    429,
    JSON.stringify({ error: { message: 'x', type: 'insufficient_quota', code: 'insufficient_quota' } }),
  ];
  await calls(1);
  const { answer: all } = await said();
  expect(all.sentence).toBe('No for api: it is out of credit.');
  expect(all.heldBy).toContain('insufficient_quota');
  expect(all.wrongNow).toMatch(/^Sluice asks again with one call in/);
  const local = await fetch(`${gateway.url}/via/api/path`, {
    headers: { authorization: `Bearer ${gateway.keys['acme']}` },
  });
  expect(await local.json()).toMatchObject({
    detail: expect.stringMatching(/^The upstream refuses such calls with 429 \(insufficient_quota\), which/),
  });
  expect(gateway.logs.join('')).toMatch(
    /refuses calls for good.*"said":"insufficient_quota"|"said":"insufficient_quota".*refuses calls for good/,
  );
});
