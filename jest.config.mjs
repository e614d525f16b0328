import { availableParallelism } from 'node:os';

/**
 * Files of minutes. `npm run verify:long` runs them, and more histories of the simulations and of parity; so does `.ci/run`.
 * `npm test` runs them when their path, or a part of it, is named.
 */
const long = [
  'test/limiter/parity-faults.test.ts',
  'test/simulation/metering/outside.test.ts',
  'test/simulation/replicas/far-redis.test.ts',
  'test/activity/very-many.test.ts',
  'test/privacy/label-cap-memory.test.ts',
];
const named = process.argv.slice(2).filter((argument) => argument.includes('test/'));
const isNamed = (file) => named.some((part) => file.includes(part));

/** Jest runs the TypeScript sources as ES modules; Node itself strips the types. */
export default {
  // Node, and a check that each file leaves no timer, socket, server or process behind.
  testEnvironment: '<rootDir>/test/support/leak-check.mjs',
  extensionsToTreatAsEsm: ['.ts'],
  transform: { '\\.ts$': '<rootDir>/test/support/strip-types.mjs' },
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  testPathIgnorePatterns: long.filter((file) => !isNamed(file)).map((file) => `<rootDir>/${file}`),
  testTimeout: 30_000,
  reporters: ['default', '<rootDir>/test/support/plain-summary.mjs'],
  // One more than there are processors: many tests wait, for time that passes or for other processes.
  maxWorkers: availableParallelism() + 1,
};
