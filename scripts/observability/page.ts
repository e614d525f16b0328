/**
 * The live page in a real browser: calm, pressed and degraded. Figures on the page must be those of `/metrics`; nothing
 * may be logged to the console, nothing may break axe-core's rules, nothing may be fetched from elsewhere, every part must
 * be reachable by keyboard, and no canary may be seen.
 */
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { chromium, type Browser, type Page } from 'playwright-core';
import { systemClock, type Clock } from '../../src/clock.ts';
import { bucketOf, drivenPage } from '../../test/page/driven-page.ts';
import type { Report } from './report.ts';
import { available, pause, run } from './tools.ts';

const axePath = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

type Driven = Awaited<ReturnType<typeof drivenPage>>;
type State = 'calm' | 'pressed' | 'degraded';

/** Brings the page's process into a state, by playing calls. `step` counts samples. */
function press(page: Driven, state: State, step: number, open: (() => void)[]): void {
  const workspaces = ['canary-one', 'canary-two', 'canary-three', 'canary-four'];
  for (let n = 0; n < 6; n++) {
    page.play({ workspace: workspaces[n % 4] ?? '', upstream: n % 3 === 0 ? 'shop' : 'lm' }, n * 40);
  }
  const swing = Math.sin(step / 9);
  page.buckets.length = 0;
  if (state !== 'degraded') page.telemetry.redisCommand('append', 0.8 + swing / 5);
  if (state === 'calm') {
    page.buckets.push(bucketOf('lm', 0.42 + swing / 10), bucketOf('shop', 0.3 + swing / 10));
    return;
  }
  page.buckets.push(
    bucketOf('lm', 0.97, state === 'pressed' ? 12_000 : 0),
    bucketOf('lm', 0.61),
    bucketOf('shop', 0.8 + swing / 10),
  );
  for (let n = 0; n < 6 + 4 * swing; n++) {
    open.push(
      page.play({ workspace: 'canary-one', upstream: 'lm', end: 'wait', absorbed: n % 2 }, 3_000 + 900 * n),
    );
  }
  // More than its ceiling of 500 a minute: what is refused, and what has no headroom.
  for (let n = 0; n < 18; n++) page.play({ workspace: 'canary-two', upstream: 'lm' }, 900 + 100 * n);
  page.play({ workspace: 'canary-two', upstream: 'lm', end: 'shed' });
  page.play({ workspace: 'canary-two', upstream: 'shop', end: 'throttled' });
  while (open.length > 60) open.shift()?.();
  if (state !== 'degraded') return;
  page.telemetry.limiterMode('local');
  page.telemetry.redisCommand('append', 180);
  page.telemetry.redisError('connection');
}

/** A clock that runs `speed` times as fast, so that a quarter of an hour of samples takes seconds. */
function fastClock(): { clock: Clock; slowDown: () => void } {
  let speed = 60;
  let [realAt, fakeAt] = [systemClock.monotonic(), 1e9];
  const wallOffset = systemClock.now() - 15 * 60_000 - fakeAt;
  const monotonic = () => fakeAt + (systemClock.monotonic() - realAt) * speed;
  return {
    clock: {
      monotonic,
      now: () => wallOffset + monotonic(),
      after: (delayMs, run) => systemClock.after(delayMs / speed, run),
    },
    slowDown() {
      fakeAt = monotonic();
      realAt = systemClock.monotonic();
      speed = 1;
    },
  };
}

export async function verifyPage(report: Report): Promise<void> {
  if (!available('chromium')) return report.skipped('the live page in a browser', 'no chromium');
  const executablePath = run('which', ['chromium']).output;
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  try {
    for (const state of ['calm', 'pressed', 'degraded'] as const) await verifyState(browser, state, report);
  } finally {
    await browser.close();
  }
}

async function verifyState(browser: Browser, state: State, report: Report): Promise<void> {
  const { clock, slowDown } = fastClock();
  const driven = await drivenPage(clock);
  const open: (() => void)[] = [];
  try {
    for (let step = 0; step < 450; step++) {
      press(driven, step < 150 ? 'calm' : state, step, open);
      await pause(33);
    }
    slowDown();
    for (const scheme of ['light', 'dark'] as const) {
      const name = `the ${state} page, ${scheme}`;
      const context = await browser.newContext({
        colorScheme: scheme,
        viewport: { width: 1366, height: 900 },
      });
      const page = await context.newPage();
      const said: string[] = [];
      const asked: string[] = [];
      page.on('console', (message) => said.push(message.text()));
      page.on('pageerror', (error) => said.push(error.message));
      page.on('request', (request) => asked.push(request.url()));
      await page.goto(driven.url);
      await page.waitForSelector('.card');
      await page.waitForSelector('#workspaces tr');
      await page.waitForFunction(`document.getElementById('connection').textContent === 'Live'`);
      await pause(2_500);
      const verdict = await page.locator('#verdict').getAttribute('class');
      report.check(`${name}: says ${state}`, verdict === `verdict ${state}`, String(verdict));
      await verifyFigures(page, driven, name, report);
      if (state !== 'calm') {
        const waiting = await page.locator('[data-upstream="lm"] [data-figure="waiting"]').innerText();
        report.check(`${name}: shows calls that wait`, Number(waiting) >= 30, waiting);
      }
      if (scheme === 'light') await verifyKeyboard(page, name, report);
      await verifyAccess(page, name, report);
      report.check(`${name}: console stays empty`, said.length === 0, said.join('; '));
      const strangers = asked.filter((url) => !url.startsWith(driven.url));
      report.check(
        `${name}: nothing is fetched from elsewhere`,
        strangers.length === 0,
        strangers.join('; '),
      );
      const seen = await page.content();
      report.check(`${name}: no canary is seen`, !/canary/i.test(seen));
      await context.close();
    }
    report.check(
      `the ${state} page: no fault in the process`,
      driven.bugs.length === 0,
      String(driven.bugs[0]),
    );
  } finally {
    for (const finish of open) finish();
    await driven.close();
  }
}

/** Waiting, in flight and used ratios on the page are the gauges of a scrape taken at the same time. */
async function verifyFigures(page: Page, driven: Driven, name: string, report: Report): Promise<void> {
  const metrics = await (await fetch(`${driven.url}metrics`)).text();
  const gauge = (series: string): number => {
    const line = metrics.split('\n').find((each) => each.startsWith(`${series} `));
    return Number(line?.slice(series.length + 1));
  };
  for (const upstream of ['lm', 'shop']) {
    const card = page.locator(`[data-upstream="${upstream}"]`);
    const shown = async (figure: string) =>
      Number(await card.locator(`[data-figure="${figure}"]`).innerText());
    const pairs: [string, number, number][] = [
      ['waiting', await shown('waiting'), gauge(`sluice_queue_depth{upstream="${upstream}"}`)],
      ['in flight', await shown('in-flight'), gauge(`sluice_in_flight{upstream="${upstream}"}`)],
    ];
    for (const meter of await card.locator('[data-dimension]').all()) {
      const dimension = await meter.getAttribute('data-dimension');
      const text = await meter.locator('.value').innerText();
      const ratio = gauge(`sluice_bucket_used_ratio{upstream="${upstream}",dimension="${dimension}"}`);
      pairs.push([`used ${dimension}`, Number.parseInt(text, 10), Math.round(ratio * 100)]);
    }
    const wrong = pairs.filter(([, onPage, inMetrics]) => onPage !== inMetrics);
    report.check(
      `${name}: ${pairs.length} figures of ${upstream} equal the metrics`,
      wrong.length === 0,
      JSON.stringify(wrong),
    );
  }
}

/** Tab reaches the table and the links, and shows where it is. */
async function verifyKeyboard(page: Page, name: string, report: Report): Promise<void> {
  const reached: string[] = [];
  for (let n = 0; n < 3; n++) {
    await page.keyboard.press('Tab');
    reached.push(
      await page.evaluate(`document.activeElement.className || document.activeElement.textContent`),
    );
  }
  const outline = await page.evaluate(`getComputedStyle(document.activeElement).outlineStyle`);
  const all = ['scroll', '/metrics', '/activity'].every((each) => reached.includes(each));
  report.check(`${name}: the keyboard reaches every part`, all && outline !== 'none', reached.join(', '));
}

async function verifyAccess(page: Page, name: string, report: Report): Promise<void> {
  // By the debugger's side door: the page's own policy forbids foreign scripts, and must.
  const session = await page.context().newCDPSession(page);
  const evaluate = async (expression: string): Promise<unknown> => {
    const options = { expression, awaitPromise: true, returnByValue: true };
    return (await session.send('Runtime.evaluate', options)).result.value;
  };
  await evaluate(readFileSync(axePath, 'utf8'));
  const found = await evaluate(
    `axe.run(document).then(({ violations, passes }) => ({ passes: passes.length, broken: violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.target).join(' ')) }))`,
  );
  const { passes, broken } = found as { passes: number; broken: string[] };
  report.check(
    `${name}: keeps ${passes} axe-core rules`,
    passes > 10 && broken.length === 0,
    broken.join('; '),
  );
}
