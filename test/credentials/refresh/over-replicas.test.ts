/**
 * A refresh token that each use replaces, and that a second use ends for good, over three processes, Redis and one file: a process is
 * killed in the middle of a renewal, Redis goes away and comes back, and no call notices.
 */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../../src/cli/keys.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../../simulators/language-model.ts';
import { serve, type ServedProcess } from '../../journey/process.ts';
import {
  chatBody,
  chatPath,
  clientAgent,
  pause,
  send,
  type CallResponse,
} from '../../support/redis-fleet.ts';
import { monitorRedis } from '../../support/redis-monitor.ts';
import { startRedis, type RedisServer } from '../../support/redis.ts';
import { startTokenEndpoint, type TokenEndpoint } from '../../support/token-endpoint.ts';
import { until } from '../../support/until.ts';

const agent = clientAgent();
const { key, hash } = createKey();
let folder: string;
let redis: RedisServer;
let model: LanguageModelSimulator;
let endpoint: TokenEndpoint;
let replicas: readonly ServedProcess[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  redis = await startRedis();
  const orgsOf = (keys: readonly string[]) => ({ org: { projects: { project: { keys: [...keys] } } } });
  model = createLanguageModelSimulator({
    models: { 'gpt-4o': { rpm: 600_000, tpm: 100_000_000 } },
    latency: { baseMs: 1, perTokenMs: 0, jitter: 0 },
    orgs: orgsOf([]),
  });
  const { url } = await model.listen();
  endpoint = await startTokenEndpoint({
    lifeSeconds: 5,
    isRotating: true,
    refresh: 'single_use',
    onChange: (valid) => model.configure({ orgs: orgsOf(valid) }),
  });
  await writeFile(join(folder, 'token'), endpoint.refreshTokens[0] ?? '', { mode: 0o600 });
  const oauth = `{ tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${join(folder, 'token')}" }`;
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }',
    `redis: { url: "${redis.url}", commandTimeoutMs: 300 }`,
    'privacy: { labelKey: "a label key for tests only" }',
    'upstreams:',
    '  openai:',
    '    kind: language-model',
    `    origins: ["${url}"]`,
    '    allowPrivateAddresses: true',
    `    credential: { header: authorization, oauth: ${oauth} }`,
    '    limits: { requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000 }',
    `workspaces:\n  acme: { keys: ["${hash}"] }`,
  ].join('\n');
  replicas = await Promise.all([1, 2, 3].map(() => serve(yaml)));
});
afterEach(async () => {
  await Promise.all(replicas.map((replica) => replica.close()));
  await endpoint.close();
  await model.close();
  await redis.stop();
  agent.destroy();
  await rm(folder, { recursive: true });
});

/** Calls to these replicas in turn, four at a time, until it ends; resolves with those that were not answered with 200. */
async function callsUntil(ends: () => boolean, to: readonly ServedProcess[]): Promise<CallResponse[]> {
  const failures: CallResponse[] = [];
  let count = 0;
  const client = async (at: number): Promise<void> => {
    for (let n = at; !ends(); n += 1) {
      const url = to[n % to.length]?.url ?? '';
      const headers = { prefer: 'wait=100' };
      const response = await send({
        url,
        path: chatPath,
        body: chatBody,
        key,
        nonce: `${at}-${n}`,
        agent,
        headers,
      });
      count += 1;
      if (response.status !== 200) failures.push(response);
      await pause(20);
    }
  };
  await Promise.all([0, 1, 2, 3].map(client));
  expect(count).toBeGreaterThan(0);
  return failures;
}
/** Calls over so many more tokens. */
function callsOver(tokens: number, to: readonly ServedProcess[]): Promise<CallResponse[]> {
  const before = endpoint.issued.length;
  return callsUntil(() => endpoint.issued.length >= before + tokens, to);
}

test('three replicas use each refresh token once, also when one is killed in a renewal and while Redis is away', async () => {
  const monitor = await monitorRedis(redis.port);
  const probe = new Redis(redis.port);
  expect(await callsOver(3, replicas)).toEqual([]);

  // One replica has all the calls, so it is the one that renews: it is killed while the endpoint has its refresh token.
  const [killed, ...others] = replicas;
  if (killed === undefined) throw new Error('no replica');
  const asked = endpoint.requests.length;
  endpoint.respond({ kind: 'hang' }, { kind: 'issue' });
  const cut = callsUntil(() => endpoint.requests.length > asked, [killed]);
  await until(() => endpoint.requests.length > asked);
  await killed.close();
  replicas = others;
  await cut;
  expect(await readdir(folder)).toContain('token.lock');
  expect(await callsOver(2, others)).toEqual([]);

  process.kill(redis.pid, 'SIGSTOP');
  expect(await callsOver(2, others)).toEqual([]);
  process.kill(redis.pid, 'SIGCONT');
  expect(await callsOver(2, others)).toEqual([]);

  expect(endpoint.refusedGrants).toBe(0);
  expect(endpoint.maxAtOnce).toBe(1);
  // The last renewal may be under way still.
  const kept = async (): Promise<unknown> =>
    (JSON.parse(await readFile(join(folder, 'token'), 'utf8')) as { refresh_token: string }).refresh_token;
  await until(async () => (await kept()) === endpoint.refreshTokens.at(-1));
  monitor.stop();
  const pages = others.flatMap(({ adminUrl }) =>
    ['metrics', 'activity', ''].map(async (path) => (await fetch(`${adminUrl}/${path}`)).text()),
  );
  const held = (await probe.keys('*')).map(async (name) => `${name} ${(await probe.dump(name)) ?? ''}`);
  probe.disconnect();
  const shown = [
    ...[killed, ...others].flatMap(({ lines }) => lines),
    ...monitor.lines,
    ...(await Promise.all(pages)),
    ...(await Promise.all(held)),
  ].join('\n');
  expect(shown).toMatch(/renewals_total\{upstream="openai",outcome="shared"\} [1-9]/);
  for (const secret of ['canary', 'secret-of-the-client']) expect(shown).not.toContain(secret);
  for (const token of endpoint.refreshTokens) expect(shown).not.toContain(token);
});
