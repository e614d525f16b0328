/**
 * What an operator does with the chart: every value file is accepted strictly, installed, upgraded, rolled back, tested and removed; a release
 * passes from Helm 3 to 4 and through every way to scale; three pods live through restarts, evictions, a broken upgrade and a hand.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../fleet/processes.ts';
import { chart } from '../packaging/manifests.mjs';
import type { Report } from '../report.ts';
import { withoutWarning, type Client, type Helm } from './client.ts';
import { createNamespace } from './namespace.ts';
import { Release } from './release.ts';
import type { Stand } from './stand.ts';
import { valuesOf, type ValueSet } from './value-sets.ts';

/** What every group of checks needs. */
export interface On {
  readonly client: Client;
  readonly stand: Stand;
  readonly report: Report;
}

type Steps = Readonly<Record<string, () => Promise<string | void>>>;

/** Steps of one release in a namespace of its own, until one of them fails; that nothing is left behind is the last one. */
async function steps(on: On, namespace: string, helm: Helm, of: (release: Release) => Steps): Promise<void> {
  const { client, stand, report } = on;
  const release = new Release(client, stand, namespace, helm);
  await createNamespace(client, namespace);
  const all: Steps = { ...of(release), 'uninstall leaves nothing': () => release.uninstall() };
  for (const [what, run] of Object.entries(all))
    if (!(await report.run(`${namespace}: ${what}`, run))) return;
  await client.kubectl(['delete', 'namespace', namespace, '--wait=false']);
}

const mustBe = (holds: boolean, otherwise: string): void => {
  if (!holds) throw new Error(otherwise);
};

export const checkLifecycle = (on: On, { name, options }: ValueSet): Promise<void> =>
  steps(on, `set-${name}`, 4, (release) => ({
    'accepted strictly, without a warning': () => strict(release, options),
    'install --wait': () => release.install(options),
    'the same values again change nothing': async () => {
      await release.settled();
      await unchanged(release, options);
      await release.matchesManifest();
    },
    'upgrade with new pods': () => replaced(release, options),
    rollback: () => rolledBack(release),
    'test hook': () => tested(release),
    'no warning event': async () => {
      const found = await release.warningEvents();
      mustBe(found.length === 0, found.join('\n'));
    },
  }));

/** A release of helm 3 in the hands of helm 4. */
export const checkHandover = (on: On): Promise<void> => {
  const options = valuesOf('02-redis');
  return steps(on, 'handover', 3, (release) => ({
    'install by helm 3': () => release.install(options),
    'helm 4 alone changes nothing': () => {
      release.helm = 4;
      return unchanged(release, options);
    },
    'upgrade with new pods': () => replaced(release, options),
    rollback: () => rolledBack(release),
  }));
};

/** Time in which a pod that is not wanted any more would go. Milliseconds. */
const observedMs = 7_000;
const bounds = ['--set', 'autoscaling.minReplicas=3', '--set', 'autoscaling.maxReplicas=9'];
const counted = ['--set', 'replicaCount=3'];
const byHpa = ['--set', 'autoscaling.hpa=true', ...bounds];
const byKeda = ['--set', 'autoscaling.keda=true', ...bounds];

/** One release through every way to scale and back: no pod is missed, and nothing stays behind. */
export const checkScaling = (on: On): Promise<void> =>
  steps(on, 'scaling', 4, (release) => {
    const values = (mode: readonly string[]): readonly string[] => [...valuesOf('02-redis'), ...mode];
    const switched = async (mode: readonly string[]): Promise<string> => {
      const note = await release.during({ min: 3, max: 4 }, async () => {
        await release.upgrade(values(mode));
        await sleep(observedMs);
      });
      await release.matchesManifest();
      const left = await release.orphans();
      mustBe(left.length === 0, `left behind: ${left.join(', ')}`);
      return note;
    };
    return {
      'a count of 3': () => release.install(values(counted)),
      'to HPA': () => switched(byHpa),
      'to KEDA': () => switched(byKeda),
      'back to HPA': () => switched(byHpa),
      'back to a count of 3': () => switched(counted),
      'rollback to HPA': () => release.during({ min: 3, max: 4 }, () => release.rollback(2)),
    };
  });

/** Three pods under what clusters and people do to them. */
export const checkDisruption = (on: On): Promise<void> =>
  steps(on, 'disruption', 4, (release) => {
    const values = [...valuesOf('02-redis'), ...counted];
    const restarted = async (): Promise<void> => {
      await release.kubectl(['rollout', 'restart', release.deployment]);
      await release.rolledOut();
    };
    return {
      'install --wait': () => release.install(values),
      'rollout restart': () => release.during({ min: 3, max: 4 }, restarted),
      'all pods evicted at once: one is away at a time': () => evicted(release),
      'pods that never become ready take none away, and are rolled back': () => broken(release, values),
      'a number set by kubectl scale is not undone silently': () => scaledByHand(release, values),
    };
  });

/** The budget lets one pod go at a time; whoever may not evict asks again, as `kubectl drain` does. */
const evicted = (release: Release): Promise<string> =>
  release.during({ min: 2, max: 3 }, async () => {
    const names = (await release.kubectl(['get', 'pods', '-o', 'jsonpath={.items[*].metadata.name}'])).split(
      ' ',
    );
    let refusals = 0;
    const evict = (name: string): Promise<void> =>
      until(`${name} is evicted`, 120_000, async () => {
        const path = `/api/v1/namespaces/${release.namespace}/pods/${name}/eviction`;
        const metadata = { name, namespace: release.namespace };
        const eviction = { apiVersion: 'policy/v1', kind: 'Eviction', metadata };
        const [status] = await release.client.request('POST', path, eviction);
        if (status === 429) refusals += 1;
        return status === 201;
      });
    await Promise.all(names.map(evict));
    await release.untilReady(3);
    mustBe(refusals > 0, 'the budget refused no eviction');
  });

async function broken(release: Release, values: readonly string[]): Promise<string> {
  const unready = ['--set-string', 'podAnnotations.verify/ready=false'];
  const rollingBack = ['--rollback-on-failure', '--timeout', '25s'];
  const note = await release.during({ min: 3, max: 4 }, async () => {
    const upgrade = release.run(['upgrade', 's', chart, ...values, ...unready, ...rollingBack]);
    mustBe(
      await upgrade.then(
        () => false,
        () => true,
      ),
      'the upgrade passed',
    );
  });
  await release.untilReady(3);
  return note;
}

/** Server-side apply finds that somebody else owns the number; forced, it takes it over. */
async function scaledByHand(release: Release, values: readonly string[]): Promise<void> {
  await release.kubectl(['scale', release.deployment, '--replicas', '4']);
  await release.rolledOut();
  const said = await release.upgrade(values).then(() => 'it passed', String);
  mustBe(said.includes('conflict with "kubectl"'), `an upgrade with another number: ${said}`);
  await release.upgrade([...values, '--force-conflicts']);
  await release.untilReady(3);
}

/** The API server knows every field of every object, hooks included. */
async function strict({ client, namespace, helm }: Release, options: readonly string[]): Promise<void> {
  const versions = (await client.kubectl(['api-versions'])).split('\n').filter((line) => line !== '');
  const served = versions.flatMap((version) => ['--api-versions', version]);
  const [, text] = await client.request('GET', '/version');
  const { gitVersion } = JSON.parse(text) as { readonly gitVersion: string };
  const template = ['template', 's', chart, ...options, '--kube-version', gitVersion, ...served];
  const { stdout } = await client.helm(helm, [...template, '-n', namespace]);
  const strictly = ['apply', '-n', namespace, '--server-side', '--dry-run=server', '--validate=strict'];
  withoutWarning(await client.output([...strictly, '-f', '-'], stdout));
}

async function unchanged(release: Release, options: readonly string[]): Promise<void> {
  const before = await release.generations();
  await release.upgrade(options);
  mustBe((await release.generations()) === before, 'an object was changed');
}

/** One more than wanted at any time, and never fewer. */
async function replaced(release: Release, options: readonly string[]): Promise<string> {
  const count = await release.replicas();
  return release.during({ min: count, max: count + 1 }, () =>
    release.upgrade([...options, '--set', 'podAnnotations.changed=yes']),
  );
}

async function rolledBack(release: Release): Promise<string> {
  const count = await release.replicas();
  const first = await release.manifest(['--revision', '1']);
  const note = await release.during({ min: count, max: count + 1 }, () => release.rollback(1));
  mustBe((await release.manifest()) === first, 'the manifest is not that of revision 1');
  const changed = await release.field('.spec.template.metadata.annotations.changed');
  mustBe(changed === '', 'the annotation of the upgrade is still there');
  return note;
}

async function tested(release: Release): Promise<string> {
  const { stdout } = await release.run(['get', 'hooks', 's']);
  if (!stdout.includes('helm.sh/hook: test')) return 'this file switches it off';
  await release.change(['test', 's', '--timeout', '120s']);
  mustBe(!(await release.kubectl(['get', 'pods', '-o', 'name'])).includes('-test'), 'the test pod stays');
  return '';
}
