/**
 * Proves what people look at, with the tools they look with: promtool, Chromium, Prometheus. A tool that cannot be had is a loud SKIPPED,
 * never a pass. `--only=rules` leaves out all but promtool. The documentation's pictures of the page come from `observability/page.ts`.
 */
import { endAll } from './fleet/processes.ts';
import { verifyDashboards } from './observability/dashboards.ts';
import { verifyPage } from './observability/page.ts';
import { verifyRules } from './observability/rules.ts';
import { createReport } from './report.ts';

const report = createReport('observability');
await verifyRules(report);
if (!process.argv.includes('--only=rules')) {
  await verifyPage(report);
  await verifyDashboards(report);
}
await endAll();
process.exit(report.end());
