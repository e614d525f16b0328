/** A fresh namespace under the "restricted" Pod Security Standard, with what the example value files say exists already. */
import type { Client } from './client.ts';

const level = (mode: string): [string, string] => [`pod-security.kubernetes.io/${mode}`, 'restricted'];

const object = (kind: string, name: string, rest: object = {}): object => ({
  apiVersion: 'v1',
  kind,
  metadata: { name },
  ...rest,
});
const secret = (name: string, stringData: Record<string, string>): object =>
  object('Secret', name, { stringData });

/** Any 32 characters: nothing here is secret. */
export const LABEL_KEY = '0123456789abcdef0123456789abcdef';

const given: readonly object[] = [
  secret('sluice-redis', { url: 'redis://127.0.0.1:6379' }),
  secret('sluice-privacy', { labelKey: LABEL_KEY }),
  secret('openai', { 'api-key': 'none' }),
  secret('registry', { none: 'none' }),
  secret('upstream-credentials', { NONE: 'none' }),
  object('ConfigMap', 'gateway-config', { data: { 'sluice.yaml': 'workspaces: {}' } }),
  object('ConfigMap', 'authorities', { data: { none: 'none' } }),
  object('ServiceAccount', 'gateway'),
];
const priority = {
  apiVersion: 'scheduling.k8s.io/v1',
  kind: 'PriorityClass',
  metadata: { name: 'gateway' },
  value: 1000,
};

/** What no namespace holds; once for each cluster. */
export async function addPriorityClass(client: Client): Promise<void> {
  await client.apply(priority);
}

/** Replaces the namespace if it is there. */
export async function createNamespace(client: Client, name: string): Promise<void> {
  await client.kubectl(['delete', 'namespace', name, '--ignore-not-found', '--wait']);
  const labels = Object.fromEntries(['enforce', 'warn', 'audit'].map(level));
  await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } });
  const text = given.map((one) => JSON.stringify(one)).join('\n---\n');
  await client.kubectl(['-n', name, 'apply', '-f', '-'], text);
}
