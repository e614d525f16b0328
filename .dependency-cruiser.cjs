/** Imports go one way, as checks of `npm run imports`. ARCHITECTURE.md draws the same map. */

/** From the entry down. A layer may import itself and those below it; folders that are not named may be imported by all. */
const layers = [
  { name: 'entry', path: '^src/(cli/|(main|service)\\.ts$)' },
  {
    name: 'composition',
    path: '^src/((observation|page)/|gateway\\.ts$)',
  },
  { name: 'flow', path: '^src/pipeline\\.ts$' },
  { name: 'journey', path: '^src/(journey/|runtime\\.ts$)' },
  { name: 'features', path: '^src/(repeats|control|activity|recording)/' },
  { name: 'stages', path: '^src/(ingress|auth|target|admission|breaker|quotas|credentials|dispatch)/' },
  { name: 'limiter', path: '^src/limiter/' },
  { name: 'replicated', path: '^src/replicated/' },
  { name: 'redis', path: '^src/redis/' },
];
const pathsOf = (some) => some.map(({ path }) => path);

module.exports = {
  forbidden: [
    ...layers.slice(1).map(({ name, path }, index) => ({
      name: `${name}-imports-nothing-above-it`,
      severity: 'error',
      from: { path },
      to: { path: pathsOf(layers.slice(0, index + 1)) },
    })),
    {
      name: 'core-imports-no-feature',
      severity: 'error',
      comment: 'a feature can be left out: it hooks into the flow (pipeline.ts), which imports none',
      from: {
        path: '^src/',
        pathNot: pathsOf(
          layers.filter(({ name }) => ['entry', 'composition', 'journey', 'features'].includes(name)),
        ),
      },
      to: { path: '^src/(repeats|control|activity|recording|page|observation|cli)/' },
    },
    {
      name: 'policy-is-pure',
      severity: 'error',
      comment:
        'a policy takes numbers and gives a decision: no IO, no clock, no telemetry (the listed files are types and constants)',
      from: { path: '\\.policy\\.ts$' },
      to: {
        pathNot: [
          '\\.policy\\.ts$',
          '^src/(call|errors|bucket|ids|time-units|limiter/limiter|config/(settings|defaults)|telemetry/events)\\.ts$',
          'node_modules/(ipaddr|graphql)',
          // What a body decodes to depends on its bytes alone.
          '^zlib$',
        ],
      },
    },
    { name: 'no-circular', severity: 'error', from: { path: '^src/' }, to: { circular: true } },
    {
      name: 'product-imports-no-test',
      severity: 'error',
      from: { path: '^(src|demo|simulators|tools)/' },
      to: { path: '^(test|scripts|bench)/' },
    },
    {
      name: 'src-imports-nothing-beside-it',
      severity: 'error',
      comment: 'some commands load what they run from there',
      from: { path: '^src/', pathNot: '^src/cli/(commands|check)\\.ts$' },
      to: { path: '^(demo|simulators|tools)/' },
    },
    {
      name: 'simulators-import-nothing-of-the-gateway',
      severity: 'error',
      from: { path: '^simulators/' },
      to: { path: '^(src|demo|tools)/' },
    },
  ],
  options: {
    parser: 'swc',
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default'] },
  },
};
