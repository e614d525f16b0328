/** A fresh namespace under the "restricted" Pod Security Standard, with what the example value files say exists already. */
import type { Client } from './client.ts';

const object = (kind: string, name: string, rest: object = {}) => ({
  apiVersion: 'v1',
  kind,
  metadata: { name },
  ...rest,
});
const secret = (name: string, stringData: Record<string, string>) => object('Secret', name, { stringData });

const given: readonly object[] = [
  secret('sluice-redis', { url: 'redis://127.0.0.1:6379' }),
  // Any 32 characters: nothing here is secret.
  secret('sluice-privacy', { labelKey: '0123456789abcdef0123456789abcdef' }),
  secret('openai', { 'api-key': 'none' }),
  secret('registry', { none: 'none' }),
  secret('upstream-credentials', { NONE: 'none' }),
  object('ConfigMap', 'gateway-config', { data: { 'sluice.yaml': 'workspaces: {}' } }),
  object('ConfigMap', 'authorities', { data: { none: 'none' } }),
  object('ServiceAccount', 'gateway'),
];

/** Each claim of a value file takes one for good: nothing provisions them where there is no node. */
const volumes = Array.from({ length: 20 }, (_, n) =>
  object('PersistentVolume', `volume-${n}`, {
    spec: {
      accessModes: ['ReadWriteMany'],
      capacity: { storage: '1Gi' },
      hostPath: { path: '/var/empty' },
      persistentVolumeReclaimPolicy: 'Retain',
    },
  }),
);

/** What no namespace holds; once for each cluster. */
export const prepareCluster = (client: Client): Promise<string> =>
  client.apply(...volumes, {
    ...object('PriorityClass', 'gateway', { value: 1000 }),
    apiVersion: 'scheduling.k8s.io/v1',
  });

/** Replaces the namespace if it is there. */
export async function createNamespace(client: Client, name: string): Promise<void> {
  await client.kubectl(['delete', 'namespace', name, '--ignore-not-found', '--wait']);
  const levels = ['enforce', 'warn', 'audit'].map((mode) => [
    `pod-security.kubernetes.io/${mode}`,
    'restricted',
  ]);
  const labels = Object.fromEntries(levels) as Readonly<Record<string, string>>;
  await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } });
  const text = given.map((one) => JSON.stringify(one)).join('\n---\n');
  await client.kubectl(['-n', name, 'apply', '-f', '-'], text);
}

/** The namespaces of this run refuse what is not "restricted". */
export async function enforcesRestricted(client: Client): Promise<void> {
  await createNamespace(client, 'refuses');
  const privileged = ['-n', 'refuses', 'run', 'any', '--image', 'none', '--dry-run=server'];
  const said = await client.output(privileged).then(() => 'accepted', String);
  if (!said.includes('violates PodSecurity')) throw new Error(`a pod without the settings: ${said}`);
}
