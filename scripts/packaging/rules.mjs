/**
 * What no single object's type can say: selectors that match, names and ports that exist, autoscalers that own the
 * replicas, the "restricted" Pod Security Standard, and this chart's own promises (probes, drain, no tokens).
 */
import { parse } from 'yaml';
import { nameOf } from './documents.mjs';

const podOf = (object) =>
  object.kind === 'Pod'
    ? { labels: object.metadata.labels ?? {}, spec: object.spec }
    : object.kind === 'Deployment'
      ? { labels: object.spec.template.metadata.labels ?? {}, spec: object.spec.template.spec }
      : null;
const matches = (selector, labels) =>
  Object.entries(selector ?? {}).every(([key, value]) => labels[key] === value);
const containersOf = (spec) => [...(spec.initContainers ?? []), ...spec.containers];
const repeated = (values) =>
  values.filter((value, index) => value !== undefined && values.indexOf(value) !== index);

/** Problems of one pod. */
function podProblems({ spec }) {
  const problems = [];
  const expect = (holds, text) => holds || problems.push(text);
  expect(spec.automountServiceAccountToken === false, 'mounts a service account token');
  expect(spec.enableServiceLinks === false, 'has service links');
  expect(!spec.hostNetwork && !spec.hostPID && !spec.hostIPC, 'uses the host');
  const pod = spec.securityContext ?? {};
  for (const container of containersOf(spec)) {
    const own = container.securityContext ?? {};
    const named = (text) => `container ${container.name} ${text}`;
    expect((own.runAsNonRoot ?? pod.runAsNonRoot) === true, named('may run as root'));
    expect((own.runAsUser ?? pod.runAsUser) !== 0, named('runs as root'));
    expect(
      (own.seccompProfile ?? pod.seccompProfile)?.type === 'RuntimeDefault',
      named('has no seccomp profile'),
    );
    expect(own.allowPrivilegeEscalation === false, named('may escalate privileges'));
    expect(own.readOnlyRootFilesystem === true, named('may write its root'));
    expect(own.capabilities?.drop?.includes('ALL') && !own.capabilities.add, named('keeps capabilities'));
    expect(
      container.resources?.requests?.memory && container.resources.limits?.memory,
      named('has no memory bounds'),
    );
    expect(
      container.resources?.requests?.['ephemeral-storage'] &&
        container.resources.limits?.['ephemeral-storage'],
      named('has no bounds of ephemeral storage'),
    );
    expect(!container.image.endsWith(':latest') && /[:@]/.test(container.image), named('has no fixed image'));
    for (const name of repeated((container.env ?? []).map((item) => item.name)))
      expect(false, named(`has ${name} twice`));
    for (const mount of container.volumeMounts ?? []) {
      expect(
        (spec.volumes ?? []).some((volume) => volume.name === mount.name),
        named(`mounts unknown ${mount.name}`),
      );
      expect(
        mount.subPath === undefined,
        named(`mounts ${mount.mountPath} by subPath, which is never updated`),
      );
    }
  }
  return problems;
}

/** The gateway's own promises. */
function gatewayProblems(deployment, pods) {
  const problems = [];
  const expect = (holds, text) => holds || problems.push(text);
  const { spec } = deployment.spec.template;
  const container = spec.containers.find((item) => item.name === 'sluice');
  const at = (probe) => container[probe]?.httpGet?.path;
  expect(
    at('livenessProbe') === '/livez' && at('startupProbe') === '/livez',
    'liveness or startup asks something else than /livez',
  );
  expect(at('readinessProbe') === '/readyz', 'readiness asks something else than /readyz');
  for (const probe of ['livenessProbe', 'startupProbe', 'readinessProbe']) {
    expect(container[probe]?.httpGet?.port === 'admin', `${probe} is not on the admin port`);
  }
  expect(
    container.startupProbe?.initialDelaySeconds > 0,
    'the startup probe asks before the process can listen',
  );
  const keys = Object.keys(deployment.spec.selector.matchLabels);
  expect(
    keys.every((key) => /\/(name|instance)$/.test(key)),
    'the selector holds more than name and instance',
  );
  const others = pods.filter((pod) => pod.object !== deployment);
  const hit = others.find((pod) => matches(deployment.spec.selector.matchLabels, pod.labels));
  expect(hit === undefined, `the selector finds ${hit && nameOf(hit.object)} too`);
  const sleep = container.lifecycle?.preStop?.sleep?.seconds ?? 0;
  expect(spec.terminationGracePeriodSeconds >= sleep + 5, 'the grace period is shorter than preStop + 5');
  return problems;
}

function serviceProblems(service, pods, problems) {
  const found = pods.filter((pod) => matches(service.spec.selector, pod.labels));
  if (found.length !== 1) problems.push(`selects ${found.length} kinds of pods`);
  const ports = found.flatMap((pod) => containersOf(pod.spec).flatMap((item) => item.ports ?? []));
  for (const { targetPort } of service.spec.ports) {
    if (!ports.some((item) => item.name === targetPort))
      problems.push(`points to port ${targetPort}, which no pod has`);
  }
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
  return redis.replicas === most
    ? []
    : [`redis.replicas is ${redis.replicas}, but there can be ${most} pods`];
}

/** @param {object[]} objects of one release. @returns {string[]} problems */
export function ruleProblems(objects) {
  const pods = objects.flatMap((object) => (podOf(object) ? [{ object, ...podOf(object) }] : []));
  const find = (kind, name) =>
    objects.find((object) => object.kind === kind && object.metadata.name === name);
  const all = [];
  const names = objects.map((object) => nameOf(object));
  for (const name of repeated(names)) all.push(`${name}: is there twice`);
  all.push(...shareProblems(objects));
  for (const object of objects) {
    const problems = [];
    const { kind, spec } = object;
    if (podOf(object)) problems.push(...podProblems(podOf(object)));
    if (kind === 'Deployment') {
      if (!matches(spec.selector.matchLabels, podOf(object).labels))
        problems.push('the selector misses its own pods');
      if (containersOf(podOf(object).spec).some((item) => item.name === 'sluice'))
        problems.push(...gatewayProblems(object, pods));
    }
    if (kind === 'Service') serviceProblems(object, pods, problems);
    if (kind === 'NetworkPolicy' || kind === 'PodDisruptionBudget') {
      const selector = (spec.podSelector ?? spec.selector).matchLabels;
      if (!pods.some((pod) => matches(selector, pod.labels))) problems.push('selects no pod');
    }
    if (kind === 'ServiceMonitor' || kind === 'PodMonitor') {
      const candidates =
        kind === 'PodMonitor'
          ? pods.map((pod) => pod.labels)
          : objects.filter((item) => item.kind === 'Service').map((item) => item.metadata.labels);
      const count = candidates.filter((labels) => matches(spec.selector.matchLabels, labels)).length;
      if (count !== 1) problems.push(`selects ${count} targets`);
    }
    if (kind === 'HorizontalPodAutoscaler' || kind === 'ScaledObject') {
      const target = find('Deployment', spec.scaleTargetRef.name);
      if (target === undefined) problems.push('scales nothing');
      else if (target.spec.replicas !== undefined) problems.push('shares the replicas with the Deployment');
      if ((spec.minReplicas ?? spec.minReplicaCount) < 1) problems.push('may scale to zero');
    }
    const backends = [
      ...(spec?.rules ?? []).flatMap((rule) => rule.backendRefs ?? []).map((item) => item.name),
      ...(spec?.rules ?? [])
        .flatMap((rule) => rule.http?.paths ?? [])
        .map((item) => item.backend.service.name),
    ];
    for (const name of backends) {
      if (find('Service', name) === undefined || name.endsWith('-admin')) problems.push(`routes to ${name}`);
    }
    all.push(...problems.map((problem) => `${nameOf(object)}: ${problem}`));
  }
  return all;
}
