/**
 * `npm run verify:kubernetes`: chart and manifests on the control plane of Kubernetes itself, built from its Go modules (once;
 * cached): etcd, API server and controllers are real, what kubelets would say of pods is not. Installs, upgrades, rolls back, evicts
 * and removes. `--where-possible`: a machine on which it cannot be built or started is skipped, not failed.
 */
import { endAll } from './fleet/processes.ts';
import type { Client } from './kubernetes/client.ts';
import { startControlPlane } from './kubernetes/control-plane.ts';
import { addCustomResources } from './kubernetes/custom-resources.ts';
import { checkDisruption, checkHandover, checkLifecycle, checkScaling } from './kubernetes/installs.ts';
import { checkManifests } from './kubernetes/manifests.ts';
import { enforcesRestricted, prepareCluster } from './kubernetes/namespace.ts';
import { build, kubernetesVersion, obstacle } from './kubernetes/program.ts';
import { Stand } from './kubernetes/stand.ts';
import { valueSets } from './kubernetes/value-sets.ts';
import { installTools } from './packaging/tools.mjs';
import { createReport } from './report.ts';

/** Most of a task is waiting for pods: more tasks than processors. */
const atOnce = 5;
const report = createReport('kubernetes');

async function start(): Promise<Client> {
  await build();
  const client = await startControlPlane(installTools());
  await prepareCluster(client);
  await addCustomResources(client);
  return client;
}

async function checkAll(client: Client): Promise<void> {
  const stand = new Stand(client);
  void stand.run();
  const on = { client, stand, report };
  await report.run('a namespace refuses pods that are not "restricted"', () => enforcesRestricted(client));
  const groups = [
    () => checkDisruption(on),
    () => checkScaling(on),
    () => checkHandover(on),
    () => checkManifests(client, report),
    ...valueSets.map((set) => () => checkLifecycle(on, set)),
  ];
  const work = async (): Promise<void> => {
    for (let group = groups.shift(); group !== undefined; group = groups.shift())
      await group().catch((failure: unknown) => report.check('a group of checks', false, String(failure)));
  };
  await Promise.all(Array.from({ length: atOnce }, work));
}

for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => void endAll().then(() => process.exit(1)));
const why = await obstacle();
if (why === null) {
  report.section(`Kubernetes ${kubernetesVersion()}: a real control plane`);
  const client = await start().catch((failure: unknown) => String(failure).slice(-1_000));
  if (typeof client !== 'string') await checkAll(client);
  else if (process.argv.includes('--where-possible')) report.skipped('Kubernetes', client);
  else report.check('the control plane starts', false, client);
} else report.skipped('Kubernetes', why);
await endAll();
process.exit(report.end());
