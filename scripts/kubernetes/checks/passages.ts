/** One release through every value file and back: nothing immutable changes, nothing stays behind, no pod is missed. */
import type { Helm } from '../cluster/client.ts';
import { createNamespace } from '../cluster/namespace.ts';
import { Release } from '../cluster/release.ts';
import type { ValueSet } from '../value-sets.ts';
import type { Scene } from './scene.ts';

export async function checkPassages(
  { client, report, chart, version }: Scene,
  sets: readonly ValueSet[],
  helm: Helm,
): Promise<void> {
  const release = new Release(client, `h${helm}-passages`, chart, helm);
  await createNamespace(client, release.namespace);
  const title = `${version}, helm ${helm}, one release through every value file and back`;
  let from: ValueSet | null = null;
  for (const set of [...sets, ...sets.toReversed().slice(1)]) {
    const name = `${title}: ${from === null ? 'installed as' : `${from.name} →`} ${set.name}`;
    const passed = await report.check(name, () =>
      passage(release, { scene: name, set, first: from === null, report }),
    );
    if (!passed) return report.skip(`${title}: the rest`, `it stopped at ${set.name}`);
    from = set;
  }
  await report.check(`${title}: uninstall leaves nothing`, () => release.uninstall());
  await client.kubectl(['delete', 'namespace', release.namespace, '--wait=false']);
}

interface Step {
  readonly scene: string;
  readonly set: ValueSet;
  readonly first: boolean;
  readonly report: Scene['report'];
}

async function passage(release: Release, { scene, set, first, report }: Step): Promise<string> {
  if (first) {
    await release.install(set.options);
    return '';
  }
  const before = await release.replicas();
  // A file that allows one pod takes the others away: that is what it says.
  const wanted = await statedCount(release, set);
  const min = Math.min(before, wanted);
  const max = Math.max(before, wanted) + 1;
  const note = await release.during(report, { name: scene, min, max }, () => release.upgrade(set.options));
  await release.matchesManifest();
  const left = await release.orphans();
  if (left.length > 0) throw new Error(`left behind: ${left.join(', ')}`);
  return note;
}

/** The number that the file states, or the one that runs. */
async function statedCount(release: Release, { options }: ValueSet): Promise<number> {
  const args = ['upgrade', '--install', release.name, release.chart, ...options, '--dry-run=server'];
  const { stdout } = await release.run(args);
  const stated = /^kind: Deployment[\s\S]*?^spec:\n {2}replicas: (\d+)$/m.exec(
    stdout.slice(stdout.indexOf('templates/deployment.yaml')),
  );
  return stated?.[1] === undefined ? release.replicas() : Number(stated[1]);
}
