/** Checks without a server: what the chart renders, what it refuses, and that nothing generated has drifted. */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { valueSets } from '../kubernetes/value-sets.ts';
import { byMeaning, differences, documents } from './documents.mjs';
import { root } from '../fleet/processes.ts';
import { check as drift } from './generate.mjs';
import { chart, KUBE_VERSION, render } from './manifests.mjs';
import { refusals } from './refusals.mjs';
import { check } from './report.mjs';
import { ruleProblems } from './rules.mjs';
import { configProblems } from './sluice-config.mjs';

const kustomize = (tools, folder) =>
  execFileSync(tools.kubectl, ['kustomize', join(root, 'k8s', folder)], { encoding: 'utf8' });

export async function chartChecks(tools) {
  const helms = [
    ['helm 3', tools.helm3],
    ['helm 4', tools.helm4],
  ];
  await check('generated files are current (schema, k8s/, rules, dashboards)', async () =>
    (await drift(tools.helm4)).map((path) => `${path} differs: npm run packaging:generate`),
  );
  const renders = new Map();
  for (const [name, helm] of helms) {
    await check(`${name}: lint --strict, all value sets`, () =>
      valueSets.flatMap(({ name: set, options }) => {
        const run = spawnSync(helm, ['lint', '--strict', chart, '--kube-version', KUBE_VERSION, ...options], {
          encoding: 'utf8',
        });
        return run.status === 0 ? [] : [`${set}: ${run.stdout}${run.stderr}`];
      }),
    );
    await check(`${name}: template, all value sets`, () => {
      renders.set(
        name,
        new Map(valueSets.map(({ name: set, options }) => [set, documents(render(helm, options))])),
      );
    });
    await check(`${name}: refuses with a readable message (${refusals.length} cases)`, () =>
      refusalProblems(helm),
    );
  }
  const sets = renders.get('helm 4') ?? new Map();
  await check('helm 3 and helm 4 render the same, twice', () =>
    valueSets.flatMap(({ name: set, options }) => [
      ...differences(renders.get('helm 3').get(set), sets.get(set)),
      ...differences(documents(render(tools.helm4, options)), sets.get(set)),
    ]),
  );
  await check('old Kubernetes (1.29) renders without the sleep hook and delays in the process', () =>
    oldKubernetesProblems(tools),
  );
  await check('another number of pods restarts none of them', () => restartProblems(tools));
  await check('the NetworkPolicy opens the ports of redis.url; links of alerts begin with runbookBase', () =>
    redisAndRunbookProblems(tools),
  );
  const all = new Map(sets);
  await check('kustomize builds base and overlays', () => {
    for (const folder of ['base', 'overlays/dev', 'overlays/prod'])
      all.set(`k8s/${folder}`, documents(kustomize(tools, folder)));
    all.set('k8s/install.yaml', documents(readFileSync(join(root, 'k8s/install.yaml'), 'utf8')));
  });
  await check('rules between objects: selectors, ports, probes, autoscalers', () =>
    [...all].flatMap(([name, objects]) => ruleProblems(objects).map((problem) => `${name}: ${problem}`)),
  );
  await check('the gateway itself accepts every rendered sluice.yaml', () =>
    [...all].flatMap(([name, objects]) => configProblems(objects).map((problem) => `${name}: ${problem}`)),
  );
  for (const [overlay, namespace] of [
    ['dev', 'sluice-dev'],
    ['prod', 'sluice'],
  ]) {
    await check(`k8s/overlays/${overlay} equals the chart with its helm-values.yaml`, () => {
      const values = join(root, 'k8s/overlays', overlay, 'helm-values.yaml');
      const wanted = documents(render(tools.helm4, ['--no-hooks', '-f', values, '--namespace', namespace]));
      return differences(wanted.map(byMeaning), all.get(`k8s/overlays/${overlay}`).map(byMeaning));
    });
  }
}

function refusalProblems(helm) {
  return refusals.flatMap(([name, set, ...says]) => {
    const options = ['--kube-version', KUBE_VERSION, '--set', set];
    const { status, stderr } = spawnSync(helm, ['template', 'v', chart, ...options], { encoding: 'utf8' });
    const missing = says.filter((word) => !word.test(stderr));
    if (status !== 0 && missing.length === 0) return [];
    return [`${name}: ${status === 0 ? 'accepted' : `the message lacks ${missing.join(', ')}:\n${stderr}`}`];
  });
}

function oldKubernetesProblems(tools) {
  const objects = documents(render(tools.helm4, ['--kube-version', '1.29.0']));
  const pod = objects.find((object) => object.kind === 'Deployment').spec.template.spec;
  const { server } = parse(objects.find((object) => object.kind === 'ConfigMap').data['sluice.yaml']);
  const problems = [];
  if (pod.containers[0].lifecycle !== undefined) problems.push('there is a sleep hook');
  if (server.drainDelaySeconds !== 10) problems.push(`drainDelaySeconds is ${server.drainDelaySeconds}`);
  if (pod.terminationGracePeriodSeconds < server.drainSeconds + 5)
    problems.push('the grace period is shorter than the drain');
  return problems;
}

function restartProblems(tools) {
  const set = ['-f', join(chart, 'ci/02-redis.yaml')];
  const [few, many] = [3, 5].map((count) => {
    const objects = documents(render(tools.helm4, [...set, '--set', `replicaCount=${count}`]));
    const { template } = objects.find(({ kind }) => kind === 'Deployment').spec;
    return template.metadata.annotations['checksum/restart'];
  });
  return few === many ? [] : ['the annotation checksum/restart differs'];
}

function redisAndRunbookProblems(tools) {
  const base = 'https://git.example.com/sluice/blob/main';
  const url = 'redis+sentinel://a.example.com,b.example.com:26380/main';
  const sets = ['metrics.prometheusRule.enabled=true', `metrics.prometheusRule.runbookBase=${base}`];
  const values = ['redis.existingSecret.name=', ...sets].flatMap((set) => ['--set', set]);
  const file = join(chart, 'ci/02-redis.yaml');
  const objects = documents(
    render(tools.helm4, ['-f', file, '--set-literal', `redis.url=${url}`, ...values]),
  );
  const specOf = (kind) => objects.find((object) => object.kind === kind).spec;
  const open = specOf('NetworkPolicy').egress.flatMap(({ ports = [] }) => ports.map(({ port }) => port));
  const rules = specOf('PrometheusRule').groups.flatMap((group) => group.rules);
  const alerts = rules.filter(({ alert }) => alert !== undefined);
  return [
    ...[6379, 26379, 26380].filter((port) => !open.includes(port)).map((port) => `${port} is closed`),
    ...(alerts.length > 0 ? [] : ['there are no alerts']),
    ...alerts
      .filter(({ annotations }) => !annotations.runbook_url.startsWith(`${base}/docs/`))
      .map(({ alert }) => `the link of ${alert} is no address`),
    ...(alerts.find(({ alert }) => alert === 'SluiceBreakerOpen').labels.severity === 'critical'
      ? []
      : ['an upstream that refuses everything is not critical']),
  ];
}
