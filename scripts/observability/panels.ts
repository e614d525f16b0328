/**
 * A real Prometheus scrapes real replicas under load: every query of every panel, and every series that an alert reads,
 * must return data. Redis is used when there is one; without it the queries that only Redis feeds are SKIPPED, loudly.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import type { AllActivity } from '../../src/activity/shape.ts';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { startService, type Service } from '../../src/service.ts';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { dashboards } from '../grafana/dashboards.ts';
import { startTokenEndpoint } from '../../test/support/token-endpoint.ts';
import type { Report } from '../report.ts';
import { available, end, pause, run, start } from './tools.ts';

const rules = new URL('../../grafana/rules/', import.meta.url).pathname;
const ruleFiles = ['sluice.rules.yaml', 'sluice.alerts.yaml'];
const workspaces = ['canary-alpha', 'canary-beta'];
/** Load before the queries: longer than the 15 s that a rate looks back. */
const loadMs = 30_000;

export async function verifyPanels(report: Report): Promise<void> {
  if (!available('prometheus'))
    return report.skipped('panels and alerts over a real Prometheus', 'no prometheus');
  const folder = mkdtempSync(join(tmpdir(), 'sluice-observability-'));
  const redisPort = await freePort();
  const redis = available('redis-server')
    ? start('redis-server', [
        '--port',
        String(redisPort),
        '--save',
        '',
        '--bind',
        '127.0.0.1',
        '--dir',
        folder,
      ])
    : null;
  if (redis === null) report.skipped('Redis panels', 'no redis-server');
  const model = createLanguageModelSimulator({ models: { 'gpt-4o': { rpm: 240, tpm: 1_000_000 } } });
  const shop = createCommerceSimulator();
  const [{ url: modelUrl }, { url: shopUrl }] = [await model.listen(0), await shop.listen(0)];
  // Renewed several times during the load.
  const tokens = await startTokenEndpoint({ lifeSeconds: 15 });
  const keys = workspaces.map(() => createKey());
  const yaml = configuration({
    modelUrl,
    shopUrl,
    tokenUrl: tokens.url,
    hashes: keys.map(({ hash }) => hash),
    redisPort: redis && redisPort,
  });
  const services: Service[] = [];
  const port = await freePort();
  const logs: string[] = [];
  let prometheus = null;
  try {
    await pause(500);
    for (let n = 0; n < 2; n++) services.push(await replica(yaml, logs));
    writeFileSync(join(folder, 'prometheus.yaml'), scrapes(services, folder));
    // The same rules, evaluated as often as this short load needs.
    for (const name of ruleFiles) {
      const text = readFileSync(join(rules, name), 'utf8').replace('interval: 30s', 'interval: 2s');
      writeFileSync(join(folder, name), text);
    }
    prometheus = start('prometheus', [
      `--config.file=${join(folder, 'prometheus.yaml')}`,
      `--storage.tsdb.path=${join(folder, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
      '--log.level=error',
    ]);
    await load(
      services,
      keys.map(({ key }) => key),
    );
    const ask = asker(`http://127.0.0.1:${port}`);
    const modes = await ask('sum by (mode) (sluice_limiter_mode) > 0');
    const mode = modes[0]?.metric['mode'] ?? 'unknown';
    report.check('both replicas are scraped', (await ask('count(up == 1)'))[0]?.value[1] === '2');
    await verifyQueries(report, ask, mode);
    await verifyOpenMetrics(report, services[0]);
    const text = await (await fetch(`${adminOf(services[0])}/metrics`)).text();
    const lint = run('promtool', ['check', 'metrics'], { input: text });
    report.check(
      'promtool check metrics on a replica under load',
      lint.status === 0 && lint.output === '',
      lint.output,
    );
    await verifyShared(report, services, redis !== null);
    const shown = `${text}\n${await (await fetch(`${adminOf(services[0])}/activity`)).text()}\n${logs.join('\n')}`;
    report.check(
      'no canary in metrics, activity and logs of that load',
      logs.length > 0 && !/canary|slc_|sk-sim|shpat/.test(shown),
    );
  } finally {
    if (prometheus !== null) await end(prometheus);
    for (const service of services) await service.close();
    if (redis !== null) await end(redis);
    await model.close();
    await shop.close();
    await tokens.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

interface Series {
  readonly metric: Record<string, string>;
  readonly value: readonly [number, string];
}
type Ask = (query: string) => Promise<readonly Series[]>;

function asker(base: string): Ask {
  return async (query) => {
    const response = await fetch(`${base}/api/v1/query?query=${encodeURIComponent(query)}`);
    const { status, data, error } = (await response.json()) as {
      status: string;
      data?: { result: Series[] };
      error?: string;
    };
    if (status !== 'success') throw new Error(`${query}: ${error}`);
    return data?.result ?? [];
  };
}

async function verifyQueries(report: Report, ask: Ask, mode: string): Promise<void> {
  const onlyWithRedis = (query: string): boolean =>
    query.includes('sluice_redis_command_seconds') && mode !== 'redis';
  let asked = 0;
  for (const [name, builder] of Object.entries(dashboards)) {
    for (const panel of builder.build().panels ?? []) {
      for (const target of ('targets' in panel ? panel.targets : undefined) ?? []) {
        const expr = String((target as { expr?: string }).expr);
        for (const upstream of expr.includes('$upstream') ? ['openai', 'shop'] : ['']) {
          const query = expr.replaceAll('$__rate_interval', '15s').replaceAll('$upstream', upstream);
          const what = `${name}, ${panel.title}${upstream === '' ? '' : ` (${upstream})`}: ${query}`;
          asked += 1;
          if (onlyWithRedis(query)) report.skipped(what, `the limiter mode is ${mode}`);
          else {
            const found = await ask(query).catch((error: Error) => error.message);
            const good =
              typeof found !== 'string' && found.some(({ value }) => Number.isFinite(Number(value[1])));
            report.check(
              what,
              good,
              typeof found === 'string' ? found : `${found.length} series, no finite value`,
            );
          }
        }
      }
    }
  }
  report.check('there were panels to ask for', asked > 30);
  for (const { alert, expr } of alerts()) {
    // An alert that is silent returns nothing. Its comparisons as 0 or 1 do, when every series it reads is there; each is
    // asked for by itself too, because `or` would hide one that is not.
    const selectors = new Set(
      [...expr.matchAll(/sluice[_:][a-zA-Z0-9_:]+(\{[^}]*\})?/g)].map(([all]) => all),
    );
    for (const selector of selectors)
      report.check(`${alert} reads ${selector}`, (await ask(selector)).length > 0, 'no series');
    const judged = expr.replace(/(?<=\s)(>=|<=|==|!=|>|<)(?=\s)/g, '$1 bool');
    const found = await ask(judged);
    report.check(
      `${alert}: ${judged}`,
      judged !== expr && found.some(({ value }) => Number.isFinite(Number(value[1]))),
      `${found.length} series`,
    );
    await ask(expr);
  }
}

function alerts(): readonly { alert: string; expr: string }[] {
  const text = readFileSync(join(rules, 'sluice.alerts.yaml'), 'utf8');
  return (parse(text) as { groups: { rules: { alert: string; expr: string }[] }[] }).groups.flatMap(
    (g) => g.rules,
  );
}

/** Every replica answers for all of them: once both have published, they tell the same of the same load. */
async function verifyShared(report: Report, services: readonly Service[], overRedis: boolean): Promise<void> {
  if (!overRedis) return report.skipped('activity over all replicas', 'no redis-server');
  const shown = async (service: Service): Promise<AllActivity> =>
    (await (await fetch(`${adminOf(service)}/activity`)).json()) as AllActivity;
  const own = services.map(({ telemetry }) =>
    telemetry.live().reduce((sum, { waiting, inFlight }) => sum + waiting + inFlight, 0),
  );
  // What still waits ends, then the next publication (every 5 s) tells of it.
  for (let tries = 0; tries < 60 && own.some((n) => n > 0); tries++) {
    await pause(1_000);
    for (const [i, { telemetry }] of services.entries())
      own[i] = telemetry.live().reduce((sum, { waiting, inFlight }) => sum + waiting + inFlight, 0);
  }
  await pause(11_000);
  const [one, two] = await Promise.all(services.map(shown));
  report.check('each replica counts both', one?.replicas === 2 && two?.replicas === 2);
  const [ofOne, ofTwo] = [callsOf(one), callsOf(two)];
  report.check('both tell the same activity', ofOne > 0 && ofOne === ofTwo, `${ofOne} and ${ofTwo} calls`);
}

const callsOf = (all: AllActivity | undefined): number =>
  (all?.workspaces ?? [])
    .flatMap(({ upstreams }) => upstreams.map(({ recent }) => recent.calls))
    .reduce((sum, calls) => sum + calls, 0);

/** The form that Prometheus itself asks for must be complete. */
async function verifyOpenMetrics(report: Report, service: Service | undefined): Promise<void> {
  const accept = 'application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5';
  const response = await fetch(`${adminOf(service)}/metrics`, { headers: { accept } });
  const body = await response.text();
  const type = response.headers.get('content-type') ?? '';
  report.check(
    'OpenMetrics on request',
    type.startsWith('application/openmetrics-text') && body.endsWith('# EOF\n'),
    type,
  );
}

const adminOf = (service: Service | undefined): string => `http://127.0.0.1:${service?.adminAddress.port}`;

async function replica(yaml: string, logs: string[]): Promise<Service> {
  return startService({
    settings: parseSettings(yaml, { path: 'the verification', env: {} }),
    clock: systemClock,
    random: systemRandom,
    destination: { write: (line) => void logs.push(line) },
    env: {},
  });
}

function configuration(given: {
  readonly modelUrl: string;
  readonly shopUrl: string;
  readonly tokenUrl: string;
  readonly hashes: readonly string[];
  readonly redisPort: number | null;
}): string {
  const redis = given.redisPort === null ? '' : `redis: { url: "redis://127.0.0.1:${given.redisPort}" }\n`;
  const own = workspaces.map(
    (name, i) => `  ${name}: { keys: [{ hash: "${given.hashes[i]}" }], upstreams: [openai, shop, renewing] }`,
  );
  return `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
privacy: { labelKey: "a label key of the verification" }
${redis}upstreams:
  openai:
    kind: language-model
    origins: ["${given.modelUrl}"]
    allowPrivateAddresses: true
    credential: { header: authorization, value: "Bearer sk-sim" }
    limits: { requestsPerMinute: 900, requestsPerDay: 100000, tokensPerMinute: 2000000 }
  shop:
    kind: commerce
    origins: ["${given.shopUrl}"]
    allowPrivateAddresses: true
    credential: { header: x-shopify-access-token, value: "shpat_sim" }
    limits: { requestsPerMinute: 600 }
  renewing:
    kind: generic
    origins: ["${given.modelUrl}"]
    allowPrivateAddresses: true
    credential:
      header: x-token
      oauth: { tokenUrl: "${given.tokenUrl}", clientId: client-sim, clientSecret: secret-of-the-client, format: form }
workspaces:
${own.join('\n')}
`;
}

const scrapes = (services: readonly Service[], folder: string): string => `
global: { scrape_interval: 1s, evaluation_interval: 2s }
rule_files: [${ruleFiles.map((name) => JSON.stringify(join(folder, name))).join(', ')}]
scrape_configs:
  - job_name: sluice
    static_configs:
      - targets: [${services.map(({ adminAddress }) => `"127.0.0.1:${adminAddress.port}"`).join(', ')}]
`;

/** Bursts to both upstreams through both replicas; more than the model's quota, some with little patience. */
async function load(services: readonly Service[], keys: readonly string[]): Promise<void> {
  const until = systemClock.monotonic() + loadMs;
  const calls: Promise<unknown>[] = [];
  for (let n = 0; systemClock.monotonic() < until; n++) {
    const base = `http://127.0.0.1:${services[n % services.length]?.dataAddress.port}`;
    const headers = {
      authorization: `Bearer ${keys[n % 3 === 0 ? 1 : 0]}`,
      'content-type': 'application/json',
    };
    const hurried = n % 5 === 0 ? { prefer: 'wait=1' } : { prefer: 'wait=20' };
    const body = JSON.stringify({ model: 'gpt-4o', messages: [{ role: 'user', content: `canary ${n}` }] });
    const send = (path: string, more: RequestInit = {}): void => {
      const asked = fetch(`${base}${path}`, { headers: { ...headers, ...hurried }, ...more });
      calls.push(asked.then((response) => response.text()).catch(() => ''));
    };
    send('/via/openai/v1/chat/completions', { method: 'POST', body });
    if (n % 10 === 0) send('/via/renewing/v1/models');
    if (n % 2 === 0) send(`/via/shop/admin/api/2026-10/orders.json?limit=1&canary=${n}`);
    await pause(60);
  }
  // What still waits is answered by the end of its wait; the queries want it waiting.
  void Promise.allSettled(calls);
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address() as AddressInfo;
  await new Promise<void>((done) => server.close(() => done()));
  return port;
}
