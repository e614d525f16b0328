/**
 * `npm run verify:judges`: what programs of others say of a running gateway (embedded limiter, simulated upstreams) and of the
 * manifests. Each judge is bounded to two minutes; one that cannot be had is a loud SKIPPED, never a pass.
 */
import { createReport } from './observability/report.ts';
import { startDemo } from './judges/demo.ts';
import { judgeByHttplint } from './judges/httplint.ts';
import { judgeByKubeScore } from './judges/kube-score.ts';
import { judgeBySchemathesis } from './judges/schemathesis.ts';
import { judgeBySlowhttptest } from './judges/slowhttptest.ts';

const report = createReport('judges');
const demo = await startDemo();
try {
  await judgeBySchemathesis(report, demo);
  await judgeByHttplint(report, demo);
  await judgeBySlowhttptest(report, demo);
  await judgeByKubeScore(report);
} finally {
  await demo.stop();
}
process.exitCode = report.end();
