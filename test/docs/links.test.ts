/**
 * Every link of a document, and every page that sources and rules name, is there with its anchor; the site has every page, and a picture of
 * each diagram. Every whole configuration that a document shows can be used. What the image installs is under a licence that is named,
 * and is in the bill of materials with its version.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { anchorOf, isPage, isUnlisted, menu, pictureOf } from '../../site/pages.ts';
import { filled, parse as parseSettings } from '../config/parse.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const textOf = (path: string): string => readFileSync(join(root, path), 'utf8');
const files = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8' })
  .split('\n')
  .filter((path) => path !== '' && existsSync(join(root, path)));
const pages = files.filter((path) => path.endsWith('.md'));

const proseOf = (path: string): string => textOf(path).replace(/^```[^]*?^```/gm, '');

/** Anchors that GitHub gives the headings of a page. */
function anchorsOf(path: string): ReadonlySet<string> {
  const anchors = new Map<string, number>();
  for (const [, heading = ''] of proseOf(path).matchAll(/^#+ (.+)$/gm)) {
    const anchor = anchorOf(heading.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1'));
    const before = anchors.get(anchor) ?? 0;
    anchors.set(anchor, before + 1);
    if (before > 0) anchors.set(`${anchor}-${before}`, 1);
  }
  return new Set(anchors.keys());
}

/** What is wrong with a link to `target`, a path in the repository with or without an anchor; null = nothing. */
function fault(target: string): string | null {
  const [path = '', anchor = ''] = target.split('#');
  if (!existsSync(join(root, path))) return `${path} is not there`;
  return anchor === '' || !path.endsWith('.md') || anchorsOf(path).has(anchor)
    ? null
    : `${path} has no #${anchor}`;
}

test.each(pages)('%s: every link resolves', (page) => {
  const links = [...proseOf(page).matchAll(/\]\(<?([^)\s>]+)>?\)/g)].map(([, link = '']) => link);
  const inside = links.filter((link) => !/^[a-z]+:/.test(link));
  const faults = inside.flatMap((link) => {
    const target = link.startsWith('#') ? `${page}${link}` : normalize(join(dirname(page), decodeURI(link)));
    const found = fault(target);
    return found === null ? [] : [`${link}: ${found}`];
  });
  expect(faults).toEqual([]);
});

test('every page that a source, rule or manifest names is there', () => {
  const sources = files.filter(
    (path) => /\.(ts|mjs|js|ya?ml|json|tpl|txt|cfg|conf)$/.test(path) && !path.startsWith('test/docs/'),
  );
  const named = sources.flatMap((path) =>
    [...textOf(path).matchAll(/(?<![\w./-])docs\/[\w./-]+\.(?:md|json|png)(?:#[\w-]+)?/g)].map(([link]) => ({
      path,
      link,
    })),
  );
  const faults = named.flatMap(({ path, link }) => {
    const found = fault(link);
    return found === null ? [] : [`${path}: ${found}`];
  });
  expect(faults).toEqual([]);
  expect(named.length).toBeGreaterThan(20);
});

test('the menu of the site has every page once', () => {
  const listed = menu.flatMap(([, paths]) => paths);
  expect(listed.toSorted()).toEqual(pages.filter((path) => isPage(path) && !isUnlisted(path)).toSorted());
});

test('each diagram has its picture, and no other picture is there', () => {
  const blocks = pages.flatMap((path) => [...textOf(path).matchAll(/^```mermaid\n([^]*?)^```/gm)]);
  const wanted = blocks.map(([, source = '']) => `site/pictures/${pictureOf(source)}`);
  expect(files.filter((path) => path.startsWith('site/pictures/')).toSorted()).toEqual(wanted.toSorted());
});

const hash = 'sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb';
const documents = pages.filter((path) => path === 'README.md' || path.startsWith('docs/'));
const shown = documents.flatMap((page) =>
  [...textOf(page).matchAll(/```yaml\n([^]*?)```/g)]
    .map(([, yaml = ''], index) => ({ page, index, yaml }))
    .filter(({ yaml }) => /^upstreams:/m.test(yaml)),
);

test.each(shown)('the configuration in block $index of $page can be used', ({ yaml }) => {
  const file = { workspaces: { acme: { keys: [hash] } }, ...(parse(yaml) as object) };
  expect(parseSettings(JSON.stringify(file), filled(yaml)).upstreams.size).toBeGreaterThan(0);
});

test('documents show configurations', () => expect(shown.length).toBeGreaterThan(5));

const security = textOf('SECURITY.md');
const manifest = JSON.parse(textOf('package.json')) as {
  readonly scripts: Readonly<Record<string, string>>;
};
interface Locked {
  readonly license?: string;
  readonly version?: string;
  readonly dev?: boolean;
  readonly optional?: boolean;
  /** A workspace of this repository. */
  readonly link?: boolean;
}
const { packages } = JSON.parse(textOf('package-lock.json')) as {
  readonly packages: Readonly<Record<string, Locked>>;
};
const installed = Object.entries(packages).filter(
  ([path, { dev, optional, link }]) => path.startsWith('node_modules/') && !(dev || optional || link),
);

test('every package of the image is under a licence that the page names', () => {
  const unknown = installed.filter(([, { license = 'none' }]) => !security.includes(license));
  expect(unknown.map(([path]) => path)).toEqual([]);
  expect(installed.length).toBeGreaterThan(100);
});

test('the bill of materials has every package of the image with its version', () => {
  const [program = '', ...words] = (manifest.scripts['sbom'] ?? '').split(' ');
  const written = execFileSync(program, words, { cwd: root, encoding: 'utf8', maxBuffer: 50_000_000 });
  const bill = JSON.parse(written) as {
    readonly bomFormat: string;
    readonly metadata: { readonly component: { readonly name: string; readonly 'bom-ref': string } };
    readonly dependencies: readonly { readonly ref: string; readonly dependsOn: readonly string[] }[];
    readonly components: readonly { readonly purl?: string; readonly version: string }[];
  };
  expect(bill.bomFormat).toBe('CycloneDX');
  const { name, 'bom-ref': ref } = bill.metadata.component;
  const own = bill.dependencies.find((one) => one.ref === ref);
  expect([name, own?.dependsOn.some((on) => on.startsWith('express@'))]).toEqual(['sluice', true]);
  const versions = new Set(
    bill.components.map(({ purl = '' }) => decodeURIComponent(purl.split('?')[0] ?? '')),
  );
  const missing = installed
    .map(([path, { version }]) => `pkg:npm/${path.split('node_modules/').at(-1)}@${version}`)
    .filter((purl) => !versions.has(purl));
  expect(missing).toEqual([]);
});
