/**
 * `npm run verify:kubernetes`: chart and manifests on the control plane of Kubernetes itself, built from its Go modules (once;
 * cached): etcd, API server, controllers and scheduler are real, nodes and pods are simulated. Installs, upgrades, rolls back, drains
 * and removes. `--where-possible`: a machine on which it cannot be built or started is skipped, not failed.
 */
import { startControlPlane, type ControlPlane } from './kubernetes/control-plane.ts';
import { addCustomResources } from './kubernetes/custom-resources.ts';
import { checkDisruption } from './kubernetes/disruption.ts';
import { checkHandover, checkLifecycle, checkScaling, enforcesRestricted } from './kubernetes/lifecycles.ts';
import { checkManifests } from './kubernetes/manifests.ts';
import { addPriorityClass } from './kubernetes/namespace.ts';
import { addSimulatedNodes, addVolumes } from './kubernetes/nodes.ts';
import { build, kubernetesVersion, obstacle } from './kubernetes/program.ts';
import { valueSets } from './kubernetes/value-sets.ts';
import { installTools } from './packaging/tools.mjs';
import { createReport } from './report.ts';

/** Most of a task is waiting for pods: more tasks than processors. */
const atOnce = 5;
const report = createReport('kubernetes');
const startedOrNot = (failure: unknown): string =>
  `not possible on this machine: ${String(failure).slice(-1_000)}`;

async function start(): Promise<ControlPlane> {
  await build();
  const plane = await startControlPlane(installTools());
  try {
    await addSimulatedNodes(plane);
    await addVolumes(plane);
    await addCustomResources(plane.client);
    await addPriorityClass(plane.client);
    return plane;
  } catch (failure) {
    await plane.stop();
    throw failure;
  }
}

async function checkAll({ client }: ControlPlane): Promise<void> {
  await report.run('a namespace refuses pods that are not "restricted"', () => enforcesRestricted(client));
  const groups = [
    () => checkDisruption(client, report),
    () => checkScaling(client, report),
    () => checkHandover(client, report),
    () => checkManifests(client, report),
    ...valueSets.map((set) => () => checkLifecycle(client, report, set, 4)),
  ];
  const work = async (): Promise<void> => {
    for (let group = groups.shift(); group !== undefined; group = groups.shift())
      await group().catch((failure: unknown) => report.check('a group of checks', false, String(failure)));
  };
  await Promise.all(Array.from({ length: atOnce }, work));
}

const why = await obstacle();
if (why === null) {
  report.section(`Kubernetes ${kubernetesVersion()}: a real control plane, simulated nodes`);
  const plane = await start().catch((failure: unknown) => startedOrNot(failure));
  if (typeof plane !== 'string') {
    const ended = (): void => void plane.stop().then(() => process.exit(1));
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, ended);
    await checkAll(plane);
    await plane.stop();
  } else if (process.argv.includes('--where-possible')) report.skipped('Kubernetes', plane);
  else report.check('the control plane starts', false, plane);
} else report.skipped('Kubernetes', why);
process.exit(report.end());
