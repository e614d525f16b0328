/**
 * `npm run verify:packaging`: everything that can be proved about image, chart and manifests without a cluster. What
 * this machine cannot run is printed as "SKIPPED: what: why". Options: --only=chart|autoscaling|proxies|image.
 */
import { parseArgs } from 'node:util';
import { chartChecks } from './packaging/chart-checks.mjs';
import { autoscalingChecks } from './packaging/autoscaling-checks.mjs';
import { imageChecks } from './packaging/image-checks.mjs';
import { proxyChecks } from './packaging/proxy-checks.mjs';
import { endAll } from './fleet/processes.ts';
import { report } from './packaging/report.mjs';
import { installTools } from './packaging/tools.mjs';

const parts = {
  chart: ['Chart and manifests: lint, render, rules, refusals', chartChecks],
  autoscaling: ['Autoscaling queries, by promtool', autoscalingChecks],
  proxies: ['nginx and HAProxy in front of three gateways', proxyChecks],
  image: ['Image: built, run read-only and without rights, as the rendered Deployment', imageChecks],
};
const { values } = parseArgs({ options: { only: { type: 'string', default: Object.keys(parts).join() } } });

const tools = installTools();
for (const [name, [title, run]] of Object.entries(parts)) {
  if (!values.only.split(',').includes(name)) continue;
  report.section(title);
  await run(tools);
}
await endAll();
process.exit(report.end());
