/**
 * Proves what people look at, with the tools they look with: promtool, Chromium, Prometheus; and measures what it costs. A tool
 * that cannot be had is a loud SKIPPED, never a pass. `--only=rules` leaves out all but promtool. The documentation's pictures come from
 * `observability/page.ts` and `observability/dashboards.ts`.
 */
import { createReport } from './report.ts';
import { verifyRules } from './observability/rules.ts';
import { verifyDashboards } from './observability/dashboards.ts';
import { verifyCost } from './observability/cost.ts';
import { verifyPage } from './observability/page.ts';

const report = createReport('observability');
await verifyRules(report);
if (!process.argv.includes('--only=rules')) {
  await verifyPage(report);
  await verifyDashboards(report);
  await verifyCost(report);
}
process.exitCode = report.end();
