/** The plain manifests and overlays, without Helm: applied twice, and by both ways of kubectl. */
import { join } from 'node:path';
import { root } from '../fleet/processes.ts';
import type { Report } from '../report.ts';
import { withoutWarning, type Client } from './client.ts';
import { createNamespace } from './namespace.ts';

const kinds = 'deployments,services,configmaps,networkpolicies,horizontalpodautoscalers,poddisruptionbudgets';
/** Path, and the namespace that it is for. */
const sources = [
  ['base', 'sluice'],
  ['overlays/dev', 'sluice-dev'],
  ['overlays/prod', 'sluice'],
] as const;

export async function checkManifests(client: Client, report: Report): Promise<void> {
  for (const [path, namespace] of sources)
    await report.run(`k8s/${path}: applied twice, server-side`, async () => {
      await createNamespace(client, namespace);
      await twice(client, namespace, ['-k', join(root, 'k8s', path)]);
    });
  await client.kubectl(['delete', 'namespace', 'sluice', '--wait']);
  await report.run('k8s/install.yaml: applied twice, into nothing', () =>
    twice(client, 'sluice', ['-f', join(root, 'k8s/install.yaml')]),
  );
  await client.kubectl(['delete', 'namespace', 'sluice', 'sluice-dev', '--ignore-not-found', '--wait=false']);
}

async function twice(client: Client, namespace: string, from: readonly string[]): Promise<void> {
  const apply = async (): Promise<string> => {
    withoutWarning(await client.output(['apply', '--server-side', '--validate=strict', ...from]));
    const status = ['rollout', 'status', 'deployment/sluice', '--timeout', '180s'];
    await client.kubectl(['-n', namespace, ...status]);
    const all = await client.list([kinds, '-n', namespace]);
    return all.map(({ kind, metadata: { name, generation } }) => `${kind} ${name} ${generation}`).join('\n');
  };
  const before = await apply();
  if ((await apply()) !== before) throw new Error('the second time changed an object');
}
