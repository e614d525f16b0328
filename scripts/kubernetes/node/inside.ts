/** The part of the run that happens on the real node; started by `namespaces.ts` with its job as JSON. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { ControlPlane } from '../cluster/control-plane.ts';
import { addPriorityClass } from '../cluster/namespace.ts';
import type { Release } from '../programs.ts';
import { Report, type SetUpFailure } from '../report.ts';
import { checkAutoscaling } from './autoscaling-checks.ts';
import { checkNodeDefects } from './defect-checks.ts';
import { keepLogs, startMachine } from './machine.ts';
import { checkPolicies } from './policy-checks.ts';
import { checkServing, checkUninstall } from './serving-checks.ts';
import { Shop } from './shop.ts';

export type NodePart = 'serving' | 'policy' | 'autoscaling' | 'defects';

export interface Job {
  readonly release: Release;
  readonly version: string;
  readonly tools: { readonly kubectl: string; readonly helm3: string; readonly helm4: string };
  readonly archives: readonly string[];
  readonly chart: string;
  readonly group: string;
  readonly short: boolean;
  readonly setUpFailure: SetUpFailure;
  readonly parts: readonly NodePart[];
  /** Where the findings go, as JSON. */
  readonly findings: string;
  /** Where logs of the node go when something failed. */
  readonly logs: string;
}

async function run(job: Job, plane: ControlPlane, report: Report): Promise<void> {
  const { version, chart, short, parts } = job;
  await addPriorityClass(plane.client);
  const shop = new Shop(plane, report, { namespace: 'shop', chart });
  const groups: Readonly<Record<NodePart, () => Promise<void>>> = {
    serving: () => checkServing(shop, version, short),
    policy: async () => {
      if (!parts.includes('serving')) await shop.open().then(() => shop.upgrade());
      await checkPolicies(shop, version);
      await checkUninstall(shop, version);
    },
    autoscaling: () => checkAutoscaling(plane, report, { version, chart }),
    defects: () => checkNodeDefects(plane, report, version),
  };
  for (const part of parts)
    await groups[part]().catch((failure: unknown) =>
      // A group that breaks off between two checks is a failure of its own, and the others go on.
      report.check(`${version}, real node: ${part}`, () => Promise.reject(failure as Error)),
    );
}

const job = JSON.parse(process.argv[2] ?? '') as Job;
const report = new Report(job.setUpFailure);
let plane = null as ControlPlane | null;
try {
  await report.setUp(`${job.version}, real node: the node starts`, async () => {
    plane = await startMachine(job);
  });
  if (plane !== null) await run(job, plane, report);
} catch (failure) {
  await report.check(`${job.version}, real node: the run itself`, () => Promise.reject(failure as Error));
} finally {
  report.write(job.findings);
  if (plane !== null && report.findings.failed.length > 0) {
    mkdirSync(dirname(job.logs), { recursive: true });
    writeFileSync(job.logs, '');
    keepLogs(plane, job.logs);
    console.log(`        logs of the node: ${job.logs}`);
  }
  // Its folder still holds mounts: it goes with the namespaces.
  await plane?.processes.stop();
}
process.exit(0);
