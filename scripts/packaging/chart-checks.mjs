/** Checks without a server: what the chart renders, what it refuses, and that nothing generated has drifted. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { valueSets } from '../kubernetes/value-sets.ts';
import { byMeaning, differences, documents } from './documents.mjs';
import { root, run } from '../fleet/processes.ts';
import { check as drift } from './generate.mjs';
import { chart, KUBE_VERSION, render } from './manifests.mjs';
import { refusals } from './refusals.mjs';
import { broken, check } from './report.mjs';
import { ruleProblems } from './rules.mjs';
import { configProblems } from './sluice-config.mjs';

const kustomize = (tools, folder) =>
  execFileSync(tools.kubectl, ['kustomize', join(root, 'k8s', folder)], { encoding: 'utf8' });

/** Problems of every set of objects, each behind the name of its set. */
const problemsOf = (sets, of) =>
  [...sets].flatMap(([name, objects]) => of(objects).map((problem) => `${name}: ${problem}`));

export async function chartChecks(tools) {
  await check('generated files are current (schema, k8s/, rules, dashboards)', async () =>
    (await drift(tools.helm4)).map((path) => `${path} differs: npm run packaging:generate`),
  );
  const rendered = (helm) =>
    new Map(valueSets.map(({ name, options }) => [name, documents(render(helm, options))]));
  const renders = {};
  for (const name of ['helm3', 'helm4']) {
    const helm = tools[name];
    await check(`${name}: lint --strict, all value sets`, () =>
      valueSets.flatMap(({ name: set, options }) => {
        const { status, output } = run(helm, ['lint', '--strict', chart, ...version, ...options]);
        return status === 0 ? [] : [`${set}: ${output}`];
      }),
    );
    await check(`${name}: template, all value sets`, () => void (renders[name] = rendered(helm)));
    await check(`${name}: refuses with a readable message (${refusals.length} cases)`, () =>
      refusalProblems(helm),
    );
  }
  const all = new Map(renders.helm4);
  await check('helm 3 and helm 4 render the same, twice', () => {
    const again = rendered(tools.helm4);
    return [...all].flatMap(([name, objects]) => [
      ...differences(renders.helm3.get(name), objects),
      ...differences(again.get(name), objects),
    ]);
  });
  await check('old Kubernetes (1.29) renders without the sleep hook and delays in the process', () =>
    oldKubernetesProblems(tools),
  );
  await check('another number of pods restarts none of them', () => restartProblems(tools));
  await check('the NetworkPolicy opens the ports of redis.url; links of alerts begin with runbookBase', () =>
    redisAndRunbookProblems(tools),
  );
  await check('kustomize builds base and overlays', () => {
    for (const folder of ['base', 'overlays/dev', 'overlays/prod'])
      all.set(`k8s/${folder}`, documents(kustomize(tools, folder)));
    all.set('k8s/install.yaml', documents(readFileSync(join(root, 'k8s/install.yaml'), 'utf8')));
  });
  await check('rules between objects: selectors, ports, probes, autoscalers', () =>
    problemsOf(all, ruleProblems),
  );
  await check('the gateway itself accepts every rendered sluice.yaml', () => problemsOf(all, configProblems));
  for (const [overlay, namespace] of Object.entries({ dev: 'sluice-dev', prod: 'sluice' }))
    await check(`k8s/overlays/${overlay} equals the chart with its helm-values.yaml`, () => {
      const values = join(root, 'k8s/overlays', overlay, 'helm-values.yaml');
      const wanted = documents(render(tools.helm4, ['--no-hooks', '-f', values, '--namespace', namespace]));
      return differences(wanted.map(byMeaning), all.get(`k8s/overlays/${overlay}`).map(byMeaning));
    });
}

const version = ['--kube-version', KUBE_VERSION];

const refusalProblems = (helm) =>
  refusals.flatMap(([name, set, ...says]) => {
    const { status, output } = run(helm, ['template', 'v', chart, ...version, '--set', set]);
    const missing = says.filter((word) => !word.test(output));
    if (status !== 0 && missing.length === 0) return [];
    return [`${name}: ${status === 0 ? 'accepted' : `the message lacks ${missing.join(', ')}:\n${output}`}`];
  });

function oldKubernetesProblems(tools) {
  const objects = documents(render(tools.helm4, ['--kube-version', '1.29.0']));
  const pod = objects.find((object) => object.kind === 'Deployment').spec.template.spec;
  const { server } = parse(objects.find((object) => object.kind === 'ConfigMap').data['sluice.yaml']);
  return broken(
    [pod.containers[0].lifecycle === undefined, 'there is a sleep hook'],
    [server.drainDelaySeconds === 10, `drainDelaySeconds is ${server.drainDelaySeconds}`],
    [
      pod.terminationGracePeriodSeconds >= server.drainSeconds + 5,
      'the grace period is shorter than the drain',
    ],
  );
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
  const critical = alerts.find(({ alert }) => alert === 'SluiceBreakerOpen').labels.severity === 'critical';
  return broken(
    ...[6379, 26379, 26380].map((port) => [open.includes(port), `${port} is closed`]),
    [alerts.length > 0, 'there are no alerts'],
    ...alerts.map(({ alert, annotations }) => [
      annotations.runbook_url.startsWith(`${base}/docs/`),
      `the link of ${alert} is no address`,
    ]),
    [critical, 'an upstream that refuses everything is not critical'],
  );
}
