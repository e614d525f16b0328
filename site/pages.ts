/**
 * What the site shows, and under which addresses: used by VitePress and by test/docs, so that a page, link, anchor or picture that the
 * site would lack is found without building it.
 */
import { createHash } from 'node:crypto';

/** Pages in the order of the menu: title, and paths in the repository. */
export const menu: readonly (readonly [string, readonly string[]])[] = [
  ['Start', ['docs/start/why.md', 'docs/start/how-it-decides.md', 'docs/start/glossary.md']],
  [
    'Call through it',
    [
      'docs/callers/index.md',
      'docs/callers/sdks.md',
      'docs/callers/errors.md',
      'docs/callers/retries.md',
      'docs/callers/reserve.md',
      'docs/callers/recipes.md',
    ],
  ],
  [
    'Set it up',
    [
      'docs/operate/adopt.md',
      'docs/operate/one-machine.md',
      'docs/operate/kubernetes.md',
      'docs/operate/any-api.md',
      'docs/operate/language-models.md',
      'docs/operate/many-shops.md',
      'docs/operate/teams.md',
      'docs/operate/credentials.md',
    ],
  ],
  [
    'Run it',
    [
      'docs/operate/monitor.md',
      'docs/operate/troubleshoot.md',
      'docs/operate/size.md',
      'docs/operate/load-balancers.md',
      'docs/operate/redis.md',
      'docs/operate/upgrade.md',
      'docs/operate/rehearse.md',
      'docs/operate/day-2.md',
      'SECURITY.md',
      'CHANGELOG.md',
    ],
  ],
  [
    'Look up',
    [
      'docs/reference/http.md',
      'docs/reference/configuration.md',
      'docs/reference/cli.md',
      'docs/reference/metrics.md',
      'docs/reference/presets.md',
      'helm/sluice/README.md',
    ],
  ],
  [
    'Change it',
    [
      'CONTRIBUTING.md',
      'ARCHITECTURE.md',
      'docs/contributing/style.md',
      'docs/contributing/proof.md',
      'docs/performance/README.md',
      'docs/adr/README.md',
    ],
  ],
];

/** Pages that others lead to: the site's home, the README, and one page for each decision. */
export const isUnlisted = (path: string): boolean => /^(README|docs\/index|docs\/adr\/\d.*)\.md$/.test(path);

/** Whether a Markdown file is a page of the site. */
export const isPage = (path: string): boolean =>
  path.endsWith('.md') && !/^(test|\.github|site)\//.test(path);

/** The anchor of a heading, as GitHub makes it of its text. */
export const anchorOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_\- ]/gu, '')
    .replaceAll(' ', '-');

/** File in site/pictures that shows a mermaid block: another block has another picture. */
export const pictureOf = (source: string): string =>
  `${createHash('sha256').update(source.trim()).digest('hex').slice(0, 12)}.svg`;
