/** Files that are shipped: the image and its build context, proxies in front, versions, the size of the package, what is generated. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { isMap, parseDocument, type YAMLMap } from 'yaml';
import { schemaText } from '../../scripts/packaging/chart-schema.mjs';
import { chartFiles, drifted } from '../../scripts/packaging/generate.mjs';

const textOf = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');

test('no script of a package runs while the image is built', () => {
  const installing = textOf('Dockerfile')
    .replaceAll('\\\n', ' ')
    .split(/\n|&&/)
    .filter((line) => /\bnpm (ci|install|i|prune|rebuild)\b/.test(line) && !line.startsWith('#'));
  expect(installing.length).toBeGreaterThanOrEqual(2);
  for (const line of installing) expect(line).toContain('--ignore-scripts');
});

test('what the build reads is in the build context', () => {
  const reads = /(?:cpSync|readdirSync|readFileSync)\(['`]([\w-]+)/g;
  const read = [...textOf('scripts/build.mjs').matchAll(reads)].map(([, folder]) => folder);
  const sent = [...textOf('.dockerignore').matchAll(/^!([\w-]+)/gm)].map(([, folder]) => folder);
  expect(read.length).toBeGreaterThan(2);
  expect(sent).toEqual(expect.arrayContaining(read));
});

// An upstream cannot command a proxy in front, even if Sluice let its fields pass.
test.each([
  ...['Redirect', 'Expires', 'Limit-Rate', 'Buffering', 'Charset'].map(
    (name) => ['deploy/compose/nginx.conf', /^\s*proxy_ignore_headers .*$/gm, `X-Accel-${name}`] as const,
  ),
  ...['x-accel-', 'x-envoy-', 'surrogate-', 'sendfile'].map(
    (name) => ['deploy/haproxy/haproxy.cfg', /^\s*http-response del-header .*$/gm, name] as const,
  ),
])('%s drops by %s the field %s', (path, lines, name) =>
  expect(textOf(path).match(lines)?.join('\n')).toContain(name),
);

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
])('%s names the version of the package: %s', (path, pattern) =>
  expect(pattern.exec(textOf(path))?.[1]).toBe(version),
);

interface Locked {
  readonly dev?: boolean;
  readonly devOptional?: boolean;
  /** A workspace of this repository. */
  readonly link?: boolean;
}

// Those of the lock file that are neither for tests nor for building. `npm run verify:package` measures the bytes.
test('a user installs 200 packages at most, none of them an SDK, a browser, a generator or a Node', () => {
  const read = (path: string) => JSON.parse(textOf(path)) as Readonly<Record<string, Record<string, Locked>>>;
  const ofWorkspaces = Object.keys(read('tools/node/package.json')['optionalDependencies'] ?? {});
  const installed = Object.entries(read('package-lock.json')['packages'] ?? {})
    .filter(
      ([path, { dev, devOptional, link }]) =>
        path.startsWith('node_modules/') && !(dev || devOptional || link),
    )
    .map(([path]) => path.replace('node_modules/', ''))
    .filter((name) => !ofWorkspaces.includes(name));
  expect(installed.length).toBeGreaterThan(50);
  expect(installed.length).toBeLessThanOrEqual(200);
  const unwanted = /openai|anthropic|playwright|grafana|jest|shopify|^node-/;
  expect(installed.filter((name) => unwanted.test(name))).toEqual([]);
  expect(read('package.json')).not.toHaveProperty('optionalDependencies');
});

/** Paths of the values that have no description: neither they nor, where they are maps, their keys. */
function undescribed(map: YAMLMap, path = ''): string[] {
  return map.items.flatMap(({ key, value }, index) => {
    const { value: name, commentBefore } = key as { value: string; commentBefore?: string | null };
    // The parser hands the comment above a map's first key to the map itself.
    const comment = commentBefore ?? (index === 0 ? map.commentBefore : null) ?? '';
    if (/^ -- /m.test(comment)) return [];
    return isMap(value) ? undescribed(value, `${path}${name}.`) : [`${path}${name}`];
  });
}

// The rest, which needs helm, is checked by `npm run verify:packaging`.
test('the chart has the schema that the configuration states, the rules and dashboards of grafana/, and describes every value', async () => {
  expect(drifted(new Map([['helm/sluice/values.schema.json', await schemaText()]]))).toEqual([]);
  expect(drifted(chartFiles())).toEqual([]);
  const { contents } = parseDocument(textOf('helm/sluice/values.yaml'));
  expect(undescribed(contents as YAMLMap)).toEqual([]);
});
