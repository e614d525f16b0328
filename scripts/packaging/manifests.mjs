/**
 * The plain manifests: k8s/base (one file per object) and k8s/install.yaml are the chart's output with default values,
 * without Helm's own labels and the test hook. Generated, so they cannot say something else than the chart.
 */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import prettier from 'prettier';
import { stringify } from 'yaml';
import { root } from '../fleet/processes.ts';
import { documents, withoutHelm } from './documents.mjs';

export const chart = join(root, 'helm/sluice');
/** Offline renders must not depend on the Kubernetes version that a helm was built with. */
export const KUBE_VERSION = '1.35.0';
const NOTE =
  '# Generated from helm/sluice by `npm run packaging:generate`. Do not edit: change the chart, or use an overlay.\n';
const ORDER = ['ServiceAccount', 'ConfigMap', 'NetworkPolicy', 'Service', 'Deployment'];

/** Text in the repository's own format; `name` tells the parser. */
export async function formatted(text, name) {
  const options = await prettier.resolveConfig(join(root, name));
  return prettier.format(text, { ...options, filepath: name });
}

/** @returns {string} YAML of release "sluice" in namespace "sluice" */
export function render(helm, options = []) {
  const fixed = ['--kube-version', KUBE_VERSION, '--namespace', 'sluice'];
  return execFileSync(helm, ['template', 'sluice', chart, ...fixed, ...options], {
    encoding: 'utf8',
    stdio: 'pipe',
  });
}

/** @returns {Promise<Map<string, string>>} path from the root → text */
export async function manifestFiles(helm) {
  const objects = documents(render(helm, ['--no-hooks'])).map(withoutHelm);
  objects.sort(
    (a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || (a.metadata.name < b.metadata.name ? -1 : 1),
  );
  const names = objects.map((object) => `${object.kind.toLowerCase()}-${object.metadata.name}.yaml`);
  const kustomization = {
    apiVersion: 'kustomize.config.k8s.io/v1beta1',
    kind: 'Kustomization',
    namespace: 'sluice',
    resources: names,
  };
  const namespace = {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: 'sluice', labels: { 'pod-security.kubernetes.io/enforce': 'restricted' } },
  };
  const text = (value) =>
    formatted(stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }), 'x.yaml');
  const [first, ...texts] = await Promise.all([namespace, ...objects].map(text));
  return new Map([
    ...names.map((name, at) => [`k8s/base/${name}`, NOTE + texts[at]]),
    ['k8s/base/kustomization.yaml', NOTE + (await text(kustomization))],
    ['k8s/install.yaml', NOTE + [first, ...texts].join('---\n')],
  ]);
}
