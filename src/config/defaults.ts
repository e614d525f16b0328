/**
 * Defaults that several files need: the schema's descriptions, the rules between keys and the settings all take them from here.
 * The chart and the documents repeat them; `test/config/defaults.test.ts` holds those to this file.
 */

/** Where the server listens, and the largest request body that it takes. */
export const defaultServer = {
  port: 8080,
  adminHost: '127.0.0.1',
  adminPort: 9090,
  maxBodyBytes: 10_485_760,
  maxConnections: 50_000,
  maxCallsPerConnection: 100,
  maxOpenCalls: 50_000,
  /** Below the time that a command to Redis may take (250 ms): a slow process must not look like a Redis that is unavailable. */
  maxEventLoopDelayMs: 250,
  maxMemoryRatio: 0.85,
} as const;

/** How long and how many calls wait where neither the server nor the upstream states it. */
export const defaultWaits = {
  /** Calls waiting per workspace and upstream. */
  maxQueued: 1_000,
  /**
   * Wait of a call that asks for nothing, seconds: one window of the minute ceiling (60 s), and a margin in which the
   * calls behind the first one leave. With less, a burst a little over the ceiling is refused in part.
   */
  maxWaitSeconds: 75,
  /** Longest wait that a call may ask for, seconds. */
  maxWaitCeilingSeconds: 600,
} as const;
