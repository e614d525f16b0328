/** Everything that a control plane with simulated pods can show, for one release of Kubernetes. */
import { chart } from '../packaging/generated.mjs';
import { checkDefects } from './checks/defects.ts';
import { checkDisruption } from './checks/disruption.ts';
import { checkHandover, enforcesRestricted, lifecycles } from './checks/lifecycles.ts';
import { checkManifests } from './checks/manifests.ts';
import { inParallel } from './checks/parallel.ts';
import { checkPassages } from './checks/passages.ts';
import type { Scene } from './checks/scene.ts';
import { prepareSwitches } from './checks/switches.ts';
import type { Helm } from './cluster/client.ts';
import { type ControlPlane, startControlPlane } from './cluster/control-plane.ts';
import { addCustomResources } from './cluster/custom-resources.ts';
import { addPriorityClass } from './cluster/namespace.ts';
import { build, buildKwok, type Release, versionOf } from './programs.ts';
import type { Report, SetUpFailure } from './report.ts';
import { addSimulatedNodes } from './simulated/nodes.ts';
import { addVolumes } from './simulated/volumes.ts';
import { valueSets } from './value-sets.ts';

/** Most of a task is waiting for pods: more tasks than cores. */
const JOBS = 5;
const helms: readonly Helm[] = [4, 3];
const SHORT_SETS = ['default', '02-redis', '03-production-hpa', '10-development-redis', '13-bare'];

/** What a control plane shows, in groups that can be chosen. */
export type PlanePart = 'lifecycles' | 'passages' | 'switches' | 'disruption' | 'manifests' | 'defects';

export interface RunOptions {
  readonly release: Release;
  readonly tools: { readonly kubectl: string; readonly helm3: string; readonly helm4: string };
  readonly short: boolean;
  readonly setUpFailure: SetUpFailure;
  /** Aborted when the run is to end early. */
  readonly ended: AbortSignal;
}

/** As `1.36`. */
export const shortVersion = (release: Release): string => versionOf(release).replace(/^v(\d+\.\d+).*$/, '$1');

export async function runControlPlane(
  report: Report,
  options: RunOptions,
  parts: readonly PlanePart[],
): Promise<void> {
  const { release, tools, ended } = options;
  const version = shortVersion(release);
  report.section(`Kubernetes ${versionOf(release)}: real control plane, simulated nodes (no container runs)`);
  let plane: ControlPlane | null = null;
  const stop = (): void => void plane?.stop();
  const started = await report.setUp(`${version}: the control plane starts`, async () => {
    await build(['newest/plane', `${release}/plane`]);
    await buildKwok();
    plane = await startControlPlane(release, tools);
    await addSimulatedNodes(plane);
    await addVolumes(plane.client);
    await addCustomResources(plane.client);
    await addPriorityClass(plane.client);
    return plane.client.serverVersion();
  });
  if (!started || plane === null) return report.skip(`${version}: everything on it`, 'it did not start');
  ended.addEventListener('abort', stop, { once: true });
  try {
    await runChecks(report, plane, { ...options, version, parts });
  } finally {
    ended.removeEventListener('abort', stop);
    await (plane as ControlPlane).stop();
  }
}

async function runChecks(
  report: Report,
  plane: ControlPlane,
  { short, version, parts }: RunOptions & { version: string; parts: readonly PlanePart[] },
): Promise<void> {
  const { client } = plane;
  const scene: Scene = { client, report, chart, version };
  const sets = short ? valueSets.filter(({ name }) => SHORT_SETS.includes(name)) : valueSets;
  await report.check(`${version}: a namespace refuses pods that are not "restricted"`, () =>
    enforcesRestricted(client),
  );
  const switches = await prepareSwitches(scene, plane, short ? helms : [...helms, 'helm 3, then 4']);
  // Both drain nodes, so they take turns.
  const drains = async (): Promise<void> => {
    if (parts.includes('disruption')) for (const helm of helms) await checkDisruption(scene, helm);
    if (parts.includes('defects')) await checkDefects(scene, 4);
  };
  const groups: Readonly<
    Record<Exclude<PlanePart, 'disruption' | 'defects'>, readonly (() => Promise<void>)[]>
  > = {
    passages: helms.map((helm) => () => checkPassages(scene, valueSets, helm)),
    switches: switches.tasks,
    lifecycles: lifecycles(scene, sets, helms),
    manifests: [() => checkHandover(scene), () => checkManifests(scene)],
  };
  const wanted = Object.entries(groups).filter(([name]) => parts.some((part) => part === name));
  const tasks = [drains, ...wanted.flatMap(([, group]) => group)];
  // A group that breaks off between two checks is a failure of its own, and the others go on.
  const guarded = tasks.map(
    (task) => () =>
      task().catch((failure: unknown) =>
        report.check(`${version}: a group of checks`, () => Promise.reject(failure as Error)),
      ),
  );
  try {
    await inParallel(JOBS, guarded);
  } finally {
    await switches.stop();
  }
}
