/** Which resources the stand-in knows. A kind that the chart renders and that is missing here is refused with 404. */
const table = {
  v1: 'Namespace! Pod Service ConfigMap Secret ServiceAccount Event',
  'apps/v1': 'Deployment ReplicaSet StatefulSet',
  'batch/v1': 'Job',
  'policy/v1': 'PodDisruptionBudget:poddisruptionbudgets',
  'networking.k8s.io/v1': 'NetworkPolicy:networkpolicies Ingress:ingresses',
  'autoscaling/v2': 'HorizontalPodAutoscaler',
  'rbac.authorization.k8s.io/v1': 'Role RoleBinding',
  'apiextensions.k8s.io/v1': 'CustomResourceDefinition!',
  'gateway.networking.k8s.io/v1': 'HTTPRoute',
  'keda.sh/v1alpha1': 'ScaledObject',
  'monitoring.coreos.com/v1': 'ServiceMonitor PodMonitor PrometheusRule',
  'external-secrets.io/v1': 'ExternalSecret',
  'networking.gke.io/v1': 'GCPBackendPolicy:gcpbackendpolicies HealthCheckPolicy:healthcheckpolicies',
  'cloud.google.com/v1': 'BackendConfig',
};
const BUILT_IN = /^(v1$|(apps|batch|autoscaling)\/|(policy|[a-z.]+\.k8s\.io)\/)/;
const CUSTOM = /^gateway\./;

/** @type {Map<string, {groupVersion: string, plural: string, kind: string, namespaced: boolean, builtIn: boolean}[]>} */
export const groups = new Map(
  Object.entries(table).map(([groupVersion, kinds]) => [
    groupVersion,
    kinds.split(' ').map((word) => {
      const [name, plural] = word.split(':');
      const kind = name.replace('!', '');
      const builtIn = BUILT_IN.test(groupVersion) && !CUSTOM.test(groupVersion);
      const lower = plural ?? `${kind.toLowerCase()}s`;
      return { groupVersion, plural: lower, kind, namespaced: !name.endsWith('!'), builtIn };
    }),
  ]),
);

export const kindOf = (groupVersion, plural) =>
  groups.get(groupVersion)?.find((item) => item.plural === plural);
const pathOf = (groupVersion) => `${groupVersion.includes('/') ? 'apis' : 'api'}/${groupVersion}`;
const verbs = ['create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch'];

/** @returns {object | null} the response to a discovery path */
export function discovery(path) {
  if (path === '/version') return { major: '1', minor: '35', gitVersion: 'v1.35.0', platform: 'linux/amd64' };
  if (path === '/api') return { kind: 'APIVersions', versions: ['v1'] };
  if (path === '/apis') {
    const named = [...groups.keys()].filter((item) => item.includes('/'));
    const list = named.map((groupVersion) => {
      const [name, version] = groupVersion.split('/');
      return { name, versions: [{ groupVersion, version }], preferredVersion: { groupVersion, version } };
    });
    return { kind: 'APIGroupList', apiVersion: 'v1', groups: list };
  }
  if (path === '/openapi/v3') {
    const entry = (groupVersion) => ({ serverRelativeURL: `/openapi/v3/${pathOf(groupVersion)}?hash=1` });
    return { paths: Object.fromEntries([...groups.keys()].map((item) => [pathOf(item), entry(item)])) };
  }
  const [, openapi, groupVersion] = path.match(/^\/(openapi\/v3\/)?apis?\/(v1|[^/]+\/[^/]+)$/) ?? [];
  const kinds = groups.get(groupVersion);
  if (kinds === undefined) return null;
  if (openapi !== undefined) return openapiOf(groupVersion, kinds);
  const resources = kinds.map(({ plural, kind, namespaced }) => ({
    name: plural,
    singularName: kind.toLowerCase(),
    kind,
    namespaced,
    verbs,
  }));
  return { kind: 'APIResourceList', apiVersion: 'v1', groupVersion, resources };
}

/** Clients ask it only whether a patch takes fieldValidation and dryRun. */
function openapiOf(groupVersion, kinds) {
  const [version, group = ''] = groupVersion.split('/').reverse();
  const parameters = ['fieldValidation', 'dryRun'].map((name) => ({
    name,
    in: 'query',
    schema: { type: 'string' },
  }));
  const paths = kinds.map(({ plural, kind, namespaced }) => [
    `/${pathOf(groupVersion)}/${namespaced ? 'namespaces/{namespace}/' : ''}${plural}/{name}`,
    {
      patch: {
        operationId: `patch${kind}`,
        parameters,
        responses: { 200: { description: 'OK' } },
        'x-kubernetes-action': 'patch',
        'x-kubernetes-group-version-kind': { group, version, kind },
      },
    },
  ]);
  const info = { title: 'stand-in', version: 'v1.35.0' };
  return { openapi: '3.0.0', info, paths: Object.fromEntries(paths), components: { schemas: {} } };
}
