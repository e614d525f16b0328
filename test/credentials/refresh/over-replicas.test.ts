/**
 * A refresh token that each use replaces, and that a second use ends for good, over three processes, Redis and one file: a process is
 * killed in the middle of a renewal, Redis goes away and comes back, and no call notices.
 */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../../src/cli/keys.ts';
import { createLanguageModelSimulator } from '../../../simulators/language-model.ts';
import { clean, serve } from '../../cli/started.ts';
import { adminText, closeAll, many, opened } from '../../journey/world.ts';
import { chatBody, chatPath, pause, send, type CallResponse } from '../../support/redis-fleet.ts';
import { monitorRedis } from '../../support/redis-monitor.ts';
import { startRedis } from '../../support/redis.ts';
import { startTokenEndpoint } from '../../support/token-endpoint.ts';
import { until } from '../../support/until.ts';

afterEach(closeAll);

type Served = Awaited<ReturnType<typeof serve>>;

/** Three processes before a model that takes the tokens that the endpoint has issued and that have not ended. */
async function start() {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  opened.push(() => rm(folder, { recursive: true }));
  const redis = await startRedis();
  opened.push(() => redis.stop());
  const orgsOf = (keys: readonly string[]) => ({ org: { projects: { project: { keys: [...keys] } } } });
  const model = createLanguageModelSimulator({
    models: { 'gpt-4o': { rpm: 600_000, tpm: 100_000_000 } },
    latency: { baseMs: 1, perTokenMs: 0, jitter: 0 },
    orgs: orgsOf([]),
  });
  opened.push(() => model.close());
  const endpoint = await startTokenEndpoint({
    lifeSeconds: 5,
    isRotating: true,
    refresh: 'single_use',
    onChange: (valid) => model.configure({ orgs: orgsOf(valid) }),
  });
  opened.push(() => endpoint.close());
  const file = join(folder, 'token');
  await writeFile(file, endpoint.refreshTokens[0] ?? '', { mode: 0o600 });
  const { key, hash } = createKey();
  const yaml = `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }
redis: { url: "${redis.url}", commandTimeoutMs: 300 }
privacy: { labelKey: "a label key for tests only" }
upstreams:
  openai:
    kind: language-model
    origins: ["${(await model.listen()).url}"]
    allowPrivateAddresses: true
    limits: { requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000 }
    credential: { header: authorization, oauth: { tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${file}" } }
workspaces:
  acme: { keys: ["${hash}"] }`;
  const replicas = await Promise.all(many(3, () => serve(yaml)));
  opened.push(clean);
  /** Six clients, each of which sends the next call to the next replica while it goes on; with what was not answered with 200. */
  async function callsWhile(goesOn: () => boolean, to: readonly Served[]) {
    const failed: CallResponse[] = [];
    const client = async (at: number): Promise<void> => {
      for (let n = at; goesOn(); n += 1) {
        const url = to[n % to.length]?.url ?? '';
        const headers = { prefer: 'wait=100' };
        const reply = await send({ url, path: chatPath, body: chatBody, key, nonce: `${at}-${n}`, headers });
        if (reply.status !== 200) failed.push(reply);
        await pause(20);
      }
    };
    await Promise.all(many(6, client));
    return failed;
  }
  /** Calls over so many more tokens, none of which fails. */
  async function callsOver(tokens: number, to: readonly Served[]): Promise<void> {
    const before = endpoint.issued.length;
    expect(await callsWhile(() => endpoint.issued.length < before + tokens, to)).toEqual([]);
  }
  return { folder, file, redis, endpoint, replicas, callsWhile, callsOver };
}

test('three replicas use each refresh token once, also when one is killed in a renewal and while Redis is away', async () => {
  const { folder, file, redis, endpoint, replicas, callsWhile, callsOver } = await start();
  const monitor = await monitorRedis(redis.port);
  const probe = new Redis(redis.port);
  await callsOver(3, replicas);

  // One replica has all the calls, so it is the one that renews: it is killed while the endpoint has its refresh token.
  const [killed, ...others] = replicas as [Served, ...Served[]];
  const asked = endpoint.requests.length;
  endpoint.respond({ kind: 'hang' }, { kind: 'issue' });
  const cut = callsWhile(() => endpoint.requests.length === asked, [killed]);
  await until(() => endpoint.requests.length > asked);
  killed.signal('SIGKILL');
  await killed.ended;
  await cut;
  expect(await readdir(folder)).toContain('token.lock');
  await callsOver(2, others);

  process.kill(redis.pid, 'SIGSTOP');
  await callsOver(2, others);
  process.kill(redis.pid, 'SIGCONT');
  await callsOver(2, others);

  expect([endpoint.refusedGrants, endpoint.maxAtOnce]).toEqual([0, 1]);
  // The last renewal may be under way still.
  const kept = async () => JSON.parse(await readFile(file, 'utf8')) as { readonly refresh_token: string };
  await until(async () => (await kept()).refresh_token === endpoint.refreshTokens.at(-1));
  monitor.stop();
  const held = (await probe.keys('*')).map(async (name) => `${name} ${(await probe.dump(name)) ?? ''}`);
  const pages = others.flatMap((one) => ['/metrics', '/activity', '/'].map((path) => adminText(one, path)));
  const shown = [
    ...replicas.map(({ printed }) => printed()),
    ...monitor.lines,
    ...(await Promise.all([...pages, ...held])),
  ].join('\n');
  probe.disconnect();
  expect(shown).toMatch(/renewals_total\{upstream="openai",outcome="shared"\} [1-9]/);
  for (const secret of ['canary', 'secret-of-the-client', ...endpoint.refreshTokens])
    expect(shown).not.toContain(secret);
});
