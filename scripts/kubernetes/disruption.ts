/** Three pods under what clusters do to them: restarts, drains, broken upgrades, changes by hand. */
import { chart } from '../packaging/generated.mjs';
import type { Report } from '../report.ts';
import type { Client } from './client.ts';
import { createNamespace } from './namespace.ts';
import { Release } from './release.ts';
import { valuesOf } from './value-sets.ts';

const COUNT = 3;
/** Drains take the pods with this label only: other checks run on the same nodes. */
const DRAINED = 'verify/drained=yes';
const drainable = ['--set-string', `podLabels.${DRAINED}`];
const values = [...valuesOf('02-redis'), '--set', `replicaCount=${COUNT}`, ...drainable];

export async function checkDisruption(client: Client, report: Report): Promise<void> {
  const release = new Release(client, 'disruption', 4);
  const check = (what: string, run: () => Promise<string | void>): Promise<boolean> =>
    report.run(`three pods: ${what}`, run);
  await createNamespace(client, release.namespace);
  if (!(await check('install --wait', () => release.install(values)))) return;
  await check('rollout restart', () =>
    release.during({ min: COUNT, max: COUNT + 1 }, async () => {
      await release.kubectl(['rollout', 'restart', `deployment/${release.deployment}`]);
      await release.rolledOut();
    }),
  );
  await check('two nodes drained at once: one pod is away at a time', () => drained(release));
  await check('a release whose pods never become ready takes no pod away and is rolled back', () =>
    broken(release),
  );
  await check('a number set by kubectl scale is not undone silently', () => scaledByHand(release));
  await check('uninstall leaves nothing', () => release.uninstall());
}

/** Drains two of the nodes that hold pods, both at once. The budget lets one pod go at a time. */
async function drained(release: Release): Promise<string> {
  const { client } = release;
  const count = await release.replicas();
  const label = ['-l', `app.kubernetes.io/instance=${release.name}`];
  const on = await release.kubectl(['get', 'pods', ...label, '-o', 'jsonpath={.items[*].spec.nodeName}']);
  const nodes = [...new Set(on.split(' '))].slice(0, 2);
  if (nodes.length < 2) throw new Error(`all pods are on ${on}: the drain of two nodes shows nothing`);
  const only = ['--pod-selector', DRAINED];
  const options = ['--ignore-daemonsets', '--delete-emptydir-data', '--timeout', '240s', ...only];
  try {
    return await release.during({ min: count - 1, max: count }, async () => {
      await Promise.all(nodes.map((node) => client.kubectl(['drain', node, ...options])));
      await release.untilReady(count);
    });
  } finally {
    for (const node of nodes) await client.kubectl(['uncordon', node]);
  }
}

const unready = ['--set-string', 'podAnnotations.verify/ready=false'];

async function broken(release: Release): Promise<string> {
  const note = await release.during({ min: COUNT, max: COUNT + 1 }, async () => {
    const upgrade = [
      'upgrade',
      release.name,
      chart,
      ...values,
      ...unready,
      '--rollback-on-failure',
      '--timeout',
      '25s',
    ];
    const passed = await release.run(upgrade).then(
      () => true,
      () => false,
    );
    if (passed) throw new Error('the upgrade passed');
  });
  await release.untilReady(COUNT);
  return note;
}

/** Server-side apply finds that somebody else owns the number; forced, it takes it over. */
async function scaledByHand(release: Release): Promise<void> {
  await release.kubectl(['scale', 'deployment', release.deployment, '--replicas', '4']);
  await release.rolledOut();
  const said = await release.upgrade(values).then(
    () => 'it passed',
    (failure: unknown) => String(failure),
  );
  if (!/conflict with "kubectl"/.test(said)) throw new Error(`an upgrade with another number: ${said}`);
  await release.upgrade([...values, '--force-conflicts']);
  await release.untilReady(COUNT);
}
