/**
 * Defaults that several files need: the schema's descriptions, the rules between keys and the settings all take them from here.
 * The chart and the documents repeat them; `test/config/published.test.ts` holds those to this file.
 */

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
  /** How long after the told time a reservation is kept, seconds: longer than clients are late, and few calls of others. */
  reserveSeconds: 10,
  /** Reservations per workspace and upstream. */
  maxReserved: 1_000,
} as const;

/** Defaults of the upstream kinds: what calls share beside what their file states. `null`: none. */
const generic = {
  requestsPerMinute: null as number | null,
  requestsPerDay: null as number | null,
  maxInFlight: null as number | null,
  /** Field that carries the credential. */
  field: 'authorization',
  /** Time from sending to the response's head. */
  headSeconds: 300,
  bucketBy: ['credential'] as readonly ('credential' | 'host' | 'model')[],
};

export const defaultsOfKinds = {
  generic,
  'language-model': {
    ...generic,
    requestsPerMinute: 500,
    requestsPerDay: 10_000,
    bucketBy: ['credential', 'model'],
  },
  commerce: {
    ...generic,
    requestsPerMinute: 40,
    maxInFlight: 1,
    field: 'x-shopify-access-token',
    headSeconds: 60,
  },
} satisfies Record<string, typeof generic>;

export type UpstreamKind = keyof typeof defaultsOfKinds;
