/**
 * The schema of the chart's values, written once here and generated into helm/sluice/values.schema.json (draft-07, the
 * newest draft that every supported helm knows). Strict, so that a misspelt key is refused; at the root an umbrella chart may
 * pass `global`, and `enabled` for its condition.
 */
import { configJsonSchema } from '../json-schema.ts';
import { formatted } from './manifests.mjs';

const string = { type: 'string' };
const boolean = { type: 'boolean' };
const strings = { type: 'array', items: string };
/** Kubernetes' own form, checked by Kubernetes: anything inside. */
const objects = { type: 'array', items: { type: 'object' } };
const anything = { type: 'object' };
const labels = { type: 'object', additionalProperties: string };
const integer = (minimum, maximum) => ({
  type: 'integer',
  minimum,
  ...(maximum === undefined ? {} : { maximum }),
});
const nullable = (schema) => ({ ...schema, type: [schema.type, 'null'] });
const oneOf = (...values) => ({ enum: values });
const strict = (properties, required = []) => ({
  type: 'object',
  additionalProperties: false,
  properties,
  ...(required.length > 0 ? { required } : {}),
});
const port = integer(1, 65535);
const environmentName = { pattern: '^[A-Za-z_][A-Za-z0-9_]*$' };
const duration = { type: 'string', pattern: '^[0-9]+(ms|s|m|h)$' };
const reference = strict({ name: string, key: { type: 'string', minLength: 1 } });
const monitor = strict({ enabled: boolean, labels, interval: duration });
const cidr = { type: 'string', pattern: '^[0-9a-fA-F.:]+/[0-9]{1,3}$' };
const probe = strict({
  initialDelaySeconds: integer(0),
  periodSeconds: integer(1),
  timeoutSeconds: integer(1),
  failureThreshold: integer(1),
  successThreshold: integer(1),
});
const resources = strict({ requests: anything, limits: anything, claims: objects });

/** Numbers of sluice.yaml that the chart computes with: here they cannot be `${ENV}` references. */
const numbersForTheChart = new Set([
  'port',
  'adminPort',
  'drainSeconds',
  'keepAliveSeconds',
  'maxBodyBytes',
  'maxWaitSeconds',
  'maxWaitCeilingSeconds',
]);

/** Node of the published schema → node of the chart's schema. */
function forTheChart(node, key) {
  if (Array.isArray(node)) return node.map((item) => forTheChart(item));
  if (typeof node !== 'object' || node === null) return node;
  if (numbersForTheChart.has(key) && Array.isArray(node.anyOf)) {
    const { anyOf, ...rest } = node;
    return { ...rest, ...anyOf[0] };
  }
  return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, forTheChart(value, name)]));
}

/** What `sluice keys create` prints, or a reference to the environment. */
const hash = '^(sha256:[0-9a-fA-F]{64}|[$][{].+[}])$';

/** An API key in the place of its hash would be readable in the release. */
function hashesOnly(keys) {
  const [short, long] = keys.items.anyOf;
  short.pattern = hash;
  long.properties.hash.pattern = hash;
}

/** The published schema of sluice.yaml, but for what the chart fills in: whole sections, the Redis URL. */
function configSchema() {
  const { $schema: _, required: _all, ...published } = forTheChart(configJsonSchema());
  hashesOnly(published.properties.workspaces.additionalProperties.properties.keys);
  for (const section of ['upstreams', 'workspaces']) delete published.properties[section].minProperties;
  delete published.properties.redis.required;
  return published;
}

export const schema = {
  $schema: 'http://json-schema.org/draft-07/schema#',
  title: 'Values of the Sluice chart',
  type: 'object',
  additionalProperties: false,
  properties: {
    enabled: boolean,
    nameOverride: string,
    fullnameOverride: string,
    commonLabels: labels,
    image: strict({
      repository: { type: 'string', minLength: 1 },
      tag: string,
      digest: { type: 'string', pattern: '^(sha256:[0-9a-f]{64})?$' },
      pullPolicy: oneOf('Always', 'IfNotPresent', 'Never'),
    }),
    imagePullSecrets: { type: 'array', items: strict({ name: string }, ['name']) },
    replicaCount: nullable(integer(1)),
    config: configSchema(),
    existingConfigMap: string,
    secretEnv: {
      type: 'object',
      propertyNames: environmentName,
      additionalProperties: strict({ secret: string, key: string, optional: boolean }, ['secret', 'key']),
    },
    env: {
      type: 'object',
      propertyNames: environmentName,
      additionalProperties: { type: ['string', 'number', 'boolean'] },
    },
    extraEnv: { type: 'array', items: { type: 'object', properties: { name: string, value: string } } },
    extraEnvFrom: objects,
    redis: strict({
      url: { type: 'string', pattern: '^(rediss?([+](sentinel|cluster))?://.+)?$' },
      existingSecret: reference,
      whenDown: oneOf('local', 'deny'),
      replicas: nullable(integer(1)),
      development: strict({ enabled: boolean, image: string, resources }),
    }),
    privacy: strict({ labelKey: strict({ existingSecret: reference }) }),
    timeouts: strict({
      profile: oneOf('', 'alb', 'gclb', 'envoy', 'cloudfront', 'cloudflare', 'nginx'),
      hopSeconds: nullable(integer(0)),
      upstreamSeconds: integer(1),
      firstByteSeconds: integer(0),
    }),
    drain: strict({ delaySeconds: integer(0, 300), terminationGracePeriodSeconds: nullable(integer(1)) }),
    service: strict({
      type: oneOf('ClusterIP', 'NodePort', 'LoadBalancer'),
      port,
      nodePort: nullable(port),
      annotations: labels,
      externalTrafficPolicy: oneOf(null, 'Cluster', 'Local'),
      loadBalancerClass: nullable(string),
      loadBalancerSourceRanges: { type: 'array', items: cidr },
    }),
    httpRoute: strict({ enabled: boolean, parentRefs: objects, hostnames: strings, annotations: labels }),
    ingress: strict({
      enabled: boolean,
      className: string,
      annotations: labels,
      hosts: strings,
      tls: objects,
    }),
    networkPolicy: strict({
      enabled: boolean,
      dataFrom: objects,
      adminFrom: objects,
      redisTo: objects,
      redisPorts: { type: 'array', items: port, minItems: 1 },
      upstreamPorts: { type: 'array', items: port },
      upstreamExcept: { type: 'array', items: cidr },
      extraEgress: objects,
    }),
    autoscaling: strict({
      hpa: boolean,
      keda: boolean,
      minReplicas: integer(1),
      maxReplicas: integer(1),
      callsPerPod: integer(1),
      metricName: { type: 'string', minLength: 1 },
      prometheusAddress: { type: 'string', pattern: '^https?://.+' },
      triggerAuthentication: string,
      fallbackReplicas: nullable(integer(1)),
      scaleDownWindowSeconds: integer(0, 3600),
      scaleDownPeriodSeconds: integer(1, 1800),
    }),
    podDisruptionBudget: strict({ enabled: boolean, maxUnavailable: { type: ['integer', 'string'] } }),
    metrics: strict({
      serviceMonitor: monitor,
      podMonitor: monitor,
      prometheusRule: strict({ enabled: boolean, labels, runbookBase: string }),
      dashboards: strict({ enabled: boolean, labels, annotations: labels }),
    }),
    serviceAccount: strict({ create: boolean, name: string, annotations: labels }),
    resources,
    podSecurityContext: anything,
    securityContext: anything,
    minReadySeconds: integer(0),
    revisionHistoryLimit: integer(0),
    strategy: strict({ type: oneOf('RollingUpdate', 'Recreate'), rollingUpdate: nullable(anything) }),
    probes: strict({ startup: probe, liveness: probe, readiness: probe }),
    topologySpread: {
      type: 'array',
      items: { type: 'object', required: ['topologyKey', 'maxSkew', 'whenUnsatisfiable'] },
    },
    nodeSelector: labels,
    tolerations: objects,
    affinity: anything,
    priorityClassName: string,
    runtimeClassName: string,
    podAnnotations: labels,
    podLabels: labels,
    deploymentAnnotations: labels,
    extraVolumes: objects,
    extraVolumeMounts: objects,
    extraContainers: objects,
    extraInitContainers: objects,
    extraObjects: { type: 'array', items: { type: ['object', 'string'] } },
    extraArgs: strings,
    tests: strict({ enabled: boolean }),
    global: anything,
  },
};

/** The generated file's text, laid out as the repository's formatter wants it. */
export const schemaText = () => formatted(JSON.stringify(schema), 'values.schema.json');
