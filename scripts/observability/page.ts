/**
 * The live page in a real browser, in every state (`test/page/states.ts`), on a desktop and on a phone, light and dark: it says the sentence
 * of the state, its figures are those of `/metrics`, nothing is logged to the console, nothing breaks axe-core's rules, nothing is fetched
 * from elsewhere, nothing scrolls sideways, every part is reached by keyboard, and no canary is seen. Run by itself it also takes pictures:
 * `node scripts/observability/page.ts FOLDER`, of some states with a part of their names behind it.
 */
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { resolve } from 'node:path';
import { chromium, type Browser, type Page } from 'playwright-core';
import { drivenPage, movedClock, type DrivenPage } from '../../test/page/driven-page.ts';
import { pageStates, type PageStateCase } from '../../test/page/states.ts';
import { available, run } from '../processes.ts';
import { createReport, type Report } from '../report.ts';

const axePath = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

/** How a state is looked at. */
const looks = [
  { name: 'desktop', width: 1440, height: 900, scheme: 'light' },
  { name: 'tablet', width: 768, height: 1000, scheme: 'dark' },
  { name: 'phone', width: 360, height: 780, scheme: 'light' },
  { name: 'phone, dark', width: 320, height: 700, scheme: 'dark' },
] as const;

export async function verifyPage(report: Report, pictures: string | null = null, only = ''): Promise<void> {
  if (!available('chromium', 'chromium fonts-dejavu-core'))
    return report.skipped('the live page in a browser', 'no chromium');
  const executablePath = run('which', ['chromium']).output;
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  try {
    for (const [name, state] of Object.entries(pageStates).filter((each) => each[0].includes(only)))
      await verifyState(browser, { name, state, pictures }, report);
  } finally {
    await browser.close();
  }
}

interface Looked {
  readonly name: string;
  readonly state: PageStateCase;
  readonly pictures: string | null;
}

async function verifyState(
  browser: Browser,
  { name, state, pictures }: Looked,
  report: Report,
): Promise<void> {
  const clock = movedClock();
  const driven = await drivenPage(clock, state.upstreams, state.observed);
  try {
    state.make(driven, (ms) => clock.move(ms));
    for (const look of looks) {
      const at = `the page, ${name}, ${look.name}`;
      const context = await browser.newContext({
        colorScheme: look.scheme,
        viewport: { width: look.width, height: look.height },
      });
      const page = await context.newPage();
      const said: string[] = [];
      const asked: string[] = [];
      page.on('console', (message) => said.push(message.text()));
      page.on('pageerror', (error) => said.push(error.message));
      page.on('request', (request) => asked.push(request.url()));
      // Once below a path, as behind a reverse proxy.
      await page.goto(look.name === 'phone' ? `${driven.url}below/` : driven.url);
      await page.waitForSelector('#itself > div');
      if (name !== 'idle') await page.waitForSelector('#workspaces tbody tr');
      const sentence = await page.locator('h1').innerText();
      report.check(`${at}: says its sentence`, state.says.test(sentence.replaceAll(/\s+/g, ' ')), sentence);
      const wrong = await page.locator('#wrong-now').innerText();
      report.check(`${at}: says what is wrong`, state.wrongNow.test(wrong), wrong);
      const tone = await page.locator('#answer').getAttribute('class');
      report.check(`${at}: is ${state.tone}`, tone === `answer ${state.tone}`, String(tone));
      if (look.name === 'tablet' && name !== 'idle') await page.locator('#apis button').first().click();
      const overflow = await page.evaluate(
        'document.documentElement.scrollWidth - document.documentElement.clientWidth',
      );
      report.check(`${at}: nothing scrolls sideways`, overflow === 0, String(overflow));
      if (look.name === 'desktop')
        await verifyFigures(page, driven, { at, upstreams: state.upstreams }, report);
      await verifyAccess(page, at, report);
      if (look.name === 'desktop') await verifyKeyboard(page, at, report);
      report.check(`${at}: console stays empty`, said.length === 0, said.join('; '));
      const strangers = asked.filter((url) => !url.startsWith(driven.url));
      report.check(`${at}: nothing is fetched from elsewhere`, strangers.length === 0, strangers.join('; '));
      report.check(`${at}: no canary is seen`, !/canary/i.test(await page.content()));
      if (pictures !== null) {
        await page.evaluate('document.activeElement.blur()');
        const file = `${name} ${look.name}`.replaceAll(/\W+/g, '-').toLowerCase();
        await page.screenshot({ path: resolve(pictures, `${file}.png`), fullPage: true });
      }
      await context.close();
    }
    if (name === 'calm') await verifyLost(browser, driven, { pictures }, report);
  } finally {
    await driven.close();
  }
}

/** The page says that its figures are old when the replica is gone. */
async function verifyLost(
  browser: Browser,
  driven: DrivenPage,
  { pictures }: Pick<Looked, 'pictures'>,
  report: Report,
): Promise<void> {
  const context = await browser.newContext({ colorScheme: 'dark', viewport: { width: 390, height: 844 } });
  const page = await context.newPage();
  await page.goto(driven.url);
  await page.waitForSelector('#itself > div');
  await context.setOffline(true);
  driven.observation.page.close();
  await page.waitForSelector('body.stale', { timeout: 30_000 });
  const sentence = await page.locator('h1').innerText();
  report.check('the page, cut off: says so', sentence.startsWith('Not known: this page lost'), sentence);
  await verifyAccess(page, 'the page, cut off', report);
  if (pictures !== null) await page.screenshot({ path: resolve(pictures, 'cut-off.png'), fullPage: true });
  await context.close();
}

/** What waits is the gauge of a scrape taken at the same time. */
async function verifyFigures(
  page: Page,
  driven: DrivenPage,
  {
    at,
    upstreams = ['openai', 'shop', 'github'],
  }: { readonly at: string; readonly upstreams: readonly string[] | undefined },
  report: Report,
): Promise<void> {
  const metrics = await (await fetch(`${driven.url}metrics`)).text();
  const wrong: string[] = [];
  for (const upstream of upstreams) {
    const row = page.locator(`#api-${upstream} .row > :nth-child(4)`);
    if ((await row.count()) === 0) continue;
    const shown = Number(/^[\d,]+/.exec(await row.innerText())?.[0].replace(',', '') ?? '0');
    const [, gauge = '?'] =
      new RegExp(`^sluice_queue_depth\\{upstream="${upstream}"\\} (\\d+)$`, 'm').exec(metrics) ?? [];
    if (String(shown) !== gauge) wrong.push(`${upstream}: ${shown} is not ${gauge}`);
  }
  report.check(`${at}: what waits is what the metrics say`, wrong.length === 0, wrong.join('; '));
}

/** Tab reaches the links and the buttons, and shows where it is; Enter opens a row. */
async function verifyKeyboard(page: Page, at: string, report: Report): Promise<void> {
  const reached = new Set<string>();
  for (let n = 0; n < 90 && !reached.has('/metrics'); n++) {
    await page.keyboard.press('Tab');
    reached.add(
      String(
        await page.evaluate(
          `document.activeElement.getAttribute('aria-label') || document.activeElement.textContent`,
        ),
      ),
    );
  }
  const outline = await page.evaluate(`getComputedStyle(document.activeElement).outlineStyle`);
  const rows =
    (await page.locator('#apis button').count()) === 0 ||
    [...reached].some((each) => each.startsWith('More of'));
  report.check(
    `${at}: the keyboard reaches every part`,
    reached.has('Help') && reached.has('/metrics') && rows && outline !== 'none',
    [...reached].join(', '),
  );
}

async function verifyAccess(page: Page, at: string, report: Report): Promise<void> {
  // By the debugger's side door: the page's own policy forbids foreign scripts, and must.
  const session = await page.context().newCDPSession(page);
  const evaluate = async (expression: string): Promise<unknown> => {
    const options = { expression, awaitPromise: true, returnByValue: true };
    return (await session.send('Runtime.evaluate', options)).result.value;
  };
  await evaluate(readFileSync(axePath, 'utf8'));
  const found = await evaluate(
    `axe.run(document).then(({ violations, passes }) => ({ passes: passes.length, broken: violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.target + ' ' + n.failureSummary).join(' ')) }))`,
  );
  const { passes, broken } = found as { passes: number; broken: string[] };
  report.check(`${at}: keeps axe-core's rules`, passes > 10 && broken.length === 0, broken.join('; '));
}

if (import.meta.main) {
  const pictures = process.argv[2] ?? null;
  if (pictures !== null) await mkdir(pictures, { recursive: true });
  const report = createReport('page');
  await verifyPage(report, pictures, process.argv[3]);
  process.exit(report.end());
}
