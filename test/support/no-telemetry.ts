/** Telemetry that reports nothing. */
import type { CallRecord } from '../../src/telemetry/call-record.ts';
import type { Telemetry } from '../../src/telemetry/telemetry.ts';

const nothing = (): void => {};

const silentCall: CallRecord = {
  traceId: null,
  workspaceId: null,
  caller: undefined,
  held: [],
  recording: null,
  would: null,
  routed: nothing,
  admitting: nothing,
  queued: nothing,
  sent: () => null,
  answered: nothing,
  absorbed: nothing,
  attemptFailed: nothing,
  ended: nothing,
};

export const noTelemetry: Telemetry = {
  begin: () => silentCall,
  count: nothing,
  reckoned: nothing,
  requestRefused: nothing,
  limiterMode: nothing,
  configurationRead: nothing,
  redisCommand: nothing,
  reload: nothing,
  observe: nothing,
  live: () => [],
  limiterHealth: () => ({ mode: null, modeSince: 0, redisMs: null }),
  configuration: () => ({ inForceSince: 0, refusedAt: null }),
  log: { debug: nothing, info: nothing, warn: nothing, error: nothing, bug: nothing },
};
