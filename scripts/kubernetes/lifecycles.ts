/** Value files and modes of scaling, installed by Helm: accepted strictly, upgraded, rolled back, tested, removed. */
import { setTimeout as sleep } from 'node:timers/promises';
import { chart } from '../packaging/generated.mjs';
import type { Report } from '../report.ts';
import { warnings, type Client, type Helm } from './client.ts';
import { createNamespace } from './namespace.ts';
import { Release } from './release.ts';
import { type ValueSet, valuesOf } from './value-sets.ts';

export async function checkLifecycle(
  client: Client,
  report: Report,
  { name, options }: ValueSet,
  helm: Helm,
): Promise<void> {
  const release = new Release(client, `h${helm}-${name}`, helm);
  const check = (what: string, run: () => Promise<string | void>): Promise<boolean> =>
    report.run(`helm ${helm}, ${name}: ${what}`, run);
  await createNamespace(client, release.namespace);
  await check('accepted strictly, without a warning', () => strict(release, options));
  const installed = await check('install --wait', () => release.install(options));
  if (!installed) return;
  await check('the same values again change nothing', async () => {
    await release.settled();
    const before = await release.generations();
    await release.upgrade(options);
    if ((await release.generations()) !== before) throw new Error('an object was changed');
    await release.matchesManifest();
  });
  await check('upgrade with new pods', () => replaced(release, options));
  await check('rollback', () => rolledBack(release));
  await check('test hook, simulated', () => tested(release));
  await check('no warning event', async () => {
    const found = await release.warningEvents();
    if (found.length > 0) throw new Error(found.join('\n'));
  });
  await check('uninstall leaves nothing', () => release.uninstall());
  await client.kubectl(['delete', 'namespace', release.namespace, '--wait=false']);
}

/** A release of helm 3 in the hands of helm 4. */
export async function checkHandover(client: Client, report: Report): Promise<void> {
  const options = valuesOf('02-redis');
  const release = new Release(client, 'handover', 3);
  await createNamespace(client, release.namespace);
  const check = (what: string, run: () => Promise<string | void>): Promise<boolean> =>
    report.run(`helm 3, then 4: ${what}`, run);
  const installed = await check('helm 4 alone changes nothing', async () => {
    await release.install(options);
    const before = await release.generations();
    release.helm = 4;
    await release.upgrade(options);
    if ((await release.generations()) !== before) throw new Error('helm 4 changed an object of helm 3');
  });
  if (!installed) return;
  await check('upgrade with new pods', () => replaced(release, options));
  await check('rollback', () => rolledBack(release));
  await check('uninstall leaves nothing', () => release.uninstall());
}

/** Time in which a pod that is not wanted any more would go. Milliseconds. */
const OBSERVED_MS = 7_000;
const scaled = ['--set', 'autoscaling.minReplicas=3', '--set', 'autoscaling.maxReplicas=9'];
const modes: readonly (readonly [name: string, options: readonly string[]])[] = [
  ['a count of 3', ['--set', 'replicaCount=3']],
  ['HPA', ['--set', 'autoscaling.hpa=true', ...scaled]],
  ['KEDA', ['--set', 'autoscaling.keda=true', ...scaled]],
  ['HPA', ['--set', 'autoscaling.hpa=true', ...scaled]],
  ['a count of 3', ['--set', 'replicaCount=3']],
];

/** One release through every way to scale and back: no pod is missed, and nothing stays behind. */
export async function checkScaling(client: Client, report: Report): Promise<void> {
  const release = new Release(client, 'scaling', 4);
  await createNamespace(client, release.namespace);
  let from = 'nothing';
  for (const [name, options] of modes) {
    const values = [...valuesOf('02-redis'), ...options];
    const passed = await report.run(`scaling: ${from} → ${name}`, async () => {
      if (from === 'nothing') return release.install(values);
      return switched(release, values);
    });
    if (!passed) return;
    from = name;
  }
  await report.run(`scaling: ${from} → rollback to HPA`, () =>
    release.during({ min: 3, max: 4 }, async () => {
      await release.rollback(2);
      await sleep(OBSERVED_MS);
    }),
  );
  await report.run('scaling: uninstall leaves nothing', () => release.uninstall());
}

async function switched(release: Release, values: readonly string[]): Promise<string> {
  const note = await release.during({ min: 3, max: 4 }, async () => {
    await release.upgrade(values);
    await sleep(OBSERVED_MS);
  });
  await release.matchesManifest();
  const left = await release.orphans();
  if (left.length > 0) throw new Error(`left behind: ${left.join(', ')}`);
  return note;
}

/** The API server knows every field of every object, hooks included. */
async function strict(release: Release, options: readonly string[]): Promise<void> {
  const { client, namespace } = release;
  const versions = (await client.kubectl(['api-versions'])).split('\n').filter((line) => line !== '');
  const served = versions.flatMap((version) => ['--api-versions', version]);
  const { stdout } = await release.run([
    'template',
    release.name,
    chart,
    ...options,
    '--kube-version',
    await client.serverVersion(),
    ...served,
  ]);
  const strictly = ['apply', '-n', namespace, '--server-side', '--dry-run=server', '--validate=strict'];
  const said = warnings(await client.output([...strictly, '-f', '-'], stdout));
  if (said.length > 0) throw new Error(said.join('\n'));
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
  if ((await release.manifest()) !== first) throw new Error('the manifest is not that of revision 1');
  if ((await release.field('.spec.template.metadata.annotations.changed')) !== '')
    throw new Error('the annotation of the upgrade is still there');
  return note;
}

async function tested(release: Release): Promise<string> {
  const { stdout } = await release.run(['get', 'hooks', release.name]);
  if (!stdout.includes('helm.sh/hook: test')) return 'this file switches it off';
  await release.change(['test', release.name, '--timeout', '120s']);
  const pods = await release.kubectl(['get', 'pods', '-o', 'name']);
  if (/-test/.test(pods)) throw new Error('the test pod stays');
  return '';
}

/** The namespaces of this run refuse what is not "restricted". */
export async function enforcesRestricted(client: Client): Promise<void> {
  await createNamespace(client, 'refuses');
  const privileged = ['-n', 'refuses', 'run', 'any', '--image', 'none', '--dry-run=server'];
  const said = await client.output(privileged).then(
    () => 'accepted',
    (failure: unknown) => String(failure),
  );
  if (!said.includes('violates PodSecurity')) throw new Error(`a pod without the settings: ${said}`);
}
