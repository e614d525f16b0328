/** What the checks put beside the gateway, all in its own image: an upstream that counts, and pods to ask from. */
import { GATEWAY } from './images.ts';

const pod = { runAsNonRoot: true, runAsUser: 65532, seccompProfile: { type: 'RuntimeDefault' } };
const container = {
  allowPrivilegeEscalation: false,
  readOnlyRootFilesystem: true,
  capabilities: { drop: ['ALL'] },
};

/** Answers `/after/MS/ID` after that time and counts each ID; `/seen` says how often each came. */
const UPSTREAM = `
const seen = new Map();
require('http').createServer((request, response) => {
  if (request.url === '/seen') return response.end(JSON.stringify([...seen]));
  if (request.url === '/ready') return response.end('ok');
  const [, , wait, id] = request.url.split('/');
  seen.set(id, (seen.get(id) ?? 0) + 1);
  request.resume();
  setTimeout(() => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ id })), Number(wait));
}).listen(8080);`;

export const upstream: readonly object[] = [
  {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'upstream' },
    spec: {
      selector: { matchLabels: { app: 'upstream' } },
      template: {
        metadata: { labels: { app: 'upstream' } },
        spec: {
          automountServiceAccountToken: false,
          terminationGracePeriodSeconds: 1,
          securityContext: pod,
          containers: [
            {
              name: 'upstream',
              image: GATEWAY,
              imagePullPolicy: 'Never',
              args: ['-e', UPSTREAM],
              ports: [{ name: 'http', containerPort: 8080 }],
              readinessProbe: { httpGet: { path: '/ready', port: 'http' }, periodSeconds: 1 },
              securityContext: container,
            },
          ],
        },
      },
    },
  },
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'upstream' },
    spec: { selector: { app: 'upstream' }, ports: [{ port: 80, targetPort: 'http' }] },
  },
];

/** A pod that waits, to connect from. */
export const prober = (name: string, labels: Readonly<Record<string, string>>): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, labels },
  spec: {
    automountServiceAccountToken: false,
    terminationGracePeriodSeconds: 0,
    securityContext: pod,
    containers: [
      {
        name: 'prober',
        image: GATEWAY,
        imagePullPolicy: 'Never',
        args: ['-e', 'setInterval(() => {}, 1e6)'],
        securityContext: container,
      },
    ],
  },
});

/** Two gateways, the small Redis, one upstream inside the cluster, short drains. */
export const values = {
  redis: { development: { enabled: true } },
  privacy: { labelKey: { existingSecret: { name: 'sluice-privacy' } } },
  replicaCount: 2,
  config: {
    server: { drainSeconds: 20 },
    upstreams: {
      api: { kind: 'generic', origins: ['http://upstream'], allowPrivateAddresses: true, limits: {} },
    },
  },
  timeouts: { upstreamSeconds: 20 },
  drain: { delaySeconds: 5 },
  networkPolicy: {
    extraEgress: [
      {
        ports: [{ port: 8080, protocol: 'TCP' }],
        to: [{ podSelector: { matchLabels: { app: 'upstream' } } }],
      },
    ],
  },
  resources: { requests: { cpu: '50m', memory: '128Mi' } },
} as const;
