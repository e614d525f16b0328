import { availableParallelism } from 'node:os';

/**
 * Files that take long, most of them thousands of random cases, minutes of load, or tests of the test tools. `npm run verify:long`
 * runs them every night, and more histories of the simulations. `npm test` runs them when their path, or a part of it,
 * is named.
 */
const long = [
  'test/cli/output.test.ts',
  'test/ingress/held-memory.test.ts',
  'test/learn/windows.test.ts',
  'test/limiter/policy/forecast.test.ts',
  'test/redis/replies.test.ts',
  'test/rehearsal/as-the-gateway.test.ts',
  'test/limiter/redis/nonsense.test.ts',
  'test/log/redis-faults.test.ts',
  'test/packaging/compiled.test.ts',
  'test/page/page.test.ts',
  'test/sdk/examples.test.ts',
  'test/sdk/language-models.test.ts',
  'test/sdk/other-clients.test.ts',
  'test/sdk/reservations.test.ts',
  'test/simulation/metering/bursts.test.ts',
  'test/simulation/metering/windows.test.ts',
  'test/simulation/replicas/crowds.test.ts',
  'test/wire/fuzz.test.ts',
  'test/wire/stack-upstream-chaos.test.ts',
];
/** Those that `verify:long` runs with more histories than `npm test`. */
const withMoreHistories = [
  'test/activity/headroom.test.ts',
  'test/cluster/nobody-elses-answer.test.ts',
  'test/limiter/over-log/golden-digests.test.ts',
  'test/limiter/over-log/snapshot.test.ts',
  'test/simulation/observed.test.ts',
  'test/simulation/simulation.test.ts',
];

const inRoot = (files) => files.map((file) => `<rootDir>/${file}`);
const named = process.argv.slice(2).filter((argument) => argument.includes('test/'));
const isNamed = (file) => named.some((part) => file.includes(part));
const onlyLong = process.env.SLUICE_TESTS === 'long';

/** Jest runs the TypeScript sources as ES modules; Node itself strips the types. */
export default {
  // Node, and a check that each file leaves no timer, socket, server or process behind.
  testEnvironment: '<rootDir>/test/support/leak-check.mjs',
  globalSetup: '<rootDir>/test/support/redis-installed.mjs',
  extensionsToTreatAsEsm: ['.ts'],
  transform: { '\\.ts$': '<rootDir>/test/support/strip-types.mjs' },
  testMatch: onlyLong ? inRoot([...long, ...withMoreHistories]) : ['<rootDir>/test/**/*.test.ts'],
  testPathIgnorePatterns: onlyLong ? [] : inRoot(long.filter((file) => !isNamed(file))),
  // For what never ends. How long a test may take depends on the machine, so no test has a limit of its own.
  testTimeout: 300_000,
  reporters: ['default', '<rootDir>/test/support/plain-summary.mjs'],
  // A worker that has run all its files and has nothing open takes up to a second to end, for the memory that it has to give back.
  // One that something keeps alive is still reported, after this time. Milliseconds.
  workerGracefulExitTimeout: 30_000,
  // What a file has loaded stays in its worker, and is gone through at every collection: a worker that holds so much is replaced.
  workerIdleMemoryLimit: '1GB',
  // Four more than there are processors: many tests wait, for time that passes or for other processes.
  maxWorkers: availableParallelism() + 4,
};
