/** Defects that a control plane with simulated pods can find. */
import type { Helm } from '../cluster/client.ts';
import { createNamespace } from '../cluster/namespace.ts';
import { Release } from '../cluster/release.ts';
import { defects, finds } from '../planted.ts';
import type { Report } from '../report.ts';
import { valuesOf } from '../value-sets.ts';
import { drainable, drained } from './disruption.ts';
import { replaced } from './lifecycles.ts';
import type { Scene } from './scene.ts';
import { setTimeout as sleep } from 'node:timers/promises';

const values = [...valuesOf('02-redis'), '--set', 'replicaCount=3', ...drainable];

export async function checkDefects({ client, report, version }: Scene, helm: Helm): Promise<void> {
  const on =
    (what: (release: Release, unseen: Report) => Promise<unknown>) =>
    async (chart: string, unseen: Report): Promise<void> => {
      const release = new Release(client, `h${helm}-defect`, chart, helm);
      await createNamespace(client, release.namespace);
      try {
        await release.install(values);
        await what(release, unseen);
      } finally {
        await client.kubectl(['delete', 'namespace', release.namespace, '--wait']);
      }
    };
  const check = (name: string, run: () => Promise<string>): Promise<boolean> =>
    report.check(`${version}, helm ${helm}, planted: ${name}`, run);
  await check(defects.unavailable.name, () =>
    finds(
      defects.unavailable,
      /fewer than 3 were ready/,
      on((release, unseen) => replaced(release, unseen, 'defect', values)),
    ),
  );
  await check(defects.budget.name, () =>
    finds(
      defects.budget,
      /fewer than 2 were ready/,
      on((release, unseen) => drained(release, unseen, 'defect')),
    ),
  );
  await check(defects.replicas.name, () => finds(defects.replicas, /fewer than 3 were ready/, on(switched)));
}

async function switched(release: Release, unseen: Report): Promise<void> {
  const hpa = ['--set', 'autoscaling.hpa=true', '--set', 'autoscaling.minReplicas=3'];
  await release.during(unseen, { name: 'defect', min: 3, max: 4 }, async () => {
    await release.upgrade([...valuesOf('02-redis'), ...hpa]);
    await sleep(5000);
  });
}
