/**
 * In place of prometheus-adapter: answers the custom metrics API with one figure for each pod. The autoscaler, its
 * controller and the aggregation layer that ask are real; where the figure comes from, the caller says.
 */
import { readFileSync } from 'node:fs';
import https from 'node:https';
import { freePort } from '../ports.ts';
import type { ControlPlane } from './control-plane.ts';

/** Whose figure is asked for. `metric` is a name of the custom metrics API. */
export interface Question {
  readonly metric: string;
  readonly namespace: string;
  readonly pods: readonly string[];
}
/** @returns figures by pod; a pod that is missing has none; null: the metric is not known */
export type Figures = (question: Question) => Promise<ReadonlyMap<string, number> | null>;

const GROUP = 'custom.metrics.k8s.io';
const VERSION = 'v1beta2';
const API = `${VERSION}.${GROUP}`;

/** Serves until `stop`, which takes the API away again. */
export async function serveCustomMetrics(
  plane: ControlPlane,
  figures: Figures,
): Promise<{ stop(): Promise<void> }> {
  const { client, credentials } = plane;
  const port = await freePort();
  await credentials.issue('metrics', '/CN=localhost', 'DNS:localhost,IP:127.0.0.1');
  const server = https.createServer(
    {
      cert: readFileSync(credentials.file('metrics.crt')),
      key: readFileSync(credentials.file('metrics.key')),
    },
    (request, response) => {
      respondTo(plane, figures, new URL(request.url ?? '/', 'https://localhost')).then(
        ([status, body]) =>
          response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body)),
        (failure: unknown) => response.writeHead(500).end(String(failure)),
      );
    },
  );
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  await client.apply(...apiObjects(port));
  await client.kubectl(['wait', '--for', 'condition=Available', `apiservice/${API}`, '--timeout', '60s']);
  const stop = async (): Promise<void> => {
    await client.kubectl(['delete', 'apiservice', API]);
    await client.kubectl(['delete', 'service', 'custom-metrics', '-n', 'default']);
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  };
  return { stop };
}

/** Where the API server finds the figures. */
const apiObjects = (port: number): object[] => [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'custom-metrics', namespace: 'default' },
    spec: { type: 'ExternalName', externalName: 'localhost', ports: [{ port }] },
  },
  {
    apiVersion: 'apiregistration.k8s.io/v1',
    kind: 'APIService',
    metadata: { name: API },
    spec: {
      group: GROUP,
      version: VERSION,
      groupPriorityMinimum: 100,
      versionPriority: 100,
      insecureSkipTLSVerify: true,
      service: { name: 'custom-metrics', namespace: 'default', port },
    },
  },
];

/** Path: apis, group, version, namespaces, NAMESPACE, pods, any, METRIC; query: labelSelector. */
async function respondTo(
  { client }: ControlPlane,
  figures: Figures,
  url: URL,
): Promise<readonly [number, object]> {
  const [, , , version = VERSION, , namespace = '', , , metric] = url.pathname.split('/');
  if (metric === undefined) {
    const list = { kind: 'APIResourceList', apiVersion: 'v1', groupVersion: `${GROUP}/${version}` };
    const resource = {
      name: 'pods/any',
      singularName: '',
      namespaced: true,
      kind: 'MetricValueList',
      verbs: ['get'],
    };
    return [200, { ...list, resources: [resource] }];
  }
  const selector = url.searchParams.get('labelSelector') ?? '';
  const pods = (await client.list(['pods', '-n', namespace, '-l', selector])).map((pod) => pod.metadata.name);
  const found = await figures({ metric, namespace, pods });
  if (found === null) {
    const message = `no metric ${metric}`;
    return [
      404,
      { kind: 'Status', apiVersion: 'v1', status: 'Failure', reason: 'NotFound', code: 404, message },
    ];
  }
  const timestamp = new Date().toISOString().replace(/\.\d+Z/, 'Z');
  const items = pods
    .filter((name) => found.has(name))
    .map((name) => ({
      describedObject: { kind: 'Pod', namespace, name, apiVersion: '/v1' },
      metric: { name: metric, selector: null },
      timestamp,
      value: `${Math.round((found.get(name) ?? 0) * 1000)}m`,
    }));
  return [200, { kind: 'MetricValueList', apiVersion: `${GROUP}/${version}`, metadata: {}, items }];
}
