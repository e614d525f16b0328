/**
 * The queries that scale the gateway, taken from the chart and from the prometheus-adapter rule, on a real Prometheus
 * that scrapes processes with known numbers: pods that have only one of the two gauges count, other pods do not, and a
 * lost Prometheus is an empty response, never 0. The rules of the chart go through promtool.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parse } from 'yaml';
import { documents } from './documents.mjs';
import { freePort, has, start, startFleet, until } from './fleet.mjs';
import { chart } from './generated.mjs';
import { render } from './manifests.mjs';
import { check, skip } from './report.mjs';

/** Per pod: the gauges it has. The second has no line yet, the third has nothing in flight, the last is another release. */
const pods = {
  'sluice-7d9c5b7f6d-aaaaa': {
    sluice_queue_depth: { openai: 400, shop: 20 },
    sluice_in_flight: { openai: 80 },
  },
  'sluice-7d9c5b7f6d-bbbbb': { sluice_in_flight: { openai: 500 } },
  'sluice-7d9c5b7f6d-ccccc': { sluice_queue_depth: { shop: 200 } },
  'other-7d9c5b7f6d-ddddd': { sluice_queue_depth: { openai: 9000 } },
};
const ofPod = (gauges) =>
  Object.values(gauges)
    .flatMap((series) => Object.values(series))
    .reduce((a, b) => a + b, 0);
const mine = Object.entries(pods).filter(([name]) => name.startsWith('sluice-'));
const total = mine.map(([, gauges]) => ofPod(gauges)).reduce((a, b) => a + b, 0);

const exposition = (gauges) =>
  Object.entries(gauges)
    .flatMap(([name, series]) => [
      `# TYPE ${name} gauge`,
      ...Object.entries(series).map(([upstream, value]) => `${name}{upstream="${upstream}"} ${value}`),
    ])
    .join('\n') + '\n';

export async function autoscalingChecks(tools) {
  if (has('promtool')) {
    const folder = join(chart, 'files/rules');
    const files = readdirSync(folder).map((file) => join(folder, file));
    await check(
      'promtool accepts the rules of the chart',
      () => void execFileSync('promtool', ['check', 'rules', ...files], { stdio: 'pipe' }),
    );
  } else skip('rules of the chart', 'promtool is not installed');
  if (!has('prometheus')) return skip('autoscaling queries', 'prometheus is not installed');
  await check('HPA and KEDA count calls held and in flight per pod, also of pods with one gauge only', () =>
    queryProblems(tools),
  );
  if (!has('redis-server'))
    return skip('autoscaling query on real gateways', 'no redis-server on this machine');
  await check('the KEDA query finds the series of real gateways', () => realProblems(tools));
  return undefined;
}

/** The query in the rendered ScaledObject of a release named sluice in namespace sluice. */
function kedaTrigger(tools) {
  const objects = documents(render(tools.helm4, ['-f', join(chart, 'ci/04-keda.yaml')]));
  return objects.find((object) => object.kind === 'ScaledObject').spec.triggers[0].metadata;
}

/** prometheus-adapter's template filled in as it does for all pods of a namespace. */
function adapterQuery() {
  const [rule] = parse(readFileSync(join(chart, 'files/autoscaling/prometheus-adapter.yaml'), 'utf8')).rules
    .custom;
  const matchers = `namespace="sluice",pod=~"${mine.map(([name]) => name).join('|')}"`;
  return rule.metricsQuery.replace('<<.GroupBy>>', 'pod').replace('<<.LabelMatchers>>', matchers);
}

/** @param {{targets: {pod: string, address: string}[]}} what to scrape, as pods of namespace sluice */
async function withPrometheus(targets, run) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-prometheus-'));
  const port = await freePort();
  const jobs = targets.map(({ pod, address }) => ({
    targets: [address],
    labels: { namespace: 'sluice', pod },
  }));
  const config = {
    global: { scrape_interval: '1s' },
    scrape_configs: [{ job_name: 'sluice', static_configs: jobs }],
  };
  writeFileSync(join(folder, 'prometheus.yml'), JSON.stringify(config));
  const flags = [
    `--config.file=${folder}/prometheus.yml`,
    `--storage.tsdb.path=${folder}/data`,
    `--web.listen-address=127.0.0.1:${port}`,
  ];
  const prometheus = start('prometheus', flags);
  const query = async (text) => {
    const response = await fetch(`http://127.0.0.1:${port}/api/v1/query?query=${encodeURIComponent(text)}`);
    const body = await response.json();
    if (body.status !== 'success') throw new Error(`${text}: ${body.error}`);
    return body.data.result;
  };
  try {
    await until(`http://127.0.0.1:${port}/-/ready`, prometheus.said);
    for (let tries = 0; (await query('up == 1')).length < targets.length; tries += 1) {
      if (tries > 100) throw new Error('not every target was scraped');
      await sleep(100);
    }
    return await run(query);
  } finally {
    await prometheus.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function queryProblems(tools) {
  const servers = [];
  const targets = [];
  for (const [pod, gauges] of Object.entries(pods)) {
    const server = http.createServer((_, response) =>
      response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4' }).end(exposition(gauges)),
    );
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    servers.push(server);
    targets.push({ pod, address: `127.0.0.1:${server.address().port}` });
  }
  try {
    return await withPrometheus(targets, async (query) => {
      const problems = [];
      const expect = (holds, text) => holds || problems.push(text);
      const trigger = kedaTrigger(tools);
      const [keda] = await query(trigger.query);
      expect(Number(keda?.value[1]) === total, `KEDA sees ${keda?.value[1]} calls, not ${total}`);
      const perPod = new Map(
        (await query(adapterQuery())).map((row) => [row.metric.pod, Number(row.value[1])]),
      );
      for (const [name, gauges] of mine)
        expect(perPod.get(name) === ofPod(gauges), `the adapter sees ${perPod.get(name)} on ${name}`);
      const target = Number(trigger.threshold);
      expect(target === 600, `the threshold is ${trigger.threshold}`);
      const lost = await query(trigger.query.replaceAll('namespace="sluice"', 'namespace="gone"'));
      expect(lost.length === 0, 'a namespace without series is answered with a number: KEDA would scale in');
      expect(trigger.ignoreNullValues === 'false', 'KEDA would take an empty response for 0');
      return problems;
    });
  } finally {
    for (const server of servers) server.close();
  }
}

async function realProblems(tools) {
  const fleet = await startFleet();
  try {
    const gateways = [await fleet.gateway(), await fleet.gateway()];
    const targets = gateways.map(({ adminPort }, at) => ({
      pod: `sluice-7d9c5b7f6d-${'ab'[at].repeat(5)}`,
      address: `127.0.0.1:${adminPort}`,
    }));
    return await withPrometheus(targets, async (query) => {
      const [row] = await query(kedaTrigger(tools).query);
      return row === undefined
        ? ['idle gateways expose neither gauge: KEDA would fall back, the HPA would see no metric']
        : [];
    });
  } finally {
    await fleet.stop();
  }
}
