/** The plain manifests and overlays, without Helm: applied twice, and by both ways of kubectl. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../packaging/generated.mjs';
import type { Report } from '../report.ts';
import { type Client, warnings } from './client.ts';
import { createNamespace } from './namespace.ts';

const folder = (name: string): string => join(root, 'k8s', name);
const KINDS = 'deployments,services,configmaps,networkpolicies,horizontalpodautoscalers,poddisruptionbudgets';

export async function checkManifests(client: Client, report: Report): Promise<void> {
  await report.run(`k8s/base: applied twice, server-side`, () =>
    twice(client, 'sluice', ['-k', folder('base')]),
  );
  for (const overlay of readdirSync(folder('overlays'))) {
    const path = folder(`overlays/${overlay}`);
    const namespace = /^namespace: (\S+)$/m.exec(readFileSync(join(path, 'kustomization.yaml'), 'utf8'))?.[1];
    if (namespace === undefined) throw new Error(`${path} names no namespace`);
    await report.run(`k8s/overlays/${overlay}: applied twice, server-side`, () =>
      twice(client, namespace, ['-k', path]),
    );
  }
  await client.kubectl(['delete', 'namespace', 'sluice', '--wait']);
  await report.run(`k8s/install.yaml: applied twice, into nothing`, async () => {
    const file = ['-f', folder('install.yaml')];
    await applied(client, file);
    await rolledOut(client, 'sluice');
    await applied(client, file);
  });
  await client.kubectl(['delete', 'namespace', 'sluice', 'sluice-dev', '--ignore-not-found', '--wait=false']);
}

async function rolledOut(client: Client, namespace: string): Promise<void> {
  const status = ['rollout', 'status', 'deployment/sluice', '--timeout', '180s'];
  await client.kubectl(['-n', namespace, ...status]);
}

async function applied(client: Client, from: readonly string[]): Promise<void> {
  const said = warnings(await client.output(['apply', '--server-side', '--validate=strict', ...from]));
  if (said.length > 0) throw new Error(said.join('\n'));
}

async function generations(client: Client, namespace: string): Promise<string> {
  const all = await client.list([KINDS, '-n', namespace]);
  return all.map(({ kind, metadata }) => `${kind} ${metadata.name} ${metadata.generation ?? ''}`).join('\n');
}

async function twice(client: Client, namespace: string, from: readonly string[]): Promise<void> {
  await createNamespace(client, namespace);
  await applied(client, from);
  await rolledOut(client, namespace);
  const before = await generations(client, namespace);
  await applied(client, from);
  if ((await generations(client, namespace)) !== before) throw new Error('the second time changed an object');
}
