/**
 * Takes the pictures of the live page for the documentation: `node scripts/observability/pictures.ts`. Takes a quarter of an
 * hour, which is what the charts show; `--minutes=3` is shorter, `--to=/tmp/pictures` writes elsewhere.
 *
 * Owns: what is photographed, and when. Does not own: the scene (`scene.ts`). Everything shown has happened: no figure is made up.
 */
import { mkdir } from 'node:fs/promises';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { chromium, type Browser } from 'playwright-core';
import { endAll } from '../cluster/processes.ts';
import { calmTraffic, outsidePerSecond, pressedTraffic, startScene } from './scene.ts';
import { available, pause, run } from './tools.ts';

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '15' },
    to: { type: 'string', default: new URL('../../docs/images', import.meta.url).pathname },
  },
});
const minuteMs = 60_000;
const wholeMs = Number(values.minutes) * minuteMs;
/** Redis has been gone for so long when the degraded page is photographed. */
const degradedMs = 20_000;
/** The page has had its first figures of the workspaces and of all replicas by then. */
const settledMs = 6_000;

interface Picture {
  readonly name: string;
  readonly level: 'calm' | 'pressed' | 'degraded';
  readonly scheme?: 'dark' | 'light';
}

/** @throws Error when the page does not say what the picture is to show. */
async function photograph(browser: Browser, pageUrl: string, picture: Picture): Promise<void> {
  const { name, level, scheme = 'light' } = picture;
  const context = await browser.newContext({
    colorScheme: scheme,
    viewport: { width: 1366, height: 800 },
  });
  try {
    const page = await context.newPage();
    await page.goto(pageUrl);
    await page.waitForSelector('.card');
    await page.waitForSelector('#workspaces tr');
    await page.waitForSelector(`#verdict.${level}`, { timeout: 2 * minuteMs });
    await pause(settledMs);
    const said = await page.locator('#verdict').innerText();
    if ((await page.locator(`#verdict.${level}`).count()) === 0) throw new Error(`${name}: ${said}`);
    await page.screenshot({ path: resolve(values.to, `${name}.png`), fullPage: true });
    console.log(`${name}: ${said}`);
  } finally {
    await context.close();
  }
}

async function calm(browser: Browser): Promise<void> {
  const scene = await startScene();
  try {
    scene.send(calmTraffic);
    await pause(wholeMs);
    await photograph(browser, scene.pageUrl, { name: 'page-calm', level: 'calm' });
  } finally {
    await scene.end();
  }
}

/** A third of the time calm, then pressed; in the end without Redis. */
async function pressedAndDegraded(browser: Browser): Promise<void> {
  const scene = await startScene();
  try {
    scene.send(calmTraffic);
    await pause(wholeMs / 3);
    scene.send(pressedTraffic);
    await scene.model.configure({ outsideTraffic: { perSecond: outsidePerSecond } });
    await pause((wholeMs * 2) / 3);
    await photograph(browser, scene.pageUrl, { name: 'page-pressed', level: 'pressed' });
    await photograph(browser, scene.pageUrl, { name: 'page-pressed-dark', level: 'pressed', scheme: 'dark' });
    await scene.stopRedis();
    await pause(degradedMs);
    await photograph(browser, scene.pageUrl, { name: 'page-degraded', level: 'degraded' });
  } finally {
    await scene.end();
  }
}

if (!available('chromium')) throw new Error('pictures need chromium: apt-get install chromium');
await mkdir(values.to, { recursive: true });
const browser = await chromium.launch({
  executablePath: run('which', ['chromium']).output,
  args: ['--no-sandbox'],
});
try {
  await Promise.all([calm(browser), pressedAndDegraded(browser)]);
} finally {
  await browser.close();
  await endAll();
}
