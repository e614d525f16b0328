/**
 * Switches of the autoscaler with real helm against the stand-in: whatever the mode before and after, no write of the
 * Deployment asks for fewer pods than ran before the upgrade. The stand-in sets 1 where `replicas` is missing, as an API
 * server does, and has no autoscaler: the number that one would have set is written here. It keeps no owners of fields:
 * what depends on them is shown on a real API server only.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { chart } from './generated.mjs';
import { open } from './lifecycle.mjs';
import { check } from './report.mjs';
import { kindOf } from './standin/kinds.mjs';

const run = promisify(execFile);
const deployments = kindOf('apps/v1', 'deployments');
const shared = ['--set', 'redis.existingSecret.name=r', '--set', 'privacy.labelKey.existingSecret.name=p'];
const modes = {
  'a count of 3': ['--set', 'replicaCount=3'],
  'no count': [],
  HPA: ['--set', 'autoscaling.hpa=true', '--set', 'autoscaling.minReplicas=2'],
  KEDA: ['--set', 'autoscaling.keda=true', '--set', 'autoscaling.minReplicas=2'],
  'HPA and a count of 3': ['--set', 'autoscaling.hpa=true', '--set', 'replicaCount=3'],
};
/** Each names the modes of one release, one upgrade each; a number is what an autoscaler sets between two upgrades. */
const journeys = [
  ['a count of 3', 'HPA', 5, 'HPA', 'KEDA', 4, 'a count of 3', 'HPA'],
  ['a count of 3', 'HPA and a count of 3', 6, 'a count of 3', 'KEDA', 'no count'],
  ['no count', 'KEDA', 4, 'HPA', 5, 'no count', 'HPA', 'KEDA', 'a count of 3'],
  ['HPA', 5, 'HPA', 'no count', 'KEDA', 6, 'KEDA', 'HPA', 'a count of 3', 'KEDA'],
  ['KEDA', 4, 'a count of 3', 'no count', 'HPA'],
];

const liveOf = (session) => session.store.get(deployments, 'sluice', 'v-sluice');

/** @returns {Promise<string[]>} a line for each upgrade that asked for fewer pods than ran */
async function problemsOf(helmOf, journey) {
  const session = await open();
  const problems = [];
  let [mode, step] = ['nothing', 0];
  try {
    for (const next of journey) {
      const before = liveOf(session);
      if (typeof next === 'number') {
        session.store.put(deployments, { ...before, spec: { ...before.spec, replicas: next } });
        continue;
      }
      const asked = [];
      const stop = session.store.watch(deployments, 0, ({ object }) => asked.push(object.spec.replicas));
      const options = ['upgrade', '--install', 'v', chart, ...shared, ...modes[next]];
      const changed = ['--set', `podAnnotations.step=s${step}`];
      await run(helmOf(step), [...options, ...changed], { timeout: 90_000, env: session.env });
      stop();
      const min = Math.min(...asked);
      if (before && min < before.spec.replicas)
        problems.push(`from ${mode} to ${next}: ${before.spec.replicas} pods ran, ${min} were asked for`);
      if (asked.length === 0) problems.push(`from ${mode} to ${next}: the Deployment was not written`);
      [mode, step] = [next, step + 1];
    }
    return problems;
  } finally {
    await session.close();
  }
}

/** A stated number that is under what the autoscaler set is kept once, and then holds. */
async function countProblems(helm) {
  const session = await open();
  const upgrade = async (mode) => {
    await run(helm, ['upgrade', '--install', 'v', chart, ...shared, ...modes[mode]], {
      timeout: 90_000,
      env: session.env,
    });
    return liveOf(session).spec.replicas;
  };
  try {
    await upgrade('a count of 3');
    await upgrade('HPA');
    const running = liveOf(session);
    session.store.put(deployments, { ...running, spec: { ...running.spec, replicas: 5 } });
    const counts = [await upgrade('a count of 3'), await upgrade('a count of 3'), await upgrade('no count')];
    return `${counts}` === '5,3,3' ? [] : [`the counts are ${counts}, not 5,3,3`];
  } finally {
    await session.close();
  }
}

export async function switchChecks({ helm3, helm4 }) {
  const helms = {
    'helm 3': () => helm3,
    'helm 4': () => helm4,
    'installed by helm 3, then helm 4': (step) => (step === 0 ? helm3 : helm4),
  };
  for (const [name, helmOf] of Object.entries(helms)) {
    for (const journey of journeys)
      await check(`${name}: never fewer pods: ${journey.join(' → ')}`, () => problemsOf(helmOf, journey));
    await check(`${name}: a count stated under an autoscaler's number is kept once, then holds`, () =>
      countProblems(helmOf(1)),
    );
  }
}
