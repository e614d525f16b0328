/**
 * A recording for the dashboards: two replicas over a Redis, simulated upstreams, and Prometheus, which scrapes them while everything
 * happens that a panel shows: room, a burst, an upstream that throttles, a pause, an account without credit, an upstream that is away,
 * a configuration that is refused and one that is taken over, and a Redis that is lost. Owns what happens when; judges nothing.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import { freePort } from '../../test/support/free-port.ts';
import { pause, send } from '../../test/support/redis-fleet.ts';
import { startGateway, yamlOf, type Gateway } from '../fleet/gateways.ts';
import { serve } from '../fleet/http.ts';
import { answers, newFolder, start, until } from '../fleet/processes.ts';
import { startServer, stopServer } from '../fleet/redis.ts';
import { startSimulator } from '../fleet/simulators.ts';

/** What happens lasts so long. */
const seconds = 240;

export interface Recording {
  /** Whether the query finds a number anywhere in it. */
  finds(query: string): Promise<boolean>;
}

const workspaces = ['acme', 'bloom', 'nightly'] as const;

/** Takes some minutes. Its processes are ended by `endAll`. @throws when a part of it cannot be started */
export async function makeRecording(): Promise<Recording> {
  const folder = await newFolder();
  const latency = { baseMs: 150, perTokenMs: 4, jitter: 0.5 };
  const models = { 'gpt-4o': { rpm: 240, tpm: 60_000 } };
  const openai = await startSimulator('language-model', { models, latency });
  const backup = await startSimulator('language-model', { models, latency });
  const shop = await startSimulator('commerce', {
    latency: { minMs: 80, maxMs: 300 },
    stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const partner = await serve(({ url }, response) => {
    const token = { access_token: 'token', token_type: 'Bearer', expires_in: 100 };
    response.setHeader('content-type', 'application/json').end(JSON.stringify(url === '/token' ? token : {}));
  });
  const redis = await startServer();
  const keys = Object.fromEntries(workspaces.map((name) => [name, createKey()]));
  const one = (name: string, origin: string, more: string): string =>
    `${name}: { origins: ["${origin}"], allowPrivateAddresses: true, ${more} }`;
  const model = 'kind: language-model, credential: "Bearer sk-sim"';
  const token = `oauth: { tokenUrl: "${partner.origin}/token", clientId: "sluice", clientSecret: "secret" }`;
  const yaml = (shopCeiling: string): string =>
    yamlOf({
      server: ['drainDelaySeconds: 0'],
      redis: `url: "${redis.url}", replicas: 2, commandTimeoutMs: 1000`,
      upstreams: [
        one('openai', openai.url, `${model}, limits: { requestsPerMinute: none }`),
        one('backup', backup.url, model),
        one(
          'shop',
          shop.url,
          'kind: commerce, credential: { header: x-shopify-access-token, value: shpat_sim }, maxInFlight: 4',
        ),
        one(
          'partner',
          partner.origin,
          `limits: { requestsPerMinute: 120 }, credential: { header: authorization, ${token} }`,
        ),
        one('away', 'http://127.0.0.1:9', 'credential: "Bearer one"'),
      ],
      workspaces: workspaces.map(
        (name) =>
          `${name}: { keys: ["${keys[name]?.hash}"], requestsPerMinute: { shop: ${shopCeiling} }, weight: ${name === 'nightly' ? 1 : 3} }`,
      ),
    });
  const path = join(folder, 'sluice.yaml');
  await writeFile(path, yaml('60'));
  const replicas = [await startGateway(path), await startGateway(path)];
  const finds = await startPrometheus(folder, replicas);

  let sent = 0;
  /** Nobody waits for its response. */
  const call = (workspace: string, to: string, headers: Readonly<Record<string, string>> = {}): void => {
    sent += 1;
    const messages = [{ role: 'user', content: 'hello' }];
    void send({
      url: replicas[sent % 2]?.url ?? '',
      path: `/via/${to}`,
      key: keys[workspace]?.key ?? '',
      // A field that differs makes another call of it.
      nonce: headers['idempotency-key'] ?? `n-${sent}`,
      headers,
      ...(to.includes('chat') ? { body: { model: 'gpt-4o', messages, max_tokens: 40 } } : {}),
    });
  };
  const chat = 'openai/v1/chat/completions';
  const pauseShop = async (): Promise<void> => {
    const options = { method: 'POST', headers: { 'sluice-admin': 'yes' } };
    const url = `${replicas[0]?.adminUrl}/upstreams/shop/pause?seconds=25`;
    // On a busy machine Redis may answer late.
    await until('the shop is paused', 30_000, async () => (await fetch(url, options)).status === 200);
  };
  const happens: Readonly<Record<number, () => unknown>> = {
    40: () => openai.configure({ close: { forMs: 6_000 } }),
    85: () => openai.configure({ close: { forMs: 12_000 } }),
    100: pauseShop,
    115: () => backup.configure({ quotaState: { 'org-sim': 'insufficient_quota' } }),
    140: () => writeFile(path, yaml('sixty')),
    160: () => writeFile(path, yaml('90')),
    180: () => stopServer(redis),
    195: () => startServer({ port: redis.port }),
  };
  const from = Date.now() / 1_000;
  for (let second = 0; second < seconds; second += 1) {
    await happens[second]?.();
    for (let n = 0; n < 2; n++) call('acme', chat);
    if (second >= 45 && second < 100) {
      for (let n = 0; n < 5; n++) call('nightly', chat, { prefer: n < 3 ? 'wait=60' : 'wait=4' });
      for (let n = 0; n < 2; n++) call('bloom', chat, { 'idempotency-key': `k-${Math.floor(second / 4)}` });
    }
    if (second % 2 === 0) call('bloom', 'shop/admin/api/2026-10/orders.json');
    if (second > 20 && second < 130)
      call('acme', 'shop/admin/api/2026-10/products.json', { prefer: 'wait=20' });
    if (second % 3 === 0) call('bloom', 'backup/v1/chat/completions');
    if (second % 2 === 0) call('acme', 'partner/things');
    if (second > 60 && second < 90) call('nightly', 'away/things');
    await pause(Math.max(1, from * 1_000 + (second + 1) * 1_000 - Date.now()));
  }
  partner.stop();
  return { finds: (query) => finds(query, from) };
}

/** Prometheus over these replicas. @returns whether a query finds a number from then on, Unix seconds */
async function startPrometheus(folder: string, replicas: readonly Gateway[]) {
  const targets = replicas.map(({ adminUrl }) => new URL(adminUrl).host);
  const job = { job_name: 'sluice', static_configs: [{ targets }] };
  const file = join(folder, 'prometheus.yml');
  await writeFile(file, JSON.stringify({ global: { scrape_interval: '2s' }, scrape_configs: [job] }));
  const address = `127.0.0.1:${await freePort()}`;
  const storage = `--storage.tsdb.path=${join(folder, 'data')}`;
  start('prometheus', [`--config.file=${file}`, storage, `--web.listen-address=${address}`]);
  await until('Prometheus is ready', 60_000, () => answers(`http://${address}/-/ready`));
  return async (query: string, from: number): Promise<boolean> => {
    const body = new URLSearchParams({ query, start: `${from}`, end: `${from + seconds}`, step: '2' });
    const response = await fetch(`http://${address}/api/v1/query_range`, { method: 'POST', body });
    const { data, error } = (await response.json()) as {
      readonly error?: string;
      readonly data?: { result: { values: [number, string][] }[] };
    };
    if (data === undefined) throw new Error(`${query}: ${error ?? response.status}`);
    return data.result.some(({ values }) => values.some(([, value]) => Number.isFinite(Number(value))));
  };
}
