/**
 * Switches of the autoscaler on a real API server with a real HorizontalPodAutoscaler: from every mode to every other,
 * and rollbacks between autoscaled revisions. The figure that the autoscaler follows is set here; nobody acts on a
 * ScaledObject, so KEDA's number stays what it was.
 */
import type { ControlPlane } from '../cluster/control-plane.ts';
import type { Helm } from '../cluster/client.ts';
import { serveCustomMetrics } from '../cluster/custom-metrics.ts';
import { createNamespace } from '../cluster/namespace.ts';
import { until } from '../cluster/processes.ts';
import { Release } from '../cluster/release.ts';
import { valuesOf } from '../value-sets.ts';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scene } from './scene.ts';

/** Time in which a pod that is not wanted any more would go. */
const OBSERVED_MS = 7000;
const TARGET = 100;
const redis = valuesOf('02-redis');
const bounds = ['--set', 'autoscaling.minReplicas=3', '--set', 'autoscaling.maxReplicas=9'];
const scaled = [...bounds, '--set', `autoscaling.callsPerPod=${TARGET}`];
const modes = {
  'a count of 3': ['--set', 'replicaCount=3'],
  'no count': [],
  HPA: ['--set', 'autoscaling.hpa=true', ...scaled],
  'HPA, changed': ['--set', 'autoscaling.hpa=true', ...scaled, '--set', 'deploymentAnnotations.changed=yes'],
  KEDA: ['--set', 'autoscaling.keda=true', ...scaled],
} as const;
type Mode = keyof typeof modes;

/** One thing that happens to a release. */
type Step =
  | { readonly kind: 'upgrade'; readonly mode: Mode }
  | { readonly kind: 'autoscaler'; readonly to: number }
  | { readonly kind: 'scale'; readonly to: number }
  | { readonly kind: 'rollback'; readonly revision: number };

const to = (mode: Mode): Step => ({ kind: 'upgrade', mode });
const raised = (count: number): Step => ({ kind: 'autoscaler', to: count });

/** Each starts with an installation. */
const journeys: readonly (readonly Step[])[] = [
  [to('a count of 3'), to('HPA'), raised(6), to('HPA, changed'), to('a count of 3'), to('HPA'), to('KEDA')],
  [
    to('a count of 3'),
    { kind: 'scale', to: 4 },
    to('HPA'),
    to('no count'),
    to('KEDA'),
    to('HPA'),
    raised(7),
    to('KEDA'),
    to('a count of 3'),
  ],
  [
    to('HPA'),
    raised(6),
    to('HPA, changed'),
    { kind: 'rollback', revision: 1 },
    to('KEDA'),
    to('no count'),
    to('HPA'),
  ],
];

/** Where a helm 3 release is handed over to helm 4, the first step is helm 3's. */
export type Helms = Helm | 'helm 3, then 4';

export interface Switches {
  /** One for each journey; they may run at the same time. */
  readonly tasks: readonly (() => Promise<void>)[];
  stop(): Promise<void>;
}

/** Serves the figure that the autoscaler follows, until `stop`. */
export async function prepareSwitches(
  scene: Scene,
  plane: ControlPlane,
  helms: readonly Helms[],
): Promise<Switches> {
  // All calls of the release in a namespace; null: as many as its pods aim at, so that nothing changes.
  const calls = new Map<string, number | null>();
  const metrics = await serveCustomMetrics(plane, async ({ metric, namespace, pods }) => {
    const all = calls.get(namespace);
    if (metric !== 'sluice_calls' || all === undefined) return null;
    const ofPod = all === null ? TARGET : all / pods.length;
    return new Map(pods.map((pod) => [pod, ofPod]));
  });
  const tasks = helms.flatMap((helm) =>
    journeys.map((journey, index) => () => {
      const namespace = `switch-${String(helm).replaceAll(/[^0-9]/g, '')}-${index}`;
      calls.set(namespace, null);
      const enoughFor = (pods: number | null): void =>
        void calls.set(namespace, pods === null ? null : pods * TARGET);
      return runJourney(scene, journey, { helm, namespace, figures: { enoughFor } });
    }),
  );
  return { tasks, stop: () => metrics.stop() };
}

async function runJourney(
  { client, report, chart, version }: Scene,
  journey: readonly Step[],
  { helm, namespace, figures }: { helm: Helms; namespace: string; figures: Figures },
): Promise<void> {
  const release = new Release(client, namespace, chart, helm === 'helm 3, then 4' ? 3 : helm);
  await createNamespace(client, namespace);
  const label = `${version}, ${helm === 3 || helm === 4 ? `helm ${helm}` : helm}`;
  let from = 'nothing';
  for (const step of journey) {
    const name = `${label}: ${from} → ${named(step)}`;
    const context = { name, first: from === 'nothing', figures, report };
    if (!(await report.check(name, () => take(release, step, context))))
      return report.skip(`${name}: what follows`, 'it failed');
    if (helm === 'helm 3, then 4') release.helm = 4;
    from = step.kind === 'upgrade' ? step.mode : named(step);
  }
  await client.kubectl(['delete', 'namespace', namespace, '--wait=false']);
}

function named(step: Step): string {
  switch (step.kind) {
    case 'upgrade':
      return step.mode;
    case 'autoscaler':
      return `${step.to} by the autoscaler`;
    case 'scale':
      return `${step.to} by kubectl scale`;
    case 'rollback':
      return `rollback to revision ${step.revision}`;
  }
}

interface Figures {
  /** Sets the calls to what so many pods aim at; null: to what the running ones do. */
  enoughFor(pods: number | null): void;
}

interface Context {
  readonly name: string;
  readonly first: boolean;
  readonly figures: Figures;
  readonly report: Scene['report'];
}

async function take(
  release: Release,
  step: Step,
  { name, first, figures, report }: Context,
): Promise<string> {
  if (first && step.kind === 'upgrade') {
    await release.install([...redis, ...modes[step.mode]]);
    await release.settled();
    return '';
  }
  if (step.kind === 'autoscaler') {
    figures.enoughFor(step.to);
    await until(
      `the autoscaler wants ${step.to}`,
      120_000,
      async () => (await release.replicas()) >= step.to,
      () => release.kubectl(['describe', 'hpa']),
    );
    await release.untilReady(step.to);
    figures.enoughFor(null);
    return '';
  }
  if (step.kind === 'scale') {
    await release.kubectl(['scale', 'deployment', release.deployment, '--replicas', String(step.to)]);
    await release.untilReady(step.to);
    return '';
  }
  const count = await release.replicas();
  return release.during(report, { name, min: count, max: count + 1 }, async () => {
    if (step.kind === 'rollback') await release.rollback(step.revision);
    else await release.upgrade([...redis, ...modes[step.mode]]);
    await sleep(OBSERVED_MS);
  });
}
