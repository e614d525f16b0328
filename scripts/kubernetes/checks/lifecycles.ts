/** Every example value file, with both helms: accepted strictly, installed, upgraded, rolled back, tested, removed. */
import type { Client, Helm } from '../cluster/client.ts';
import { warnings } from '../cluster/client.ts';
import { createNamespace } from '../cluster/namespace.ts';
import { Release } from '../cluster/release.ts';
import type { Report } from '../report.ts';
import { type ValueSet, valuesOf } from '../value-sets.ts';
import type { Scene } from './scene.ts';

/** @returns a task for each file and helm; they may run at the same time */
export const lifecycles = (
  scene: Scene,
  sets: readonly ValueSet[],
  helms: readonly Helm[],
): (() => Promise<void>)[] => helms.flatMap((helm) => sets.map((set) => () => lifecycle(scene, set, helm)));

async function lifecycle(
  { client, report, chart, version }: Scene,
  { name, options }: ValueSet,
  helm: Helm,
): Promise<void> {
  const release = new Release(client, `h${helm}-${name}`, chart, helm);
  const check = (what: string, run: () => Promise<string | void>): Promise<boolean> =>
    report.check(`${version}, helm ${helm}, ${name}: ${what}`, run);
  await createNamespace(client, release.namespace);
  await check('accepted strictly, without a warning', () => strict(release, options));
  const installed = await check('install --wait', () => release.install(options));
  if (!installed) return report.skip(`${version}, helm ${helm}, ${name}: the rest`, 'not installed');
  await check('the same values again change nothing', async () => {
    await release.settled();
    const before = await release.generations();
    await release.upgrade(options);
    if ((await release.generations()) !== before) throw new Error('an object was changed');
    await release.matchesManifest();
  });
  const label = `${version}, helm ${helm}, ${name}`;
  await check('upgrade with new pods', () => replaced(release, report, `${label}: upgrade`, options));
  await check('rollback', () => rolledBack(release, report, `${label}: rollback`));
  await check('test hook, simulated', () => tested(release));
  await check('no warning event', async () => {
    const found = await release.warningEvents();
    if (found.length > 0) throw new Error(found.join('\n'));
  });
  await check('uninstall leaves nothing', () => release.uninstall());
  await client.kubectl(['delete', 'namespace', release.namespace, '--wait=false']);
}

/** A release of helm 3 in the hands of helm 4. */
export async function checkHandover({ client, report, chart, version }: Scene): Promise<void> {
  const options = valuesOf('02-redis');
  const release = new Release(client, 'handover', chart, 3);
  const label = `${version}, helm 3, then 4`;
  await createNamespace(client, release.namespace);
  const installed = await report.check(`${label}: helm 4 alone changes nothing`, async () => {
    await release.install(options);
    const before = await release.generations();
    release.helm = 4;
    await release.upgrade(options);
    if ((await release.generations()) !== before) throw new Error('helm 4 changed an object of helm 3');
  });
  if (!installed) return;
  await report.check(`${label}: upgrade with new pods`, () =>
    replaced(release, report, `${label}: upgrade`, options),
  );
  await report.check(`${label}: rollback`, () => rolledBack(release, report, `${label}: rollback`));
  await report.check(`${label}: uninstall leaves nothing`, () => release.uninstall());
}

/** The API server knows every field of every object, hooks included. */
async function strict(release: Release, options: readonly string[]): Promise<void> {
  const { client, namespace } = release;
  const versions = (await client.kubectl(['api-versions'])).split('\n').filter((line) => line !== '');
  const served = versions.flatMap((version) => ['--api-versions', version]);
  const { stdout } = await release.run([
    'template',
    release.name,
    release.chart,
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
export async function replaced(
  release: Release,
  report: Report,
  name: string,
  options: readonly string[],
): Promise<string> {
  const count = await release.replicas();
  return release.during(report, { name, min: count, max: count + 1 }, () =>
    release.upgrade([...options, '--set', 'podAnnotations.changed=yes']),
  );
}

export async function rolledBack(release: Release, report: Report, name: string): Promise<string> {
  const count = await release.replicas();
  const first = await release.manifest(['--revision', '1']);
  const note = await release.during(report, { name, min: count, max: count + 1 }, () => release.rollback(1));
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

/** For other checks: what a client can say of the cluster. */
export async function enforcesRestricted(client: Client): Promise<void> {
  await createNamespace(client, 'refuses');
  const privileged = ['-n', 'refuses', 'run', 'any', '--image', 'none', '--dry-run=server'];
  const said = await client.output(privileged).then(
    () => 'accepted',
    (failure: unknown) => String(failure),
  );
  if (!said.includes('violates PodSecurity')) throw new Error(`a pod without the settings: ${said}`);
}
