/** Rules, alerts, queries of dashboards and metric names, by promtool: syntax, unit tests of every alert, lint of a real scrape. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createTelemetry } from '../../src/telemetry/telemetry.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { dashboards } from '../grafana/dashboards.ts';
import { available, newFolder, run } from '../fleet/processes.ts';
import type { Report } from '../report.ts';
import { queriesOf } from './dashboards.ts';

const folder = new URL('../../grafana/rules/', import.meta.url).pathname;

export async function verifyRules(report: Report): Promise<void> {
  if (!available('promtool', 'prometheus')) return report.skipped('rules and metric names', 'no promtool');
  const rules = run('promtool', ['check', 'rules', 'sluice.rules.yaml', 'sluice.alerts.yaml'], {
    cwd: folder,
  });
  report.check('promtool check rules', rules.status === 0, rules.output);
  const tests = run('promtool', ['test', 'rules', 'sluice.test.yaml'], { cwd: folder });
  report.check('promtool test rules: every alert fires and stays silent', tests.status === 0, tests.output);
  await verifyQueries(report);
  const settings = {
    privacy: { labelKey: 'verification' },
    log: { level: 'silent', sampleSuccesses: 0 },
  } as const;
  const telemetry = createTelemetry(
    { ...settings, upstreams: new Map() },
    {
      clock: systemClock,
      random: systemRandom,
      destination: { write: () => {} },
      metrics: { processMetrics: true },
    },
  );
  const process = { heldBytes: 0, keptBytes: 0, headBytes: 0, connections: 0, openCalls: 0 };
  const load = { eventLoopDelayMs: 0, memoryRatio: 0, sheddingShare: 0, overloadRefusals: 0 };
  telemetry.observe({
    process: () => ({ ...process, ...load }),
    buckets: () => [],
    ceilingsUsed: () => [],
    breakers: () => [],
    pauseOf: () => null,
    credentials: () => [],
    headrooms: () => Promise.resolve(new Map()),
  });
  const { body } = await telemetry.metrics();
  const lint = run('promtool', ['check', 'metrics'], { input: body });
  report.check('promtool check metrics', lint.status === 0 && lint.output === '', lint.output);
  await telemetry.close();
}

/** Every query of every panel, as a rule of its own. */
async function verifyQueries(report: Report): Promise<void> {
  const panels = Object.values(dashboards).flatMap(queriesOf);
  const queries = panels.flatMap((panel) => panel.queries);
  const rules = queries.map((expr, at) => ({ record: `panel:${at}`, expr }));
  const file = join(await newFolder(), 'panels.yaml');
  writeFileSync(file, JSON.stringify({ groups: [{ name: 'panels', rules }] }));
  const { status, output } = run('promtool', ['check', 'rules', file]);
  const isGood = status === 0 && queries.length > 30;
  report.check(`promtool check rules: ${queries.length} queries of dashboards`, isGood, output);
}
