/** Every link of a document, and every page that sources and rules name, is there with its anchor; the site has every page, and a picture of each diagram. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import { anchorOf, isPage, isUnlisted, menu, pictureOf } from '../../site/pages.ts';

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
