/**
 * What controllers would report, reduced to what `--wait`, `rollout status` and test hooks look at. Nothing runs:
 * a "ready" pod here says only that the manifest was accepted. The annotation stand-in/exit-code on a Pod makes it fail.
 */
import { createHash } from 'node:crypto';

const condition = (type, reason, status = 'True') => ({ type, status, reason });

/** @returns {object | undefined} status to report a moment after the object was written */
export function statusOf(object) {
  const { kind, spec, metadata } = object;
  if (kind === 'Deployment') {
    const count = spec.replicas ?? 1;
    const counts = {
      replicas: count,
      updatedReplicas: count,
      readyReplicas: count,
      availableReplicas: count,
    };
    const conditions = [
      condition('Available', 'MinimumReplicas'),
      condition('Progressing', 'NewReplicaSetAvailable'),
    ];
    return { observedGeneration: metadata.generation, ...counts, conditions };
  }
  if (kind === 'Pod') {
    const exitCode = Number(metadata.annotations?.['stand-in/exit-code'] ?? 0);
    const state = { terminated: { exitCode, reason: exitCode === 0 ? 'Completed' : 'Error' } };
    const containerStatuses = spec.containers.map(({ name }) => ({ name, ready: false, state }));
    return {
      phase: exitCode === 0 ? 'Succeeded' : 'Failed',
      containerStatuses,
      conditions: [condition('Ready', 'PodCompleted', 'False')],
    };
  }
  if (kind === 'PodDisruptionBudget')
    return { observedGeneration: metadata.generation, disruptionsAllowed: 1 };
  if (kind === 'Service')
    return { loadBalancer: spec.type === 'LoadBalancer' ? { ingress: [{ ip: '192.0.2.1' }] } : {} };
  return undefined;
}

/** The ReplicaSet of a Deployment, which helm 3 looks up by owner and pod template. */
export function replicaSetOf(deployment) {
  const { name, namespace, uid } = deployment.metadata;
  const hash = createHash('sha256')
    .update(JSON.stringify(deployment.spec.template))
    .digest('hex')
    .slice(0, 10);
  const count = deployment.spec.replicas ?? 1;
  return {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: {
      name: `${name}-${hash}`,
      namespace,
      labels: deployment.spec.template.metadata.labels,
      ownerReferences: [{ apiVersion: 'apps/v1', kind: 'Deployment', name, uid, controller: true }],
    },
    spec: { replicas: count, selector: deployment.spec.selector, template: deployment.spec.template },
    status: { observedGeneration: 1, replicas: count, readyReplicas: count, availableReplicas: count },
  };
}
