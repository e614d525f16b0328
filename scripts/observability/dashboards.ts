/**
 * The dashboards over a recording (`recording.ts`): every query is asked as Grafana asks it, and every panel must find something in a
 * time in which everything happened. Run by itself it also draws them: `node scripts/observability/dashboards.ts FOLDER`.
 */
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { chromium } from 'playwright-core';
import { endAll } from '../cluster/processes.ts';
import { available, run } from '../processes.ts';
import { createReport, type Report } from '../report.ts';
import { drawn, type Dashboard, type Found, type Panel } from './drawn-dashboard.ts';
import { makeRecording, type Recording } from './recording.ts';

const folder = new URL('../../grafana/dashboards/', import.meta.url);
/** What the variables of the dashboards stand for. */
const variables = { $__rate_interval: '10s', $upstream: 'openai', $namespace: '.*' } as const;
/** Empty where all is well, or within four minutes: what these count is rare, or has no series before it first happens. */
const mayBeEmpty = new Set(['Leases lost', 'Turned away, by bound']);

export async function verifyDashboards(report: Report, pictures: string | null = null): Promise<void> {
  if (!available('prometheus', 'prometheus')) return report.skipped('dashboards', 'no prometheus');
  try {
    const recording = await makeRecording();
    for (const name of (await readdir(folder)).toSorted()) {
      const dashboard = JSON.parse(await readFile(new URL(name, folder), 'utf8')) as Dashboard;
      const panels = dashboard.panels.filter(({ type }) => type !== 'row');
      const found = new Map<Panel, readonly Found[]>();
      for (const panel of panels) found.set(panel, await ask(panel, recording));
      const empty = panels.filter((panel) => found.get(panel)?.every(({ series }) => series.length === 0));
      const wrong = empty.map(({ title }) => title).filter((title) => !mayBeEmpty.has(title));
      report.check(`${dashboard.title}: every panel finds something`, wrong.length === 0, wrong.join('\n'));
      const [annotation] = dashboard.annotations.list;
      const marks = annotation === undefined ? [] : await recording.ask(filledIn(annotation.expr));
      report.check(`${dashboard.title}: a configuration that was taken over is marked`, marks.length > 0);
      if (pictures !== null) {
        const at = marks.flatMap(({ points }) => points.slice(0, 1).map((point) => point.at));
        await picture(
          resolve(pictures, name.replace('.json', '.png')),
          drawn(dashboard, found, { ...recording, marks: at }),
        );
      }
    }
  } catch (failure) {
    report.check('dashboards: a recording', false, String(failure));
  } finally {
    await endAll();
  }
}

async function ask({ targets = [] }: Panel, recording: Recording): Promise<readonly Found[]> {
  const found: Found[] = [];
  for (const { expr, legendFormat } of targets)
    found.push({ legend: legendFormat, series: await recording.ask(filledIn(expr)) });
  return found;
}

const filledIn = (query: string): string =>
  Object.entries(variables).reduce((text, [name, value]) => text.replaceAll(name, value), query);

async function picture(path: string, html: string): Promise<void> {
  const executablePath = run('which', ['chromium']).output;
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  await page.setContent(html);
  await page.screenshot({ path, fullPage: true });
  await browser.close();
}

if (import.meta.main) {
  const pictures = process.argv[2] ?? null;
  if (pictures !== null) await mkdir(pictures, { recursive: true });
  const report = createReport('dashboards');
  await verifyDashboards(report, pictures);
  process.exit(report.end());
}
