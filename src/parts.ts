/**
 * The parts of a gateway, and what each of them is given of the others.
 *
 * Does not own: the order of a call's stages (`pipeline.ts`), a reload (`gateway.ts`).
 */
import { AdmissionQueue } from './admission/admission.ts';
import type { AdmissionRequest, BucketLane } from './admission/ticket.ts';
import { Keyring } from './auth/keyring.ts';
import { Breakers } from './breaker/breakers.ts';
import type { Clock, Random } from './clock.ts';
import { Controls } from './control/controls.ts';
import { Credentials } from './credentials/credentials.ts';
import type { AgentParts } from './dispatch/agents.ts';
import { Dispatcher } from './dispatch/dispatcher.ts';
import { createEndpoint } from './dispatch/one-request.ts';
import { TokenEstimates } from './dispatch/token-estimates.ts';
import { digest } from './identity.ts';
import { ChosenBuckets } from './journey/call-bucket.ts';
import { backgroundLane, isBackground } from './ids.ts';
import { laneOf } from './journey/key-names.ts';
import { ResponseTimes } from './journey/response-times.ts';
import { fieldsForClient } from './journey/response.ts';
import { createStores } from './limiter/stores.ts';
import { createPressure } from './observation/pressure.ts';
import type { PipelineParts } from './pipeline.ts';
import { JoinedQuotas } from './quotas/joined-quotas.ts';
import { Repeats } from './repeats/repeats.ts';
import type { Recorder } from './recording/recorder.ts';
import type { Runtime } from './runtime.ts';
import { createMapsIn } from './replicated/redis-map.ts';
import { SharedRedis } from './replicated/shared-redis.ts';
import type { Telemetry } from './telemetry/telemetry.ts';

export type Parts = ReturnType<typeof createParts>;

/** What the parts need from outside. */
export interface PartsOptions extends AgentParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Left out: nobody can record calls. */
  readonly recorder?: Pick<Recorder, 'isRecording' | 'arrived'>;
}

/** `runtime`: the one in use; the label key and where Redis is stay for the life of the process. */
export function createParts(options: PartsOptions, runtime: () => Runtime) {
  const { clock, random, telemetry, resolve, isOwn, recorder } = options;
  const { log } = telemetry;
  const { settings } = runtime();
  const { labelKey } = settings.privacy;
  const keyring = new Keyring(() => runtime().keys, clock);
  const dispatcher = new Dispatcher(clock);
  const send = createEndpoint({ clock, resolve, isOwn });
  const onError = (): void => telemetry.count('sluice_redis_errors_total', { kind: 'other' });
  /** Where features share what may be large with other replicas; `null` = there are none. */
  const sharedRedis =
    settings.redis === null ? null : new SharedRedis({ settings: settings.redis, clock, random, onError });
  const createMap = sharedRedis === null ? null : createMapsIn(sharedRedis, labelKey);
  const credentials = new Credentials({ settings, clock, random, telemetry, send, createMap });
  const repeats = new Repeats({
    clock,
    random,
    telemetry,
    settings: () => runtime().settings.idempotency,
    createMap,
  });
  const stores = createStores({
    settings,
    clock,
    random,
    telemetry,
    listener: {
      onGrant: (grant) => admission.listener.onGrant(grant),
      onClosed: (bucket, closedMs) => admission.listener.onClosed(bucket, closedMs),
    },
  });
  const { ceilings, limiter } = stores;
  /** `null` = it stands where it belongs. */
  const joinedBucketOf = ({
    admission: { bucket: own, lane: ownLane },
    workspaceId,
  }: AdmissionRequest): BucketLane | null => {
    const bucket = quotas.bucketOf(own);
    if (bucket === own) return null;
    const lane = laneOf(bucket, workspaceId, labelKey);
    return { bucket, lane: isBackground(ownLane) ? backgroundLane(lane) : lane };
  };
  const admission: AdmissionQueue = new AdmissionQueue({
    clock,
    limiter,
    ceilings,
    joinedBucketOf,
    onReckoned: ({ admission: { ticket }, workspaceId, subject: { upstream } }, reckoned, told) =>
      telemetry.reckoned({ requestId: ticket, workspaceId, upstream }, reckoned, told),
    onFailure: (failure) => log.bug('a limiter operation failed', failure),
  });
  const quotas: JoinedQuotas = new JoinedQuotas({
    clock,
    labelKey,
    random,
    createMap: stores.createMap,
    onJoined: () => admission.moveToJoinedBuckets(),
    onFailure: (failure) => log.bug('buckets that share a quota could not be joined', failure),
  });
  const breakers: Breakers = new Breakers({
    clock,
    random,
    labelKey,
    createMap: stores.createMap,
    onBreakerOpened: () => admission.refuseWaiting(({ subject }) => breakers.openBreakerRefusal(subject)),
    onRefused: (upstream, { status, retryInMs, said }) =>
      log.warn('an upstream refuses calls for good', { upstream, status, said, retryInMs }),
    onFailure: (failure) => log.bug('a breaker failed', failure),
  });
  const pressure = createPressure({ clock, limiter, ceilings, admission });
  const controls = new Controls({
    clock,
    random,
    createMap: stores.createMap,
    limiter,
    bucketsOf: (upstream) => pressure.bucketsOf(upstream),
    keyOf: (upstream) => digest(labelKey, 'upstream', upstream),
    upstreams: () => runtime().settings.upstreams.keys(),
    onUpstreamReopened: (upstream) => breakers.closeAllOf(upstream),
    onFailure: (failure) => log.bug('a pause or an opening could not be read', failure),
  });
  /** A call that may be repeated is made for all that repeat it, at the position of the first; any other call is made as it is. */
  const around: PipelineParts['around'] = (prepared, forward) => {
    const { callRecord, repeatKey: key, request, call } = prepared;
    if (recorder?.isRecording === true)
      callRecord.recording = recorder.arrived(prepared, () => joinedBucketOf(request) ?? request.admission);
    if (key === null) return forward(prepared, { signal: call.clientGone });
    const { arrivedAt, stillValid } = request;
    return repeats.run(
      {
        key,
        clientGone: call.clientGone,
        stillValid,
        arrivedAt,
        fieldsFor: (head, addsRateLimit) => fieldsForClient(prepared, head, addsRateLimit),
        retain: () => call.retain(),
      },
      (audience, position) => {
        const ofAll = (): boolean => audience.stillValid?.() ?? stillValid();
        const shared = { ...request, arrivedAt: position, stillValid: ofAll };
        return forward({ ...prepared, request: shared }, audience);
      },
    );
  };
  return {
    admission,
    around,
    breakers,
    ceilings,
    chosenBuckets: new ChosenBuckets(),
    controls,
    credentials,
    dispatcher,
    estimates: new TokenEstimates(),
    keyring,
    pressure,
    quotas,
    repeats,
    responseTimes: new ResponseTimes(),
    sharedRedis,
    stores,
  };
}
