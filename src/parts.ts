/**
 * The parts of a gateway, and what each of them is given of the others.
 *
 * Owns: which part is given which. Does not own: the order of a call's stages (`gateway.ts`), a change of settings
 * (`take-over.ts`).
 */
import { AdmissionQueue } from './admission/admission.ts';
import { FailedAttempts } from './auth/failed-attempts.ts';
import { Keyring } from './auth/keyring.ts';
import { Breakers } from './breaker/breakers.ts';
import type { Clock, Random } from './clock.ts';
import { Controls } from './control/controls.ts';
import type { Credentials } from './credentials/credentials.ts';
import { startCredentials } from './credentials/start.ts';
import type { Resolve } from './dispatch/agents.ts';
import { Dispatcher } from './dispatch/dispatcher.ts';
import type { IsOwn } from './dispatch/own-listeners.ts';
import { createEndpoint } from './dispatch/token-endpoint.ts';
import { TokenEstimates } from './dispatch/token-estimates.ts';
import { digest } from './identity.ts';
import { ChosenBuckets } from './journey/chosen-buckets.ts';
import { ResponseTimes } from './journey/response-times.ts';
import { Forwarder } from './journey/forward.ts';
import { laneOf } from './journey/prepare.ts';
import { createStores, type Stores } from './limiter/stores.ts';
import { createPressure, type Pressure } from './observation/pressure.ts';
import { JoinedQuotas } from './quotas/joined-quotas.ts';
import type { Repeats } from './repeats/repeats.ts';
import { startRepeats } from './repeats/start.ts';
import type { SettingsInUse } from './settings-in-use.ts';
import type { Telemetry } from './telemetry/telemetry.ts';

/** What the parts need from outside. */
export interface PartsOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
  /** Names where this process listens: nobody is sent there. */
  readonly isOwn?: IsOwn;
}

/** The parts that the gateway itself uses. */
export interface Parts {
  readonly admission: AdmissionQueue;
  readonly responseTimes: ResponseTimes;
  readonly breakers: Breakers;
  readonly chosenBuckets: ChosenBuckets;
  readonly controls: Controls;
  readonly credentials: Credentials;
  readonly dispatcher: Dispatcher;
  readonly estimates: TokenEstimates;
  readonly failedAttempts: FailedAttempts;
  readonly forwarder: Forwarder;
  readonly keyring: Keyring;
  readonly pressure: Pressure;
  readonly quotas: JoinedQuotas;
  readonly repeats: Repeats;
  readonly stores: Stores;
}

/** `inUse`: the settings, which a reload replaces; the label key and where Redis is stay for the life of the process. */
export function createParts(options: PartsOptions, inUse: SettingsInUse): Parts {
  const { clock, random, telemetry, resolve, isOwn } = options;
  const first = inUse.settings;
  const { labelKey } = first.privacy;
  const keyring = new Keyring(first, clock);
  const failedAttempts = new FailedAttempts();
  const dispatcher = new Dispatcher(first, { clock, resolve, isOwn });
  const send = createEndpoint({ clock, resolve, isOwn });
  const credentials = startCredentials({ settings: first, clock, random, telemetry, send });
  const repeats = startRepeats({ clock, random, telemetry, settings: () => inUse.settings });
  const stores = createStores({
    settings: first,
    clock,
    random,
    telemetry,
    listener: {
      onGrant: (grant) => admission.listener.onGrant(grant),
      onClosed: (bucket, closedMs) => admission.listener.onClosed(bucket, closedMs),
    },
  });
  const estimates = new TokenEstimates(clock, stores.estimates);
  const responseTimes = new ResponseTimes();
  const { ceilings, limiter } = stores;
  const admission: AdmissionQueue = new AdmissionQueue({
    clock,
    limiter,
    ceilings,
    joinedBucketOf: (request) => {
      const bucket = quotas.bucketOf(request.admission.bucket);
      if (bucket === request.admission.bucket) return null;
      return { bucket, lane: laneOf(bucket, request.workspaceId, labelKey) };
    },
    onFailure: (failure) => telemetry.log.bug('a limiter operation failed', failure),
  });
  const quotas: JoinedQuotas = new JoinedQuotas({
    clock,
    labelKey,
    store: stores.quotas,
    onJoined: () => admission.moveToJoinedBuckets(),
    onFailure: (failure) => telemetry.log.bug('buckets that share a quota could not be joined', failure),
  });
  const breakers: Breakers = new Breakers({
    clock,
    random,
    labelKey,
    store: stores.breakers,
    onBreakerOpened: () => admission.refuseWaiting(({ subject }) => breakers.openBreakerRefusal(subject)),
    onRefused: (upstream, { status, retryInMs }) =>
      telemetry.log.warn('an upstream refuses calls for good', { upstream, status, retryInMs }),
    onFailure: (failure) => telemetry.log.bug('a breaker failed', failure),
  });
  const pressure = createPressure({ clock, limiter, ceilings, admission });
  const controls = new Controls({
    clock,
    store: stores.controls,
    limiter,
    bucketsOf: (upstream) => pressure.bucketsOf(upstream),
    keyOf: (upstream) => digest(labelKey, 'upstream', upstream),
    upstreams: () => inUse.settings.upstreams.keys(),
    onUpstreamReopened: (upstream) => breakers.closeAllOf(upstream),
    onFailure: (failure) => telemetry.log.bug('a pause or an opening could not be read', failure),
  });
  const forwarder = new Forwarder({
    controls,
    admission,
    ceilings,
    breakers,
    dispatcher,
    estimates,
    responseTimes,
    clock,
    quotas,
    telemetry,
    routes: () => inUse.routes,
    keyFields: () => inUse.keyFields,
    settings: () => inUse.settings,
    credentials,
  });
  return {
    admission,
    responseTimes,
    breakers,
    chosenBuckets: new ChosenBuckets(),
    controls,
    credentials,
    dispatcher,
    estimates,
    failedAttempts,
    forwarder,
    keyring,
    pressure,
    quotas,
    repeats,
    stores,
  };
}
