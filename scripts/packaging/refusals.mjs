/**
 * Values that must be refused, each with words that the message must contain: the schema's cases and one case for every
 * rule of templates/_checks.tpl. `both` majors of helm are asked, whose schema messages differ in form.
 */
const redis = {
  redis: { existingSecret: { name: 'r' } },
  privacy: { labelKey: { existingSecret: { name: 'p' } } },
};
const upstream = { kind: 'generic', origins: ['https://api.example.com'] };
const config = (limits, server) => ({ config: { upstreams: { api: { ...upstream, limits } }, server } });

export const refusals = [
  // ---- by the schema
  { name: 'replicaCount as text', values: { replicaCount: 'many' }, says: [/replicaCount/, /integer/] },
  { name: 'a misspelt key', values: { replicacount: 3 }, says: [/replicacount/] },
  {
    name: 'an API key in the place of its hash',
    values: { config: { workspaces: { acme: { keys: ['slc_abc'] } } } },
    says: [/keys/, /sha256/],
  },
  { name: 'a misspelt nested key', values: { image: { repositry: 'x' } }, says: [/image/, /repositry/] },
  { name: 'an unknown load balancer', values: { timeouts: { profile: 'f5' } }, says: [/profile/, /alb/] },
  {
    name: 'an unknown key in config.server',
    values: { config: { server: { prot: 1 } } },
    says: [/server/, /prot/],
  },
  {
    name: 'an unknown key of an upstream',
    values: { config: { upstreams: { a: { ...upstream, kidn: 1 } } } },
    says: [/kidn/],
  },
  {
    name: 'an upstream without origins',
    values: { config: { upstreams: { a: { kind: 'generic' } } } },
    says: [/origins/],
  },
  { name: 'a zero limit', values: config({ requestsPerMinute: 0 }), says: [/requestsPerMinute/] },
  { name: 'a digest that is none', values: { image: { digest: 'sha256:1' } }, says: [/digest/] },
  { name: 'a port out of range', values: { service: { port: 70000 } }, says: [/port/, /65[,]?535/] },
  { name: 'a Redis URL of another protocol', values: { redis: { url: 'http://redis' } }, says: [/url/] },
  { name: 'whenDown: open', values: { redis: { whenDown: 'open' } }, says: [/whenDown/, /deny/] },
  { name: 'a bad environment name', values: { env: { 'A-B': '1' } }, says: [/A-B/] },
  { name: 'secretEnv without a key', values: { secretEnv: { A: { secret: 's' } } }, says: [/key/] },
  { name: 'minReplicas 0', values: { autoscaling: { minReplicas: 0 } }, says: [/minReplicas/, /1/] },
  {
    name: 'a wait read from the environment',
    values: config({ maxWaitSeconds: '${WAIT}' }),
    says: [/maxWaitSeconds/],
  },
  // ---- by the checks
  {
    name: 'a workspace with an upstream that does not exist',
    values: {
      config: { upstreams: { openai: upstream }, workspaces: { acme: { keys: [], upstreams: ['opnai'] } } },
    },
    says: [/workspaces\.acme names the upstream opnai/, /It has openai/],
  },
  {
    name: 'a ceiling on an upstream that does not exist',
    values: {
      config: {
        upstreams: { openai: upstream },
        workspaces: { acme: { keys: [], requestsPerMinute: { opnai: 3 } } },
      },
    },
    says: [/workspaces\.acme names the upstream opnai/],
  },
  {
    name: 'two autoscalers',
    values: { ...redis, autoscaling: { hpa: true, keda: true } },
    says: [/exclude each other/],
  },
  {
    name: 'minReplicas over maxReplicas',
    values: { ...redis, autoscaling: { hpa: true, minReplicas: 5, maxReplicas: 4 } },
    says: [/minReplicas \(5\) is over/],
  },
  {
    name: 'a scale-in window under its period',
    values: { ...redis, autoscaling: { hpa: true, scaleDownWindowSeconds: 60, scaleDownPeriodSeconds: 120 } },
    says: [/scaleDownWindowSeconds \(60\)/, /scaleDownPeriodSeconds \(120\)/],
  },
  {
    name: 'the same by KEDA',
    values: { ...redis, autoscaling: { keda: true, scaleDownWindowSeconds: 119 } },
    says: [/scaleDownWindowSeconds \(119\)/],
  },
  {
    name: 'two replicas without Redis',
    values: { replicaCount: 2 },
    says: [/needs Redis/, /replicaCount: 1/],
  },
  { name: 'an autoscaler without Redis', values: { autoscaling: { hpa: true } }, says: [/needs Redis/] },
  {
    name: 'two sources of Redis',
    values: { ...redis, redis: { url: 'redis://a', existingSecret: { name: 'r' } } },
    says: [/Only one of redis/],
  },
  {
    name: 'a password in the Redis URL',
    values: { ...redis, redis: { url: 'redis://:secret@a' } },
    says: [/holds a password/, /existingSecret/],
  },
  {
    name: 'Redis without a label key',
    values: { redis: redis.redis },
    says: [/label key/, /existingSecret/],
  },
  { name: 'one port for data and admin', values: config({}, { port: 9090 }), says: [/admin port/] },
  {
    name: 'a grace period shorter than the drain',
    values: { drain: { terminationGracePeriodSeconds: 60 } },
    says: [/too short/, /= 390/],
  },
  {
    name: 'a grace period shorter than a stated drain',
    values: { ...config({}, { drainSeconds: 100 }), drain: { terminationGracePeriodSeconds: 110 } },
    says: [/drain \(100\)/, /= 115/],
  },
  {
    name: 'CloudFront with its default of 30 s',
    values: { timeouts: { profile: 'cloudfront' } },
    says: [/cuts calls after 30 s/, /= 90 s/],
  },
  {
    name: 'Cloudflare with a wait of 90 s',
    values: { ...config({ maxWaitSeconds: 90 }), timeouts: { profile: 'cloudflare' } },
    says: [/after 100 s/, /= 105 s/],
  },
  {
    name: 'a wait stated for all upstreams',
    values: { ...config({}, { maxWaitSeconds: 90 }), timeouts: { profile: 'cloudflare' } },
    says: [/= 105 s/],
  },
  {
    name: 'Envoy with 15 s',
    values: { timeouts: { profile: 'envoy', hopSeconds: 15 } },
    says: [/whole response/, /= 375 s/],
  },
  {
    name: 'Google with 30 s',
    values: { timeouts: { profile: 'gclb', hopSeconds: 30 } },
    says: [/gclb cuts calls after 30 s/],
  },
  {
    name: 'nginx with 20 s',
    values: { timeouts: { profile: 'nginx', hopSeconds: 20 } },
    says: [/nginx cuts calls after 20 s/],
  },
  {
    name: 'an AWS idle time-out over 4000 s',
    values: { timeouts: { profile: 'alb', upstreamSeconds: 5000 } },
    says: [/4000/],
  },
  {
    name: 'keep-alive under the AWS idle time-out',
    values: { ...config({}, { keepAliveSeconds: 60 }), timeouts: { profile: 'alb' } },
    says: [/keepAliveSeconds \(60\)/, /502/],
  },
  { name: 'an HTTPRoute without a Gateway', values: { httpRoute: { enabled: true } }, says: [/parentRefs/] },
  { name: 'an Ingress without a host', values: { ingress: { enabled: true } }, says: [/ingress.hosts/] },
  {
    name: 'two monitors',
    values: { metrics: { serviceMonitor: { enabled: true }, podMonitor: { enabled: true } } },
    says: [/scraped twice/],
  },
  {
    name: 'a variable in env and secretEnv',
    values: { env: { A: '1' }, secretEnv: { A: { secret: 's', key: 'k' } } },
    says: [/A is in env and in secretEnv/],
  },
  {
    name: 'a second REDIS_URL',
    values: { ...redis, env: { REDIS_URL: 'redis://x' } },
    says: [/REDIS_URL is set by the chart/],
  },
  {
    name: 'a variable that no pod has',
    values: {
      config: {
        upstreams: {
          api: { ...upstream, credential: { header: 'authorization', value: 'Bearer ${NO_SUCH}' } },
        },
      },
    },
    says: [/\$\{NO_SUCH\}/, /secretEnv/],
  },
];
