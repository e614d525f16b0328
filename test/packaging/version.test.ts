/** Whatever names the version of a release names that of the package. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

const textOf = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
const { version } = JSON.parse(textOf('package.json')) as { readonly version: string };

test.each([
  ['package-lock.json', /^ {2}"version": "(.+)"/m],
  ['helm/sluice/Chart.yaml', /^version: (.+)$/m],
  ['helm/sluice/Chart.yaml', /^appVersion: '(.+)'$/m],
  ['k8s/install.yaml', /image: sluice:(\S+)/],
  ['k8s/overlays/prod/hpa.yaml', /kubernetes\.io\/version: '(.+)'/],
  ['Dockerfile', /^ARG VERSION=(.+)$/m],
  ['compose.yaml', /image: sluice:(\S+)/],
  ['CHANGELOG.md', /^## (\d.+)$/m],
  ['README.md', /sluice-(\S+)-npm\.tgz/],
  ['docs/operate/one-machine.md', /sluice-(\S+)-npm\.tgz/],
  ['docs/operate/kubernetes.md', /sluice:(\S+) \. /],
  ['docs/operate/kubernetes.md', /--version (\S+)/],
])('%s names it: %s', (path, pattern) => {
  expect(pattern.exec(textOf(path))?.[1]).toBe(version);
});
