/** Which releases live through install, upgrade, test, rollback and uninstall, and with which helm. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chart } from './generated.mjs';
import { lifecycle } from './lifecycle.mjs';
import { check } from './report.mjs';

const change = ['--set', 'podAnnotations.changed=yes', '--set', 'revisionHistoryLimit=3'];
const sets = [
  'ci/02-redis',
  'ci/03-production-hpa',
  'ci/04-keda',
  'ci/10-development-redis',
  'examples/gke-ingress',
];
const file = (name) => ['-f', join(chart, `${name}.yaml`)];

export async function lifecycleChecks({ helm3, helm4 }) {
  const majors = {
    'helm 3': { install: helm3, later: helm3 },
    'helm 4': { install: helm4, later: helm4 },
    'installed by helm 3, then helm 4': { install: helm3, later: helm4 },
  };
  for (const [name, helms] of Object.entries(majors)) {
    await check(`${name}: install --wait, upgrade, test, rollback, uninstall: default values`, () =>
      lifecycle(helms, [], change),
    );
    for (const set of sets)
      await check(`${name}: the same: ${set}`, () => lifecycle(helms, file(set), change));
  }
  await check('a failing test pod makes helm test fail', () => failingTestProblems(helm4));
}

async function failingTestProblems(helm) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-fails-'));
  const values = join(folder, 'values.json');
  writeFileSync(values, JSON.stringify({ extraObjects: [failingTest] }));
  try {
    await lifecycle({ install: helm, later: helm }, ['-f', values], change);
    return ['helm test passed'];
  } catch (error) {
    return /helm4 test v/.test(error.message) && /fails/.test(error.message)
      ? []
      : [`another failure: ${error.message}`];
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A test hook that the stand-in lets fail. */
const failingTest = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'fails', annotations: { 'helm.sh/hook': 'test', 'stand-in/exit-code': '1' } },
  spec: { restartPolicy: 'Never', containers: [{ name: 'fails', image: 'none:1' }] },
};
