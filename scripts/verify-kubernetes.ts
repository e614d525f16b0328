/**
 * `npm run verify:kubernetes`: the chart on Kubernetes itself, the newest release that builds and the oldest that the
 * chart claims. Builds the control plane from Go modules (once; cached), installs, upgrades, rolls back, drains and
 * removes; as root, runs the real image on a real node under load. What cannot run here is printed as SKIPPED, with the
 * reason. Options: `--short` (the newest release only, the parts that matter most), `--minutes=N` (no part is begun
 * later), `--where-possible` (a machine on which Kubernetes cannot be built or started is skipped, not failed), `--only=control-plane|node`, `--release=newest|oldest`, `--parts=` with some of lifecycles, passages, switches,
 * disruption, manifests (control plane), serving, policy, autoscaling (node), defects (both).
 */
import { parseArgs } from 'node:util';
import { installTools } from './packaging/tools.mjs';
import { opensslObstacle } from './kubernetes/cluster/control-plane.ts';
import { type PlanePart, runControlPlane } from './kubernetes/control-plane-run.ts';
import type { NodePart } from './kubernetes/node/inside.ts';
import { runNode } from './kubernetes/node-run.ts';
import { goObstacle, type Release } from './kubernetes/programs.ts';
import { Report, type SetUpFailure } from './kubernetes/report.ts';

const { values } = parseArgs({
  options: {
    short: { type: 'boolean', default: false },
    'where-possible': { type: 'boolean', default: false },
    only: { type: 'string' },
    release: { type: 'string' },
    parts: { type: 'string' },
    minutes: { type: 'string', default: '600' },
  },
});
const planeParts = ['lifecycles', 'passages', 'switches', 'disruption', 'manifests', 'defects'] as const;
const nodeParts = ['serving', 'policy', 'autoscaling', 'defects'] as const;
const releases = (['newest', 'oldest'] as const satisfies Release[]).filter(
  (name) => values.release === name || (values.release === undefined && !(values.short && name === 'oldest')),
);

const chosen = values.parts?.split(',');

/** Defects are planted once; the short form has one release through few value files. */
function planePartsOf(release: Release): PlanePart[] {
  const left = values.short ? ['passages', 'manifests'] : [];
  if (release === 'oldest') left.push('defects');
  const all = planeParts.filter((part) => !left.includes(part));
  if (values.short) report.skip(`the control plane: ${left.join(', ')}`, 'not in the short form');
  return chosen === undefined ? all : planeParts.filter((part) => chosen.includes(part));
}

/** Of the oldest release, what depends on its kubelet; in the short form, what no planted defect is needed for. */
function nodePartsOf(release: Release): NodePart[] {
  if (chosen !== undefined) return nodeParts.filter((part) => chosen.includes(part));
  if (release === 'oldest') return ['serving', 'policy'];
  if (values.short) report.skip('real node: defects', 'not in the short form');
  return nodeParts.filter((part) => part !== 'defects' || !values.short);
}

const setUpFailure: SetUpFailure = values['where-possible'] ? 'skips' : 'fails';
const report = new Report(setUpFailure);
const ended = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    ended.abort();
    console.log(`ended by ${signal}`);
    setTimeout(() => process.exit(1), 15_000);
  });

const startedMs = Date.now();
function inTime(what: string): boolean {
  const minutes = (Date.now() - startedMs) / 60_000;
  if (minutes < Number(values.minutes)) return true;
  report.skip(what, `${minutes.toFixed(0)} minutes have passed, ${values.minutes} are allowed`);
  return false;
}

const why = (await goObstacle()) ?? (await opensslObstacle());
if (why === null) {
  const tools = installTools();
  for (const release of releases) {
    const options = { release, tools, short: values.short, setUpFailure, ended: ended.signal };
    if (values.only !== 'node' && inTime(`the control plane of the ${release} release`))
      await runControlPlane(report, options, planePartsOf(release));
    if (values.only !== 'control-plane' && inTime(`a real node of the ${release} release`))
      await runNode(report, options, nodePartsOf(release));
  }
  if (values.short && values.release === undefined)
    report.skip('the oldest release that the chart claims', 'not in the short form');
} else report.skip('Kubernetes, both releases, and the real node', why);
process.exitCode = ended.signal.aborted ? 1 : report.end();
