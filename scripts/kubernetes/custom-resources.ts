/**
 * The custom resources that the chart writes. Those of projects that publish a Go module are taken from it, so the API
 * server knows every field; Google's are not published, so any field of them is accepted here.
 * Nobody acts on any of them.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { moduleFolder } from './program.ts';
import type { Client } from './client.ts';
import { until } from '../fleet/processes.ts';

interface Source {
  readonly module: string;
  readonly folder: string;
  readonly files: readonly string[];
}

const sources: readonly Source[] = [
  {
    module: 'sigs.k8s.io/gateway-api@v1.4.1',
    folder: 'config/crd/standard',
    files: ['gateway.networking.k8s.io_httproutes.yaml', 'gateway.networking.k8s.io_gateways.yaml'],
  },
  {
    module: 'github.com/prometheus-operator/prometheus-operator@v0.85.0',
    folder: 'example/prometheus-operator-crd',
    files: ['servicemonitors', 'podmonitors', 'prometheusrules'].map(
      (name) => `monitoring.coreos.com_${name}.yaml`,
    ),
  },
  {
    module: 'github.com/kedacore/keda/v2@v2.21.0',
    folder: 'config/crd/bases',
    files: ['keda.sh_scaledobjects.yaml'],
  },
  {
    module: 'github.com/external-secrets/external-secrets@v1.3.2',
    folder: 'config/crds/bases',
    files: ['external-secrets.io_externalsecrets.yaml'],
  },
];

/** A kind that accepts everything. */
function open(group: string, version: string, kind: string): object {
  const singular = kind.toLowerCase();
  const plural = singular.endsWith('y') ? `${singular.slice(0, -1)}ies` : `${singular}s`;
  const schema = {
    openAPIV3Schema: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
  };
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${plural}.${group}` },
    spec: {
      group,
      scope: 'Namespaced',
      names: { kind, plural, singular, listKind: `${kind}List` },
      versions: [{ name: version, served: true, storage: true, schema }],
    },
  };
}

/** Installs them all and waits until they are served. */
export async function addCustomResources(client: Client): Promise<void> {
  for (const { module, folder, files } of sources) {
    const from = join(await moduleFolder(module), folder);
    for (const file of files)
      // An old API server leaves out the fields that it does not know yet.
      await client.kubectl(
        ['create', '--validate=ignore', '-f', '-'],
        readFileSync(join(from, file), 'utf8'),
      );
  }
  await client.apply(
    open('networking.gke.io', 'v1', 'GCPBackendPolicy'),
    open('networking.gke.io', 'v1', 'HealthCheckPolicy'),
    open('cloud.google.com', 'v1', 'BackendConfig'),
  );
  // kubectl fails at once on a definition that has no condition yet, which is so for a moment on a busy machine.
  await until('definitions of custom resources are established', 120_000, () =>
    client
      .kubectl(['wait', '--for', 'condition=Established', 'crd', '--all', '--timeout', '120s'])
      .then(() => true)
      .catch(() => false),
  );
}
