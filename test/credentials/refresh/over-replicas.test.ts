/**
 * A refresh token that each use replaces, and that a second use ends for good, over three processes, Redis and one file: a process is
 * killed in the middle of a renewal, Redis goes away and comes back, and no call notices.
 */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { serve, type ServedProcess } from '../../journey/process.ts';
import { chatBody, chatPath } from '../../support/redis-fleet.ts';
import { monitorRedis } from '../../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { startTokenEndpoint, type TokenEndpoint } from '../../support/token-endpoint.ts';
import { until } from '../../support/until.ts';
import { load, shownAt, startUpstreams, yamlOf, type Upstreams } from '../replicas.ts';

let folder: string;
let redis: RedisServer;
let upstreams: Upstreams;
let endpoint: TokenEndpoint;
let replicas: readonly ServedProcess[];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  redis = await startRedis();
  upstreams = await startUpstreams();
  endpoint = await startTokenEndpoint({
    lifeSeconds: 5,
    isRotating: true,
    refresh: 'single_use',
    onChange: (valid) => upstreams.accept(valid),
  });
  await writeFile(join(folder, 'token'), endpoint.refreshTokens[0] ?? '', { mode: 0o600 });
  const oauth = `{ tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${join(folder, 'token')}" }`;
  const model = `{ header: authorization, oauth: ${oauth} }`;
  const yaml = yamlOf(redis, upstreams, { model, timeoutMs: 300 });
  replicas = await Promise.all([1, 2, 3].map(() => serve(yaml)));
});
afterEach(async () => {
  await Promise.all(replicas.map((replica) => replica.close()));
  await endpoint.close();
  await upstreams.close();
  await redis.stop();
  await rm(folder, { recursive: true });
});

const call = { path: chatPath, body: chatBody };
const callsWhile = (goesOn: () => boolean, to: readonly ServedProcess[]) =>
  load(
    to.map(({ url }) => url),
    goesOn,
    { call, pauseMs: 20 },
  );
/** Calls over so many more tokens, none of which fails. */
async function callsOver(tokens: number, to: readonly ServedProcess[]): Promise<void> {
  const before = endpoint.issued.length;
  expect(await callsWhile(() => endpoint.issued.length < before + tokens, to)).toEqual([]);
}

test('three replicas use each refresh token once, also when one is killed in a renewal and while Redis is away', async () => {
  const monitor = await monitorRedis(redis.port);
  const probe = new Redis(redis.port);
  await callsOver(3, replicas);

  // One replica has all the calls, so it is the one that renews: it is killed while the endpoint has its refresh token.
  const [killed, ...others] = replicas as [ServedProcess, ...ServedProcess[]];
  const asked = endpoint.requests.length;
  endpoint.respond({ kind: 'hang' }, { kind: 'issue' });
  const cut = callsWhile(() => endpoint.requests.length === asked, [killed]);
  await until(() => endpoint.requests.length > asked);
  await killed.close();
  replicas = others;
  await cut;
  expect(await readdir(folder)).toContain('token.lock');
  await callsOver(2, others);

  process.kill(redis.pid, 'SIGSTOP');
  await callsOver(2, others);
  process.kill(redis.pid, 'SIGCONT');
  await callsOver(2, others);

  expect([endpoint.refusedGrants, endpoint.maxAtOnce]).toEqual([0, 1]);
  // The last renewal may be under way still.
  const kept = async () =>
    JSON.parse(await readFile(join(folder, 'token'), 'utf8')) as { readonly refresh_token: string };
  await until(async () => (await kept()).refresh_token === endpoint.refreshTokens.at(-1));
  monitor.stop();
  const held = (await probe.keys('*')).map(async (name) => `${name} ${(await probe.dump(name)) ?? ''}`);
  const shown = [
    ...[killed, ...others].flatMap(({ lines }) => lines),
    ...monitor.lines,
    await shownAt(others.map(({ adminUrl }) => adminUrl)),
    ...(await Promise.all(held)),
  ].join('\n');
  probe.disconnect();
  expect(shown).toMatch(/renewals_total\{upstream="openai",outcome="shared"\} [1-9]/);
  for (const secret of ['canary', 'secret-of-the-client', ...endpoint.refreshTokens])
    expect(shown).not.toContain(secret);
});
