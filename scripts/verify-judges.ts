/**
 * `npm run verify:judges [-- <names>]`: what programs of others say of a running gateway (embedded limiter, upstreams of this
 * machine), and of its histories over Redis. Each judge is bounded; one that cannot be had is a loud SKIPPED, never a pass.
 */
import { endAll } from './fleet/processes.ts';
import { createReport, type Report } from './report.ts';
import { judgeByHttplint } from './judges/httplint.ts';
import { judgeByPorcupine } from './judges/porcupine.ts';
import { judgeBySchemathesis } from './judges/schemathesis.ts';

const judges: Readonly<Record<string, (report: Report) => Promise<void>>> = {
  schemathesis: judgeBySchemathesis,
  httplint: judgeByHttplint,
  porcupine: judgeByPorcupine,
};

const wanted = process.argv.slice(2);
const unknown = wanted.filter((name) => !Object.hasOwn(judges, name));
if (unknown.length > 0) {
  console.error(`no such judge: ${unknown.join(', ')}; there are ${Object.keys(judges).join(', ')}`);
  process.exit(2);
}
const report = createReport('judges');
try {
  for (const [name, judge] of Object.entries(judges))
    if (wanted.length === 0 || wanted.includes(name)) await judge(report);
} finally {
  await endAll();
}
process.exitCode = report.end();
