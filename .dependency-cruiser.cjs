/** The direction of imports, as checks. ARCHITECTURE.md draws the same map. */
const stage = 'src/(ingress|auth|target|admission|breaker|quotas|credentials|dispatch|repeats)/';
const only = (name, library, path) => ({
  name,
  severity: 'error',
  comment: `${library} has one home; everything else goes through it`,
  from: { path: '^src/', pathNot: path },
  to: { path: `node_modules/${library}` },
});

module.exports = {
  forbidden: [
    {
      name: 'policy-is-pure',
      severity: 'error',
      comment:
        'a policy takes numbers and gives a decision: no IO, no clock, no telemetry (the listed files are types and constants)',
      from: { path: '\\.policy\\.ts$' },
      to: {
        pathNot: [
          '\\.policy\\.ts$',
          '^src/(call|errors|bucket|ids|limiter/(limiter|policy/bucket-events)|config/(settings|defaults|dialect))\\.ts$',
          'node_modules/(ipaddr|graphql)',
        ],
      },
    },
    {
      name: 'stages-apart',
      severity: 'error',
      comment:
        'only gateway.ts, what it is made of (parts.ts, take-over.ts, settings-in-use.ts) and journey/ know two stages',
      from: { path: `^${stage}`, pathNot: '\\.policy\\.ts$' },
      to: { path: `^${stage}`, pathNot: ['^src/$1/', '\\.policy\\.ts$'] },
    },
    {
      name: 'limiter-shows-its-ports-only',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/limiter/' },
      to: {
        path: '^src/limiter/',
        pathNot:
          '^src/limiter/(limiter|ceilings|breaker-store|controls-store|quota-store|estimate-store|stores)\\.ts$',
      },
    },
    {
      name: 'redis-has-few-users',
      severity: 'error',
      comment:
        'the limiter; activity shares its figures, credentials their tokens, repeats their responses, over connections of their own',
      from: {
        path: '^src/',
        pathNot: [
          '^src/(limiter|redis)/',
          '^src/(activity/redis-activity|credentials/redis-tokens|repeats/redis-repeats)\\.ts$',
        ],
      },
      to: { path: '^src/redis/' },
    },
    {
      name: 'others-see-the-connection-only',
      severity: 'error',
      from: { path: '^src/(activity/redis-activity|credentials/redis-tokens|repeats/redis-repeats)\\.ts$' },
      to: { path: '^src/redis/', pathNot: '^src/redis/connection\\.ts$' },
    },
    {
      name: 'policy-knows-no-store',
      severity: 'error',
      comment: 'the specification: stores run it or mirror it, and it knows none of them',
      from: { path: '^src/limiter/policy/' },
      to: {
        path: '^src/(limiter|redis)/',
        pathNot: '^src/limiter/(policy/|limiter\\.ts$|ceilings\\.ts$)',
      },
    },
    {
      name: 'embedded-knows-no-redis',
      severity: 'error',
      from: { path: '^src/limiter/embedded/' },
      to: { path: '^src/(redis/|limiter/(redis|failover|stores))' },
    },
    {
      name: 'redis-knows-no-failover',
      severity: 'error',
      comment: 'failover moves calls between the stores; no store knows that there is another one',
      from: { path: '^src/limiter/redis/' },
      to: { path: '^src/limiter/(failover|embedded|stores)' },
    },
    {
      name: 'redis-knows-no-user',
      severity: 'error',
      comment: 'the way to Redis: what is said on it, and who says it, stands above',
      from: { path: '^src/redis/' },
      to: { path: '^src/', pathNot: '^src/(redis/|(telemetry/events|config/settings|clock|ids)\\.ts$)' },
    },
    {
      name: 'redis-protocol-knows-no-session',
      severity: 'error',
      from: { path: '^src/limiter/redis/protocol/' },
      to: { path: '^src/limiter/redis/', pathNot: '^src/limiter/redis/protocol/' },
    },
    {
      name: 'the-journey-goes-one-way',
      severity: 'error',
      comment: 'gateway.ts → journey → stages → limiter: nothing calls back into what stands before it',
      from: { path: `^${stage}|^src/(limiter|telemetry|activity)/` },
      to: {
        path: '^src/((journey|observation|page|cli)/|(gateway|parts|take-over|settings-in-use|service|main)\\.ts)',
      },
    },
    {
      name: 'limiter-knows-no-stage',
      severity: 'error',
      from: { path: '^src/limiter/' },
      to: { path: `^${stage}` },
    },
    {
      name: 'admission-has-one-face',
      severity: 'error',
      comment:
        'the queue, what was refused a moment ago (asked before the queue is), its types, the settings of a call; how a call waits is the business of the folder',
      from: { path: '^src/', pathNot: '^src/admission/' },
      to: {
        path: '^src/admission/',
        pathNot: '^src/admission/(admission|recent-refusals|ticket|buckets\\.policy)\\.ts$',
      },
    },
    {
      name: 'telemetry-hears-and-does-not-ask',
      severity: 'error',
      comment: 'the limiter reports to telemetry; words that both need are in src/bucket.ts',
      from: { path: '^src/telemetry/' },
      to: { path: '^src/(limiter|activity|page|observation)/' },
    },
    {
      name: 'core-knows-no-page',
      severity: 'error',
      comment: 'what looks at the gateway is put together in observation/',
      from: { path: '^src/', pathNot: '^src/(page|observation)/' },
      to: { path: '^src/page/' },
    },
    {
      name: 'observation-is-composed-once',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/(observation/|(gateway|parts|service)\\.ts)' },
      to: { path: '^src/observation/' },
    },
    { name: 'no-circular', severity: 'error', from: { path: '^src/' }, to: { circular: true } },
    {
      name: 'simulators-are-a-world-apart',
      severity: 'error',
      comment: 'the product never depends on a simulated upstream',
      from: { path: '^src/', pathNot: '^src/(simulators/|cli/demo)' },
      to: { path: '^src/simulators/' },
    },
    {
      name: 'simulators-know-nothing-of-the-gateway',
      severity: 'error',
      from: { path: '^src/simulators/' },
      to: { path: '^src/', pathNot: '^src/(simulators/|clock\\.ts)' },
    },
    only('one-home-express', 'express/', '^src/ingress/'),
    only('one-home-hpm', 'http-proxy-middleware/', '^src/dispatch/transport\\.ts'),
    only('one-home-ioredis', 'ioredis/', '^src/redis/'),
    only('one-home-rlf', 'rate-limiter-flexible/', '^src/(limiter/|auth/)'),
    only('one-home-telemetry', '(prom-client|@opentelemetry|pino)/', '^src/telemetry/'),
    only('one-home-config', '(zod|yaml)/', '^src/config/'),
  ],
  options: {
    parser: 'swc',
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default'] },
  },
};
