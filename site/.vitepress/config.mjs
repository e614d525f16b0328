/**
 * The documentation as a site that needs nothing from elsewhere: `npm ci && npm run build` in site/ writes site/dist. The pages are those
 * of the repository, as they are. REPOSITORY, an address such as https://git.example.com/team/sluice/blob/main/, makes links to sources.
 */
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { posix } from 'node:path';
import { anchorOf, isPage, menu, pictureOf } from '../pages.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const { REPOSITORY = null } = process.env;
const titleOf = (path) => /^# (.+)$/m.exec(readFileSync(root + path, 'utf8'))[1].replaceAll('`', '');

/** Where a link of a page leads on the site; null = it becomes plain text, because the repository's address is not known. */
function addressOf(link, page) {
  if (/^([a-z]+:|#)/.test(link)) return link;
  const [path, anchor] = posix.join(posix.dirname(page), link).split('#');
  if (path === 'docs/index.md') return '/';
  if (isPage(path) && existsSync(root + path))
    return anchor === undefined ? `/${path}` : `/${path}#${anchor}`;
  return REPOSITORY === null ? null : new URL(path, REPOSITORY).href;
}

/** Links as the site has them, and a drawn picture in the place of each mermaid block. */
function asOnTheSite(markdown) {
  markdown.core.ruler.push('addresses', ({ tokens, env }) => {
    for (const { children } of tokens) {
      const closing = [];
      for (const token of children ?? []) {
        if (token.type === 'link_open') {
          const address = addressOf(token.attrGet('href'), posix.relative(root, env.realPath ?? env.path));
          closing.push(address);
          if (address === null) Object.assign(token, { type: 'text', tag: '', nesting: 0 });
          else token.attrSet('href', address);
        } else if (token.type === 'link_close' && closing.pop() === null)
          Object.assign(token, { type: 'text', tag: '', nesting: 0 });
      }
    }
  });
  const code = markdown.renderer.rules.fence;
  markdown.renderer.rules.fence = (tokens, at, ...rest) =>
    tokens[at].info.trim() === 'mermaid'
      ? `<figure v-pre style="background: white">${readFileSync(`${root}site/pictures/${pictureOf(tokens[at].content)}`, 'utf8')}</figure>`
      : code(tokens, at, ...rest);
}

/** Pages lie outside of the folder in which Vue is installed. While they are rendered it is loaded from there. */
const vueOfTheSite = {
  name: 'vue-of-the-site',
  enforce: 'pre',
  resolveId: (id, _importer, { ssr }) =>
    ssr === true && /^vue(\/server-renderer)?$/.test(id) ? { id, external: true } : null,
};

export default {
  title: 'Sluice',
  description: 'Queues calls to rate-limited APIs instead of letting them fail',
  srcDir: root,
  srcExclude: ['**/node_modules/**', 'test/**', 'site/**'],
  outDir: `${root}site/dist`,
  cacheDir: `${root}site/.cache`,
  rewrites: { 'docs/index.md': 'index.md' },
  vite: { plugins: [vueOfTheSite] },
  markdown: { anchor: { slugify: anchorOf }, config: asOnTheSite },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    sidebar: menu.map(([text, paths]) => ({
      text,
      items: paths.map((path) => ({ text: titleOf(path), link: `/${path.replace(/\.md$/, '')}` })),
    })),
  },
};
