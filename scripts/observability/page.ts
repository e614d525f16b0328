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
import { drivenPage, type DrivenPage } from '../../test/page/driven-page.ts';
import { makeState, pageStates, type PageStateCase } from '../../test/page/states.ts';
import { skippingClock } from '../../test/support/skipping-clock.ts';
import { available, run } from '../fleet/processes.ts';
import { createReport, type Report } from '../report.ts';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Look {
  readonly name: string;
  readonly width: number;
  readonly height: number;
  readonly scheme: 'light' | 'dark';
}

/** How a state is looked at. */
const looks: readonly Look[] = [
  { name: 'desktop', width: 1440, height: 900, scheme: 'light' },
  { name: 'tablet', width: 768, height: 1000, scheme: 'dark' },
  { name: 'phone', width: 360, height: 780, scheme: 'light' },
  { name: 'phone, dark', width: 320, height: 700, scheme: 'dark' },
];
const lookOfLost: Look = { name: 'cut off', width: 390, height: 844, scheme: 'dark' };

/** Notes a finding about a page; `detail` is shown when it does not hold. */
type Check = (what: string, holds: boolean, detail?: string) => void;

export async function verifyPage(report: Report, pictures: string | null = null, only = ''): Promise<void> {
  if (!available('chromium', 'chromium fonts-dejavu-core'))
    return report.skipped('the live page in a browser', 'no chromium');
  const executablePath = run('which', ['chromium']).output;
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  try {
    for (const [name, state] of Object.entries(pageStates).filter(([each]) => each.includes(only)))
      await verifyState(browser, name, state, { report, pictures });
  } finally {
    await browser.close();
  }
}

interface To {
  readonly report: Report;
  readonly pictures: string | null;
}

async function verifyState(browser: Browser, name: string, state: PageStateCase, { report, pictures }: To) {
  const clock = skippingClock();
  const driven = await drivenPage(clock, state.upstreams, state.observed);
  const looked = async (look: Look, see: (page: Page, check: Check) => Promise<void>): Promise<void> => {
    const { scheme: colorScheme, width, height } = look;
    const context = await browser.newContext({ colorScheme, viewport: { width, height } });
    const page = await context.newPage();
    const at = `the page, ${name}, ${look.name}`;
    await see(page, (what, holds, detail) => report.check(`${at}: ${what}`, holds, detail));
    const file = `${name} ${look.name}`.replaceAll(/\W+/g, '-').toLowerCase();
    await page.evaluate('document.activeElement.blur()');
    if (pictures !== null) await page.screenshot({ path: resolve(pictures, `${file}.png`), fullPage: true });
    await context.close();
  };
  try {
    makeState(state, driven, (ms) => clock.skip(ms));
    for (const look of looks)
      await looked(look, async (page, check) => {
        const [said, asked]: [string[], string[]] = [[], []];
        page.on('console', (message) => said.push(message.text()));
        page.on('pageerror', (error) => said.push(error.message));
        page.on('request', (request) => asked.push(request.url()));
        // Once below a path, as behind a reverse proxy.
        await page.goto(look.name === 'phone' ? `${driven.url}below/` : driven.url);
        await page.waitForSelector(name === 'idle' ? '#itself > div' : '#workspaces tbody tr');
        await verifySentences(page, state, check);
        if (look.name === 'tablet' && name !== 'idle') await page.locator('#apis summary').first().click();
        const scrolls = 'document.documentElement.scrollWidth - document.documentElement.clientWidth';
        const overflow = await page.evaluate(scrolls);
        check('nothing scrolls sideways', overflow === 0, String(overflow));
        if (name === 'out of credit') {
          const cause = await page.locator('#api-openai .row > :nth-child(5)').innerText();
          check('says why calls are refused', cause.includes('it refuses every call'), cause);
        }
        if (look.name === 'desktop') await verifyFigures(page, driven, state, check);
        await verifyAccess(page, check);
        if (look.name === 'desktop') await verifyKeyboard(page, check);
        check('console stays empty', said.length === 0, said.join('; '));
        const strangers = asked.filter((url) => !url.startsWith(driven.url));
        check('nothing is fetched from elsewhere', strangers.length === 0, strangers.join('; '));
        check('no canary is seen', !/canary/i.test(await page.content()));
      });
    if (name !== 'calm') return;
    await looked(lookOfLost, async (page, check) => {
      await page.goto(driven.url);
      await page.waitForSelector('#itself > div');
      await page.context().setOffline(true);
      driven.observation.page.close();
      await page.waitForSelector('body.stale', { timeout: 30_000 });
      const sentence = await page.locator('h1').innerText();
      check('says that its figures are old', sentence.startsWith('Not known: this page lost'), sentence);
      await verifyAccess(page, check);
    });
  } finally {
    await driven.close();
  }
}

async function verifySentences(page: Page, state: PageStateCase, check: Check): Promise<void> {
  const sentence = (await page.locator('h1').innerText()).replaceAll(/\s+/g, ' ');
  check('says its sentence', state.says.test(sentence), sentence);
  const wrong = await page.locator('#wrong-now').innerText();
  check('says what is wrong', state.wrongNow.test(wrong), wrong);
  const tone = await page.locator('#answer').getAttribute('class');
  check(`is ${state.tone}`, tone === `answer ${state.tone}`, String(tone));
}

/** What waits is the gauge of a scrape taken at the same time. */
async function verifyFigures(
  page: Page,
  { telemetry }: DrivenPage,
  { upstreams = ['openai', 'shop', 'github'] }: PageStateCase,
  check: Check,
): Promise<void> {
  const { body: metrics } = await telemetry.metrics();
  const wrong: string[] = [];
  for (const upstream of upstreams) {
    const row = page.locator(`#api-${upstream} .row > :nth-child(4)`);
    if ((await row.count()) === 0) continue;
    const shown = Number(/^[\d,]+/.exec(await row.innerText())?.[0].replace(',', '') ?? '0');
    const gauge = new RegExp(`^sluice_queue_depth\\{upstream="${upstream}"\\} (\\d+)$`, 'm').exec(
      metrics,
    )?.[1];
    if (String(shown) !== gauge) wrong.push(`${upstream}: ${shown} is not ${gauge}`);
  }
  check('what waits is what the metrics say', wrong.length === 0, wrong.join('; '));
}

/** Tab reaches the links and the buttons, and shows where it is; Enter opens a row. */
async function verifyKeyboard(page: Page, check: Check): Promise<void> {
  const named = `document.activeElement.getAttribute('aria-label') || document.activeElement.textContent`;
  const reached = new Set<string>();
  for (let n = 0; n < 90 && !reached.has('/metrics'); n++) {
    await page.keyboard.press('Tab');
    reached.add(String(await page.evaluate(named)));
  }
  const outline = await page.evaluate(`getComputedStyle(document.activeElement).outlineStyle`);
  const [name = ''] = await page.locator('#apis summary b').allTextContents();
  const isRowReached = [...reached].some((each) => each.startsWith(name));
  const holds = reached.has('Help') && reached.has('/metrics') && isRowReached && outline !== 'none';
  check('the keyboard reaches every part', holds, [...reached].join(', '));
}

async function verifyAccess(page: Page, check: Check): Promise<void> {
  // By the debugger's side door: the page's own policy forbids foreign scripts, and must.
  const session = await page.context().newCDPSession(page);
  const evaluate = async (expression: string): Promise<unknown> => {
    const options = { expression, awaitPromise: true, returnByValue: true };
    return (await session.send('Runtime.evaluate', options)).result.value;
  };
  await evaluate(axe);
  const found = await evaluate(
    `axe.run(document).then(({ violations, passes }) => ({ passes: passes.length, broken: violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.target + ' ' + n.failureSummary).join(' ')) }))`,
  );
  const { passes, broken } = found as { passes: number; broken: string[] };
  check(`keeps axe-core's rules`, passes > 10 && broken.length === 0, broken.join('; '));
}

if (import.meta.main) {
  const pictures = process.argv[2] ?? null;
  if (pictures !== null) await mkdir(pictures, { recursive: true });
  const report = createReport('page');
  await verifyPage(report, pictures, process.argv[3]);
  process.exit(report.end());
}
