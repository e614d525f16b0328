/**
 * A real Prometheus that scrapes the gateway's pods by their admin port, and the stand-in of prometheus-adapter: it reads
 * the chart's own adapter rule, fills it in as the adapter does, and asks Prometheus.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { chart } from '../../packaging/generated.mjs';
import type { ControlPlane } from '../cluster/control-plane.ts';
import type { Figures } from '../cluster/custom-metrics.ts';
import { until } from '../cluster/processes.ts';
import { freePort } from '../ports.ts';

const ADMIN_PORT = 9090;

/** A rule of prometheus-adapter, as far as the chart writes one. */
interface Rule {
  readonly name: { readonly as: string };
  readonly metricsQuery: string;
}

export interface Prometheus {
  /** Responses of an instant query, by the value of `label`. */
  query(text: string, label: string): Promise<Map<string, number>>;
  /** Follows the pods no longer; its process ends with the control plane. */
  stop(): void;
}

/** The gateway's running pods, with the labels that the Prometheus Operator gives to series of a pod. */
async function targetsOf({ client }: ControlPlane): Promise<object[]> {
  const pods = await client.list(['pods', '-A', '-l', 'app.kubernetes.io/name=sluice']);
  return pods.flatMap(({ metadata, status }) => {
    const address = (status as { podIP?: string }).podIP;
    const labels = { namespace: metadata.namespace, pod: metadata.name };
    return address === undefined ? [] : [{ targets: [`${address}:${ADMIN_PORT}`], labels }];
  });
}

/**
 * Scrapes every two seconds, so that minutes of a cluster pass in seconds. Debian's Prometheus has no discovery by
 * Kubernetes: the pods are written to a file, which it follows.
 */
export async function startPrometheus(plane: ControlPlane): Promise<Prometheus> {
  const { folder, processes } = plane;
  const port = await freePort();
  const [file, targets] = [join(folder, 'prometheus.json'), join(folder, 'targets.json')];
  const job = { job_name: 'sluice', file_sd_configs: [{ files: [targets], refresh_interval: '2s' }] };
  const config = { global: { scrape_interval: '2s', scrape_timeout: '2s' }, scrape_configs: [job] };
  writeFileSync(file, JSON.stringify(config));
  const write = async (): Promise<void> => {
    writeFileSync(`${targets}.new`, JSON.stringify(await targetsOf(plane)));
    renameSync(`${targets}.new`, targets);
  };
  await write();
  // A failed question leaves the pods of the last one; the next follows in two seconds.
  const timer = setInterval(
    () => void write().catch((failure: unknown) => console.log(String(failure))),
    2000,
  );
  processes.start('prometheus', 'prometheus', [
    `--config.file=${file}`,
    `--storage.tsdb.path=${join(folder, 'prometheus')}`,
    `--web.listen-address=127.0.0.1:${port}`,
    '--log.level=warn',
  ]);
  const base = `http://127.0.0.1:${port}`;
  await until(
    'Prometheus is ready',
    60_000,
    async () => (await fetch(`${base}/-/ready`).catch(() => null))?.ok === true,
    async () => processes.log('prometheus'),
  );
  return {
    stop: () => clearInterval(timer),
    async query(text, label) {
      const response = await fetch(`${base}/api/v1/query?query=${encodeURIComponent(text)}`);
      const { data } = (await response.json()) as {
        data: { result: { metric: Record<string, string>; value: [number, string] }[] };
      };
      return new Map(data.result.map(({ metric, value }) => [metric[label] ?? '', Number(value[1])]));
    },
  };
}

/** What prometheus-adapter answers with the chart's rule. */
export function adapterFigures(prometheus: Prometheus): Figures {
  const file = join(chart, 'files/autoscaling/prometheus-adapter.yaml');
  const { rules }: { rules: { custom: Rule[] } } = parse(readFileSync(file, 'utf8'));
  return async ({ metric, namespace, pods }) => {
    const rule = rules.custom.find(({ name }) => name.as === metric);
    if (rule === undefined) return null;
    const matchers = `namespace="${namespace}",pod=~"${pods.join('|')}"`;
    const query = rule.metricsQuery
      .replaceAll('<<.GroupBy>>', 'pod')
      .replaceAll('<<.LabelMatchers>>', matchers);
    return prometheus.query(query, 'pod');
  };
}
