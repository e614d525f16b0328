import { availableParallelism } from 'node:os';

/** Jest runs the TypeScript sources as ES modules; Node itself strips the types. */
export default {
  // Node, and a check that each file leaves no timer, socket, server or process behind.
  testEnvironment: '<rootDir>/test/support/leak-check.mjs',
  extensionsToTreatAsEsm: ['.ts'],
  transform: { '\\.ts$': '<rootDir>/test/support/strip-types.mjs' },
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  testTimeout: 30_000,
  reporters: ['default', '<rootDir>/test/support/plain-summary.mjs'],
  // One more than there are processors: many tests wait, for time that passes or for other processes.
  maxWorkers: availableParallelism() + 1,
};
