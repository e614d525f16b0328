/**
 * The queries that scale the gateway, taken from the chart and from the prometheus-adapter rule, by promtool over known series: pods
 * that have only one of the two gauges count, other releases do not, and a lost Prometheus is an empty response, never 0.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { has, newFolder, run } from '../fleet/processes.ts';
import { documents } from './documents.mjs';
import { chart, render } from './manifests.mjs';
import { broken, check, skip } from './report.mjs';

/** The calls of a pod, by gauge and upstream. The second has no line yet, the third has nothing in flight. */
const pods = {
  'sluice-7d9c5b7f6d-aaaaa': {
    sluice_queue_depth: { openai: 400, shop: 20 },
    sluice_in_flight: { openai: 80 },
  },
  'sluice-7d9c5b7f6d-bbbbb': { sluice_in_flight: { openai: 500 } },
  'sluice-7d9c5b7f6d-ccccc': { sluice_queue_depth: { shop: 200 } },
};
const otherRelease = { 'other-7d9c5b7f6d-ddddd': { sluice_queue_depth: { openai: 9_000 } } };

const seriesOf = (all) =>
  Object.entries(all).flatMap(([pod, gauges]) =>
    Object.entries(gauges).flatMap(([gauge, byUpstream]) =>
      Object.entries(byUpstream).map(([upstream, value]) => ({
        series: `${gauge}{namespace="sluice", pod="${pod}", upstream="${upstream}"}`,
        values: `${value}x10`,
      })),
    ),
  );
const sum = (values) => values.reduce((all, value) => all + value, 0);
const callsOf = (gauges) => sum(Object.values(gauges).flatMap((byUpstream) => Object.values(byUpstream)));

/** prometheus-adapter's template, filled in as it does for the pods of a namespace. */
function adapterQuery() {
  const file = join(chart, 'files/autoscaling/prometheus-adapter.yaml');
  const [{ metricsQuery }] = parse(readFileSync(file, 'utf8')).rules.custom;
  const matchers = `namespace="sluice",pod=~"${Object.keys(pods).join('|')}"`;
  return metricsQuery.replace('<<.GroupBy>>', 'pod').replace('<<.LabelMatchers>>', matchers);
}

export async function autoscalingChecks(tools) {
  if (!has('promtool')) return skip('autoscaling queries', 'promtool is not installed');
  const objects = documents(render(tools.helm4, ['-f', join(chart, 'ci/04-keda.yaml')]));
  const trigger = objects.find(({ kind }) => kind === 'ScaledObject').spec.triggers[0].metadata;
  await check('KEDA scales at 600 calls a pod, and takes no empty response for 0', () =>
    broken(
      [trigger.threshold === '600', `the threshold is ${trigger.threshold}`],
      [trigger.ignoreNullValues === 'false', 'an empty response is 0'],
    ),
  );
  const perPod = Object.entries(pods).map(([pod, gauges]) => [pod, callsOf(gauges)]);
  const asked = (expr, samples) => ({ expr, eval_time: '5m', exp_samples: samples });
  const tests = [
    asked(trigger.query, [{ labels: '{}', value: sum(perPod.map(([, calls]) => calls)) }]),
    asked(trigger.query.replaceAll('namespace="sluice"', 'namespace="gone"'), []),
    asked(
      adapterQuery(),
      perPod.map(([pod, value]) => ({ labels: `{pod="${pod}"}`, value })),
    ),
  ];
  await check(
    'HPA and KEDA count calls held and in flight per pod, also of pods with one gauge only',
    async () => {
      const file = join(await newFolder(), 'test.yaml');
      const input_series = seriesOf({ ...pods, ...otherRelease });
      const test = { tests: [{ interval: '1m', input_series, promql_expr_test: tests }] };
      writeFileSync(file, JSON.stringify(test));
      const { status, output } = run('promtool', ['test', 'rules', file]);
      return status === 0 ? [] : [output];
    },
  );
  return undefined;
}
