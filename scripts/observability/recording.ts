/**
 * A recording for the dashboards: two replicas over a Redis, simulated upstreams, and Prometheus, which scrapes them while everything
 * happens that a panel shows: room, a burst, an upstream that throttles, a pause, an account without credit, an upstream that is away,
 * a configuration that is refused and one that is taken over, and a Redis that is lost. Owns what happens when; judges nothing.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { createKey } from '../../src/cli/keys.ts';
import { freePort } from '../../test/support/free-port.ts';
import { send } from '../../test/support/redis-fleet.ts';
import { startGateway, type Gateway } from '../cluster/fleet.ts';
import { child, newFolder, startServer, startSimulator, stopServer } from '../cluster/processes.ts';
import { serve } from '../cluster/upstream.ts';
import { answers, until } from '../processes.ts';

/** What happens lasts so long. */
const seconds = 240;

export interface Recording {
  /** Unix seconds. */
  readonly from: number;
  readonly until: number;
  /** Values over time of each series that the query finds. */
  ask(query: string): Promise<readonly Series[]>;
}

export interface Series {
  readonly labels: Readonly<Record<string, string>>;
  readonly points: readonly { readonly at: number; readonly value: number }[];
}

const workspaces = ['acme', 'bloom', 'nightly'] as const;
type Workspace = (typeof workspaces)[number];

/** Takes some minutes. Its processes are ended by `endAll` of `cluster/processes.ts`. @throws when a part of it cannot be started */
export async function makeRecording(): Promise<Recording> {
  const folder = await newFolder();
  const fast = { baseMs: 150, perTokenMs: 4, jitter: 0.5 };
  const models = { 'gpt-4o': { rpm: 240, tpm: 60_000 } };
  const openai = await startSimulator('language-model', { models, latency: fast });
  const backup = await startSimulator('language-model', { models, latency: fast });
  const shop = await startSimulator('commerce', {
    latency: { minMs: 80, maxMs: 300 },
    stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
  });
  const partner = await serve((request, response) => {
    const token = JSON.stringify({ access_token: 'token', token_type: 'Bearer', expires_in: 100 });
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(request.url === '/token' ? token : '{}');
  });
  let redis = await startServer();
  const keys = Object.fromEntries(workspaces.map((name) => [name, createKey()]));
  const here = 'allowPrivateAddresses: true';
  const nobody = await freePort();
  const yaml = (shopCeiling: string): string => `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainDelaySeconds: 0 }
redis: { url: "${redis.url}", replicas: 2, commandTimeoutMs: 1000 }
privacy: { labelKey: "a label key for a recording" }
log: { level: info, sampleSuccesses: 0 }
upstreams:
  openai: { kind: language-model, origins: ["${openai.url}"], ${here}, credential: "Bearer sk-sim", limits: { requestsPerMinute: none } }
  backup: { kind: language-model, origins: ["${backup.url}"], ${here}, credential: "Bearer sk-sim" }
  shop: { kind: commerce, origins: ["${shop.url}"], ${here}, credential: { header: x-shopify-access-token, value: "shpat_sim" }, maxInFlight: 4 }
  partner: { origins: ["${partner.origin}"], ${here}, limits: { requestsPerMinute: 120 }, credential: { header: authorization, oauth: { tokenUrl: "${partner.origin}/token", clientId: "sluice", clientSecret: "secret" } } }
  away: { origins: ["http://127.0.0.1:${nobody}"], ${here}, credential: "Bearer one" }
workspaces:
${workspaces.map((name) => `  ${name}: { keys: ["${keys[name]?.hash}"], requestsPerMinute: { shop: ${shopCeiling} }, weight: ${name === 'nightly' ? 1 : 3} }`).join('\n')}
`;
  const path = join(folder, 'sluice.yaml');
  await writeFile(path, yaml('60'));
  const replicas = [await startGateway(path), await startGateway(path)];
  const prometheus = await startPrometheus(folder, replicas);

  let sent = 0;
  /** Nobody waits for its response. */
  const call = (workspace: Workspace, to: string, headers: Readonly<Record<string, string>> = {}): void => {
    sent += 1;
    const { url = '' } = replicas[sent % 2] ?? {};
    const isModel = to.includes('chat');
    const body = { model: 'gpt-4o', messages: [{ role: 'user', content: 'hello' }], max_tokens: 40 };
    // A field that differs makes another call of it.
    const nonce = headers['idempotency-key'] ?? `n-${sent}`;
    const key = keys[workspace]?.key ?? '';
    void send({ url, path: `/via/${to}`, key, nonce, headers, ...(isModel ? { body } : {}) });
  };
  const chat = 'openai/v1/chat/completions';
  const asOperator = async (what: string): Promise<void> => {
    const options = { method: 'POST', headers: { 'sluice-admin': 'yes' } };
    // On a busy machine Redis may answer late.
    await until(what, 30_000, async () => {
      const { status } = await fetch(`${replicas[0]?.adminUrl}/upstreams/${what}`, options);
      return status === 200;
    });
  };
  const happens: Readonly<Record<number, () => unknown>> = {
    40: () => openai.configure({ close: { forMs: 6_000 } }),
    85: () => openai.configure({ close: { forMs: 12_000 } }),
    100: () => asOperator('shop/pause?seconds=25'),
    115: () => backup.configure({ quotaState: { 'org-sim': 'insufficient_quota' } }),
    140: () => writeFile(path, yaml('sixty')),
    160: () => writeFile(path, yaml('90')),
    180: () => stopServer(redis),
    195: async () => (redis = await startServer({ port: redis.port })),
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
  return {
    from,
    until: from + seconds,
    ask: (query) => prometheus.ask(query, { from, until: from + seconds }),
  };
}

async function startPrometheus(folder: string, replicas: readonly Gateway[]) {
  const targets = replicas.map(({ adminUrl }) => new URL(adminUrl).host);
  const job = { job_name: 'sluice', static_configs: [{ targets }] };
  const config = { global: { scrape_interval: '2s' }, scrape_configs: [job] };
  await writeFile(join(folder, 'prometheus.yml'), JSON.stringify(config));
  const address = `127.0.0.1:${await freePort()}`;
  child('prometheus', [
    `--config.file=${join(folder, 'prometheus.yml')}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=${address}`,
  ]);
  await until('Prometheus is ready', 60_000, () => answers(`http://${address}/-/ready`));
  return {
    async ask(query: string, span: { from: number; until: number }): Promise<readonly Series[]> {
      const asked = { query, start: String(span.from), end: String(span.until), step: '2' };
      const response = await fetch(`http://${address}/api/v1/query_range`, {
        method: 'POST',
        body: new URLSearchParams(asked),
      });
      const { data, error } = (await response.json()) as {
        readonly error?: string;
        readonly data?: { result: { metric: Record<string, string>; values: [number, string][] }[] };
      };
      if (data === undefined) throw new Error(`${query}: ${error ?? response.status}`);
      return data.result.map(({ metric, values }) => ({
        labels: metric,
        points: values
          .map(([at, value]) => ({ at, value: Number(value) }))
          .filter(({ value }) => Number.isFinite(value)),
      }));
    },
  };
}
