import { availableParallelism } from 'node:os';

/** Jest runs the TypeScript sources as ES modules; Node itself strips the types. */
export default {
  testEnvironment: 'node',
  extensionsToTreatAsEsm: ['.ts'],
  transform: { '\\.ts$': '<rootDir>/test/support/strip-types.mjs' },
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  testTimeout: 30_000,
  reporters: ['default', '<rootDir>/test/support/plain-summary.mjs'],
  // One more than there are processors: many tests wait, for time that passes or for other processes.
  maxWorkers: availableParallelism() + 1,
};
