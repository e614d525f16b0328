/**
 * Draws the mermaid blocks of all pages into site/pictures, for the site, which has no mermaid in it. After a block has changed, in site/:
 * `npm install --no-save mermaid@12.3.0`, then `CHROMIUM=/usr/bin/chromium node draw.mjs`.
 */
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { chromium } from 'playwright-core';
import { pictureOf } from './pages.ts';

const root = new URL('../', import.meta.url);
const textOf = (path) => readFileSync(new URL(path, root), 'utf8');
const pages = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '*.md'], {
  cwd: root,
  encoding: 'utf8',
});
const blocks = pages
  .trim()
  .split('\n')
  .flatMap((path) => [...textOf(path).matchAll(/^```mermaid\n([^]*?)^```/gm)].map(([, source]) => source));

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
const page = await browser.newPage();
await page.setContent('<div></div>');
await page.addScriptTag({ path: createRequire(import.meta.url).resolve('mermaid/dist/mermaid.min.js') });
const wanted = new Set();
for (const [at, source] of blocks.entries()) {
  const name = pictureOf(source);
  wanted.add(name);
  const svg = await page.evaluate(
    async ([id, text]) => {
      const { mermaid } = globalThis;
      mermaid.initialize({
        startOnLoad: false,
        theme: 'neutral',
        htmlLabels: false,
        flowchart: { htmlLabels: false },
      });
      return (await mermaid.render(id, text)).svg;
    },
    [`picture-${at}`, source],
  );
  writeFileSync(new URL(`site/pictures/${name}`, root), `${svg}\n`);
}
await browser.close();
for (const name of readdirSync(new URL('site/pictures/', root)))
  if (!wanted.has(name)) rmSync(new URL(`site/pictures/${name}`, root));
