/** Rules, alerts and metric names, by promtool: syntax, unit tests of every alert, lint of a real scrape. */
import { RunningTelemetry } from '../../src/telemetry/telemetry.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { Report } from '../report.ts';
import { available, run } from './tools.ts';

const folder = new URL('../../grafana/rules/', import.meta.url).pathname;

export async function verifyRules(report: Report): Promise<void> {
  if (!available('promtool')) return report.skipped('rules and metric names', 'no promtool');
  const rules = run('promtool', ['check', 'rules', 'sluice.rules.yaml', 'sluice.alerts.yaml'], {
    cwd: folder,
  });
  report.check('promtool check rules', rules.status === 0, rules.output);
  const tests = run('promtool', ['test', 'rules', 'sluice.test.yaml'], { cwd: folder });
  report.check('promtool test rules: every alert fires and stays silent', tests.status === 0, tests.output);
  const telemetry = new RunningTelemetry(
    {
      privacy: { labelKey: 'verification' },
      log: { level: 'silent', sampleSuccesses: 0 },
      upstreams: new Map(),
    },
    {
      clock: systemClock,
      random: systemRandom,
      destination: { write: () => {} },
      metrics: { processMetrics: true },
    },
  );
  const { body } = await telemetry.metrics();
  const lint = run('promtool', ['check', 'metrics'], { input: body });
  report.check('promtool check metrics', lint.status === 0 && lint.output === '', lint.output);
  await telemetry.close();
}
