/**
 * Values that must be refused, as options of `--set`, each with words that the message must contain: the schema's cases and one case for
 * every rule of templates/_checks.tpl. Both majors of helm are asked, whose schema messages differ in form.
 */
const redis = 'redis.existingSecret.name=r,privacy.labelKey.existingSecret.name=p';
const hpa = `${redis},autoscaling.hpa=true`;
/** The upstream `api`, with one more key. */
const api = (more) =>
  `config.upstreams.api.origins[0]=https://api.example.com,config.upstreams.api.${more ?? 'kind=generic'}`;
/** The workspace `acme` of that upstream. */
const acme = (more) =>
  `${api()},config.workspaces.acme.keys[0]=sha256:${'a'.repeat(64)},config.workspaces.acme.${more}`;
const profile = (name, hop = '') => `timeouts.profile=${name}${hop && `,timeouts.hopSeconds=${hop}`}`;
const inSeconds = (window, period) =>
  `autoscaling.scaleDownWindowSeconds=${window},autoscaling.scaleDownPeriodSeconds=${period}`;
const byUrl = 'privacy.labelKey.existingSecret.name=p,redis.url=redis:';

export const refusals = [
  // ---- by the schema
  ['replicaCount as text', 'replicaCount=many', /replicaCount/, /integer/],
  ['a misspelt key', 'replicacount=3', /replicacount/],
  ['an API key in the place of its hash', 'config.workspaces.acme.keys[0]=slc_abc', /keys/, /sha256/],
  ['a misspelt nested key', 'image.repositry=x', /image/, /repositry/],
  ['an unknown load balancer', profile('f5'), /profile/, /alb/],
  ['an unknown key in config.server', 'config.server.prot=1', /server/, /prot/],
  ['an unknown key of an upstream', api('kidn=1'), /kidn/],
  ['an upstream without origins', 'config.upstreams.a.kind=generic', /origins/],
  ['a zero limit', api('limits.requestsPerMinute=0'), /requestsPerMinute/],
  ['a digest that is none', 'image.digest=sha256:1', /digest/],
  ['a port out of range', 'service.port=70000', /port/, /65[,]?535/],
  ['a Redis URL of another protocol', 'redis.url=http://redis', /url/],
  ['whenDown: open', 'redis.whenDown=open', /whenDown/, /deny/],
  ['a bad environment name', 'env.A-B=1', /A-B/],
  ['secretEnv without a key', 'secretEnv.A.secret=s', /key/],
  ['minReplicas 0', 'autoscaling.minReplicas=0', /minReplicas/, /1/],
  ['a wait read from the environment', api('limits.maxWaitSeconds=${WAIT}'), /maxWaitSeconds/],
  ['a number as a variable', 'extraEnv[0].name=A,extraEnv[0].value=1', /extraEnv/, /string/],
  // ---- by the checks
  [
    'a label of the chart',
    `podLabels.app\\.kubernetes\\.io/name=x`,
    /podLabels holds app\.kubernetes\.io\/name/,
  ],
  ['an upstream that does not exist', acme('upstreams={ap}'), /acme names the upstream ap\b/, /It has api/],
  ['a ceiling on one', acme('requestsPerMinute.ap=3'), /workspaces\.acme names the upstream ap\b/],
  ['two autoscalers', `${hpa},autoscaling.keda=true`, /exclude each other/],
  [
    'minReplicas over maxReplicas',
    `${hpa},autoscaling.minReplicas=9,autoscaling.maxReplicas=4`,
    /\(9\) is over/,
  ],
  ['a scale-in window under its period', `${hpa},${inSeconds(60, 120)}`, /Seconds \(60\)/, /Seconds \(120\)/],
  ['the same by KEDA', `${redis},autoscaling.keda=true,${inSeconds(119, 120)}`, /WindowSeconds \(119\)/],
  ['two replicas without Redis', 'replicaCount=2', /needs Redis/, /replicaCount: 1/],
  ['the Secret of Redis taken out', 'redis.existingSecret=null,replicaCount=2', /needs Redis/],
  [
    'the label key taken out',
    'redis.url=redis://r,privacy.labelKey.existingSecret=null',
    /existingSecret\.name/,
  ],
  ['an autoscaler without Redis', 'autoscaling.hpa=true', /needs Redis/],
  ['two sources of Redis', `${redis},redis.url=redis://a`, /Only one of redis/],
  ['a password in the Redis URL', `${byUrl}//:secret@a`, /holds a password/, /existingSecret/],
  ['Redis without a label key', 'redis.existingSecret.name=r', /label key/, /existingSecret/],
  ['one port for data and admin', 'config.server.port=9090', /admin port/],
  ['too little grace', 'drain.terminationGracePeriodSeconds=60', /too short/, /= 390/],
  [
    'too little grace for a stated drain',
    'config.server.drainSeconds=100,drain.terminationGracePeriodSeconds=110',
    /drain \(100\)/,
    /= 115/,
  ],
  ['CloudFront with its default of 30 s', profile('cloudfront'), /cuts calls after 30 s/, /= 90 s/],
  ['a wait of 90 s', `${api('limits.maxWaitSeconds=90')},${profile('cloudflare')}`, /after 100 s/, /= 105 s/],
  ['a wait for all upstreams', `config.server.maxWaitSeconds=90,${profile('cloudflare')}`, /= 105 s/],
  ['Envoy with 15 s', profile('envoy', 15), /whole response/, /= 375 s/],
  ['Google with 30 s', profile('gclb', 30), /gclb cuts calls after 30 s/],
  ['nginx with 20 s', profile('nginx', 20), /nginx cuts calls after 20 s/],
  ['an AWS idle time-out over 4000 s', `${profile('alb')},timeouts.upstreamSeconds=5000`, /4000/],
  [
    'keep-alive under it',
    `config.server.keepAliveSeconds=60,${profile('alb')}`,
    /AliveSeconds \(60\)/,
    /502/,
  ],
  ['an HTTPRoute without a Gateway', 'httpRoute.enabled=true', /parentRefs/],
  ['an Ingress without a host', 'ingress.enabled=true', /ingress.hosts/],
  ['two monitors', 'metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true', /scraped twice/],
  ['env and secretEnv', 'env.A=1,secretEnv.A.secret=s,secretEnv.A.key=k', /A is in env and in secretEnv/],
  ['a second REDIS_URL', `${redis},env.REDIS_URL=redis://x`, /REDIS_URL is set by the chart/],
  [
    'a variable that no pod has',
    `${api('credential.header=authorization')},config.upstreams.api.credential.value=Bearer \${NO_SUCH}`,
    /\$\{NO_SUCH\}/,
    /secretEnv/,
  ],
];
