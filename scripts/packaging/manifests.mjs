/**
 * The plain manifests: k8s/base (one file per object) and k8s/install.yaml are the chart's output with default values,
 * without Helm's own labels and the test hook. Generated, so they cannot say something else than the chart.
 */
import { execFileSync } from 'node:child_process';
import { stringify } from 'yaml';
import { documents, withoutHelm } from './documents.mjs';
import { chart, formatted } from './generated.mjs';

/** Offline renders must not depend on the Kubernetes version that a helm was built with. */
export const KUBE_VERSION = '1.35.0';
const NOTE =
  '# Generated from helm/sluice by `npm run packaging:generate`. Do not edit: change the chart, or use an overlay.\n';
const ORDER = ['ServiceAccount', 'ConfigMap', 'NetworkPolicy', 'Service', 'Deployment'];

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
  const text = (value) =>
    formatted(stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }), 'x.yaml');
  const files = new Map();
  for (const [index, name] of names.entries())
    files.set(`k8s/base/${name}`, NOTE + (await text(objects[index])));
  files.set('k8s/base/kustomization.yaml', NOTE + (await text(kustomization)));
  const namespace = {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: 'sluice', labels: { 'pod-security.kubernetes.io/enforce': 'restricted' } },
  };
  const all = [];
  for (const object of [namespace, ...objects]) all.push(await text(object));
  files.set('k8s/install.yaml', NOTE + all.join('---\n'));
  return files;
}
