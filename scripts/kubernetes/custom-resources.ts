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

/** Of each published module: its folder of definitions, and the files of the kinds that the chart writes. */
const sources: Readonly<Record<string, readonly [folder: string, ...files: readonly string[]]>> = {
  'sigs.k8s.io/gateway-api@v1.4.1': [
    'config/crd/standard',
    'gateway.networking.k8s.io_httproutes.yaml',
    'gateway.networking.k8s.io_gateways.yaml',
  ],
  'github.com/prometheus-operator/prometheus-operator@v0.85.0': [
    'example/prometheus-operator-crd',
    'monitoring.coreos.com_servicemonitors.yaml',
    'monitoring.coreos.com_podmonitors.yaml',
    'monitoring.coreos.com_prometheusrules.yaml',
  ],
  'github.com/kedacore/keda/v2@v2.21.0': ['config/crd/bases', 'keda.sh_scaledobjects.yaml'],
  'github.com/external-secrets/external-secrets@v1.3.2': [
    'config/crds/bases',
    'external-secrets.io_externalsecrets.yaml',
  ],
};

/** A kind that accepts everything. */
function open(group: string, version: string, kind: string, plural: string): object {
  const openAPIV3Schema = { type: 'object', 'x-kubernetes-preserve-unknown-fields': true };
  const names = { kind, plural, singular: kind.toLowerCase(), listKind: `${kind}List` };
  const versions = [{ name: version, served: true, storage: true, schema: { openAPIV3Schema } }];
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${plural}.${group}` },
    spec: { group, scope: 'Namespaced', names, versions },
  };
}

/** Installs them all and waits until they are served. */
export async function addCustomResources(client: Client): Promise<void> {
  for (const [module, [folder, ...files]] of Object.entries(sources))
    for (const file of files) {
      const text = readFileSync(join(await moduleFolder(module), folder, file), 'utf8');
      // An old API server leaves out the fields that it does not know yet.
      await client.kubectl(['create', '--validate=ignore', '-f', '-'], text);
    }
  await client.apply(
    open('networking.gke.io', 'v1', 'GCPBackendPolicy', 'gcpbackendpolicies'),
    open('networking.gke.io', 'v1', 'HealthCheckPolicy', 'healthcheckpolicies'),
    open('cloud.google.com', 'v1', 'BackendConfig', 'backendconfigs'),
  );
  // kubectl fails at once on a definition that has no condition yet, which is so for a moment on a busy machine.
  const established = ['wait', '--for', 'condition=Established', 'crd', '--all', '--timeout', '120s'];
  await until('definitions of custom resources are established', 120_000, () =>
    client.kubectl(established).then(() => true),
  );
}
