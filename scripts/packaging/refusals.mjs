/**
 * Values that must be refused, as options of `--set`, each with words that the message must contain: the schema's cases and one case for
 * every rule of templates/_checks.tpl. Both majors of helm are asked, whose schema messages differ in form.
 */
const redis = 'redis.existingSecret.name=r,privacy.labelKey.existingSecret.name=p';
const of = (upstream) => `config.upstreams.${upstream}.origins[0]=https://api.example.com`;
const acme = `config.workspaces.acme.keys[0]=sha256:${'a'.repeat(64)}`;
const profile = (name, hop) =>
  `timeouts.profile=${name}${hop === undefined ? '' : `,timeouts.hopSeconds=${hop}`}`;

export const refusals = [
  // ---- by the schema
  ['replicaCount as text', 'replicaCount=many', /replicaCount/, /integer/],
  ['a misspelt key', 'replicacount=3', /replicacount/],
  ['an API key in the place of its hash', 'config.workspaces.acme.keys[0]=slc_abc', /keys/, /sha256/],
  ['a misspelt nested key', 'image.repositry=x', /image/, /repositry/],
  ['an unknown load balancer', profile('f5'), /profile/, /alb/],
  ['an unknown key in config.server', 'config.server.prot=1', /server/, /prot/],
  ['an unknown key of an upstream', `${of('a')},config.upstreams.a.kidn=1`, /kidn/],
  ['an upstream without origins', 'config.upstreams.a.kind=generic', /origins/],
  ['a zero limit', `${of('api')},config.upstreams.api.limits.requestsPerMinute=0`, /requestsPerMinute/],
  ['a digest that is none', 'image.digest=sha256:1', /digest/],
  ['a port out of range', 'service.port=70000', /port/, /65[,]?535/],
  ['a Redis URL of another protocol', 'redis.url=http://redis', /url/],
  ['whenDown: open', 'redis.whenDown=open', /whenDown/, /deny/],
  ['a bad environment name', 'env.A-B=1', /A-B/],
  ['secretEnv without a key', 'secretEnv.A.secret=s', /key/],
  ['minReplicas 0', 'autoscaling.minReplicas=0', /minReplicas/, /1/],
  [
    'a wait read from the environment',
    `${of('api')},config.upstreams.api.limits.maxWaitSeconds=\${WAIT}`,
    /maxWaitSeconds/,
  ],
  // ---- by the checks
  [
    'a workspace with an upstream that does not exist',
    `${of('openai')},${acme},config.workspaces.acme.upstreams={opnai}`,
    /workspaces\.acme names the upstream opnai/,
    /It has openai/,
  ],
  [
    'a ceiling on an upstream that does not exist',
    `${of('openai')},${acme},config.workspaces.acme.requestsPerMinute.opnai=3`,
    /workspaces\.acme names the upstream opnai/,
  ],
  ['two autoscalers', `${redis},autoscaling.hpa=true,autoscaling.keda=true`, /exclude each other/],
  [
    'minReplicas over maxReplicas',
    `${redis},autoscaling.hpa=true,autoscaling.minReplicas=5,autoscaling.maxReplicas=4`,
    /minReplicas \(5\) is over/,
  ],
  [
    'a scale-in window under its period',
    `${redis},autoscaling.hpa=true,autoscaling.scaleDownWindowSeconds=60,autoscaling.scaleDownPeriodSeconds=120`,
    /scaleDownWindowSeconds \(60\)/,
    /scaleDownPeriodSeconds \(120\)/,
  ],
  [
    'the same by KEDA',
    `${redis},autoscaling.keda=true,autoscaling.scaleDownWindowSeconds=119`,
    /scaleDownWindowSeconds \(119\)/,
  ],
  ['two replicas without Redis', 'replicaCount=2', /needs Redis/, /replicaCount: 1/],
  ['the Secret of Redis taken out', 'redis.existingSecret=null,replicaCount=2', /needs Redis/],
  [
    'the Secret of the label key taken out',
    'redis.url=redis://r,privacy.labelKey.existingSecret=null',
    /privacy\.labelKey\.existingSecret\.name/,
  ],
  ['an autoscaler without Redis', 'autoscaling.hpa=true', /needs Redis/],
  ['two sources of Redis', `${redis},redis.url=redis://a`, /Only one of redis/],
  [
    'a password in the Redis URL',
    'redis.url=redis://:secret@a,privacy.labelKey.existingSecret.name=p',
    /holds a password/,
    /existingSecret/,
  ],
  ['Redis without a label key', 'redis.existingSecret.name=r', /label key/, /existingSecret/],
  ['one port for data and admin', 'config.server.port=9090', /admin port/],
  ['a grace period under the drain', 'drain.terminationGracePeriodSeconds=60', /too short/, /= 390/],
  [
    'a grace period under a stated drain',
    'config.server.drainSeconds=100,drain.terminationGracePeriodSeconds=110',
    /drain \(100\)/,
    /= 115/,
  ],
  ['CloudFront with its default of 30 s', profile('cloudfront'), /cuts calls after 30 s/, /= 90 s/],
  [
    'Cloudflare with a wait of 90 s',
    `${of('api')},config.upstreams.api.limits.maxWaitSeconds=90,${profile('cloudflare')}`,
    /after 100 s/,
    /= 105 s/,
  ],
  ['a wait for all upstreams', `config.server.maxWaitSeconds=90,${profile('cloudflare')}`, /= 105 s/],
  ['Envoy with 15 s', profile('envoy', 15), /whole response/, /= 375 s/],
  ['Google with 30 s', profile('gclb', 30), /gclb cuts calls after 30 s/],
  ['nginx with 20 s', profile('nginx', 20), /nginx cuts calls after 20 s/],
  ['an AWS idle time-out over 4000 s', `${profile('alb')},timeouts.upstreamSeconds=5000`, /4000/],
  [
    'keep-alive under the AWS idle time-out',
    `config.server.keepAliveSeconds=60,${profile('alb')}`,
    /keepAliveSeconds \(60\)/,
    /502/,
  ],
  ['an HTTPRoute without a Gateway', 'httpRoute.enabled=true', /parentRefs/],
  ['an Ingress without a host', 'ingress.enabled=true', /ingress.hosts/],
  ['two monitors', 'metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true', /scraped twice/],
  [
    'a variable in env and secretEnv',
    'env.A=1,secretEnv.A.secret=s,secretEnv.A.key=k',
    /A is in env and in secretEnv/,
  ],
  ['a second REDIS_URL', `${redis},env.REDIS_URL=redis://x`, /REDIS_URL is set by the chart/],
  [
    'a variable that no pod has',
    `${of('api')},config.upstreams.api.credential.header=authorization,config.upstreams.api.credential.value=Bearer \${NO_SUCH}`,
    /\$\{NO_SUCH\}/,
    /secretEnv/,
  ],
];
