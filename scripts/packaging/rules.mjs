/**
 * What neither Helm's schema nor the API server can say of the objects of one release: selectors that match, names and ports that
 * exist, autoscalers that own the replicas, and this chart's own promises (probes, drain, no token, nothing that is never updated).
 */
import { parse } from 'yaml';
import { nameOf } from './documents.mjs';
import { broken } from './report.mjs';

const podOf = ({ kind, metadata, spec }) => {
  if (kind === 'Pod') return { labels: metadata.labels ?? {}, spec };
  if (kind !== 'Deployment') return null;
  return { labels: spec.template.metadata.labels ?? {}, spec: spec.template.spec };
};
const matches = (selector, labels) =>
  Object.entries(selector ?? {}).every(([key, value]) => labels[key] === value);
const containersOf = (spec) => [...(spec.initContainers ?? []), ...spec.containers];

const podProblems = ({ spec }) => [
  ...broken(
    [spec.automountServiceAccountToken === false, 'mounts a service account token'],
    [spec.enableServiceLinks === false, 'has service links'],
  ),
  ...containersOf(spec).flatMap(({ name, image, resources, securityContext, volumeMounts = [] }) =>
    broken(
      [securityContext?.readOnlyRootFilesystem === true, 'may write its root'],
      [resources?.limits?.memory && resources.limits['ephemeral-storage'], 'has no bounds'],
      [/[:@]/.test(image) && !image.endsWith(':latest'), 'has no fixed image'],
      [volumeMounts.every(({ subPath }) => subPath === undefined), 'mounts by subPath, never updated'],
    ).map((text) => `container ${name} ${text}`),
  ),
];

/** The gateway's own promises. */
function gatewayProblems({ spec: { selector, template } }) {
  const container = template.spec.containers.find(({ name }) => name === 'sluice');
  if (container === undefined) return [];
  const { livenessProbe, startupProbe, readinessProbe } = container;
  const sleep = container.lifecycle?.preStop?.sleep?.seconds ?? 0;
  return broken(
    [livenessProbe?.httpGet.path === '/livez', 'liveness asks something else than /livez'],
    [startupProbe?.httpGet.path === '/livez', 'startup asks something else than /livez'],
    [readinessProbe?.httpGet.path === '/readyz', 'readiness asks something else than /readyz'],
    [
      [livenessProbe, startupProbe, readinessProbe].every((probe) => probe?.httpGet.port === 'admin'),
      'a probe is not on the admin port',
    ],
    [startupProbe?.initialDelaySeconds > 0, 'the startup probe asks before the process can listen'],
    [
      Object.keys(selector.matchLabels).every((key) => /\/(name|instance)$/.test(key)),
      'the selector holds more than name and instance',
    ],
    [
      template.spec.terminationGracePeriodSeconds >= sleep + 5,
      'the grace period is shorter than preStop + 5',
    ],
  );
}

/** A pod that has never reached Redis takes 1 / `redis.replicas` of every limit: that number has to count all pods there can be. */
function shareProblems(objects) {
  const config = objects.find(({ kind, data }) => kind === 'ConfigMap' && data['sluice.yaml']);
  const { redis } = config === undefined ? {} : parse(config.data['sluice.yaml']);
  if (redis === undefined) return [];
  const counts = objects.flatMap(({ kind, metadata, spec }) => {
    if (kind === 'HorizontalPodAutoscaler') return spec.maxReplicas;
    if (kind === 'ScaledObject') return spec.maxReplicaCount;
    return kind === 'Deployment' && metadata.name === config.metadata.name ? (spec.replicas ?? []) : [];
  });
  const most = Math.max(...counts);
  return broken([
    redis.replicas === most,
    `redis.replicas is ${redis.replicas}, but there can be ${most} pods`,
  ]);
}

/** What this object says of others. */
function relationProblems({ kind, spec }, objects) {
  const pods = objects.flatMap((object) => podOf(object) ?? []);
  const named = (wanted, name) =>
    objects.find((object) => object.kind === wanted && object.metadata.name === name);
  switch (kind) {
    case 'Service': {
      const found = pods.filter(({ labels }) => matches(spec.selector, labels));
      const ports = found.flatMap((pod) => containersOf(pod.spec).flatMap((one) => one.ports ?? []));
      return broken(
        [found.length === 1, `selects ${found.length} kinds of pods`],
        [
          spec.ports.every(({ targetPort }) => ports.some(({ name }) => name === targetPort)),
          'points to a port that no pod has',
        ],
      );
    }
    case 'NetworkPolicy':
    case 'PodDisruptionBudget': {
      const { matchLabels } = spec.podSelector ?? spec.selector;
      return broken([pods.some(({ labels }) => matches(matchLabels, labels)), 'selects no pod']);
    }
    case 'ServiceMonitor':
    case 'PodMonitor': {
      const services = objects.filter((object) => object.kind === 'Service');
      const candidates = kind === 'PodMonitor' ? pods : services.map(({ metadata }) => metadata);
      const count = candidates.filter(({ labels }) => matches(spec.selector.matchLabels, labels)).length;
      return broken([count === 1, `selects ${count} targets`]);
    }
    case 'HorizontalPodAutoscaler':
    case 'ScaledObject': {
      const target = named('Deployment', spec.scaleTargetRef.name);
      return broken(
        [target !== undefined, 'scales nothing'],
        [target?.spec.replicas === undefined, 'shares the replicas with the Deployment'],
        [(spec.minReplicas ?? spec.minReplicaCount) >= 1, 'may scale to zero'],
      );
    }
    default: {
      const rules = spec?.rules ?? [];
      const backends = [
        ...rules.flatMap(({ backendRefs = [] }) => backendRefs.map(({ name }) => name)),
        ...rules.flatMap(({ http }) => (http?.paths ?? []).map(({ backend }) => backend.service?.name)),
      ];
      return backends
        .filter((name) => named('Service', name) === undefined || name.endsWith('-admin'))
        .map((name) => `routes to ${name}`);
    }
  }
}

/** @param {object[]} objects of one release. @returns {string[]} problems */
export function ruleProblems(objects) {
  const names = objects.map(nameOf);
  const of = (object) => [
    ...(podOf(object) === null ? [] : podProblems(podOf(object))),
    ...(object.kind === 'Deployment' ? gatewayProblems(object) : []),
    ...relationProblems(object, objects),
  ];
  return [
    ...names.filter((name, at) => names.indexOf(name) !== at).map((name) => `${name}: is there twice`),
    ...shareProblems(objects),
    ...objects.flatMap((object) => of(object).map((problem) => `${nameOf(object)}: ${problem}`)),
  ];
}
