/** Telemetry that reports nothing. */
import type { CallTelemetry, Telemetry } from '../../src/telemetry/events.ts';
import { otherLabel } from '../../src/telemetry/labels.ts';
import { silentLog } from '../../src/telemetry/noop.ts';

const nothing = (): void => {};

const silentCall: CallTelemetry = {
  traceId: null,
  identified: nothing,
  routed: nothing,
  admitting: nothing,
  queued: nothing,
  granted: nothing,
  sent: nothing,
  traceparent: () => null,
  answered: nothing,
  absorbed: nothing,
  attemptFailed: nothing,
  ended: nothing,
};

export const noTelemetry: Telemetry = {
  begin: () => silentCall,
  overloaded: nothing,
  shedding: nothing,
  requestRefused: nothing,
  limiterMode: nothing,
  redisCommand: nothing,
  redisError: nothing,
  leaseLost: nothing,
  credentialRenewal: nothing,
  replayed: nothing,
  joined: nothing,
  madeAgain: nothing,
  refusedAgain: nothing,
  configured: nothing,
  observe: nothing,
  live: () => [],
  limiterHealth: () => ({ mode: null, redisErrors: 0, leasesLost: 0, redisMs: null }),
  labelOf: () => otherLabel,
  log: silentLog,
};
