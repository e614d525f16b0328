/**
 * A gateway: the parts that calls flow through (`pipeline.ts`), what each of them is given of the others, and their lives from the start
 * over reloads to the end. Does not own: the flow of a call.
 */
import type { CeilingsNow } from './activity/shape.ts';
import { AdmissionQueue } from './admission/admission.ts';
import { callSettings, settingsOfOperation } from './admission/buckets.policy.ts';
import type { AdmissionRequest, BucketLane } from './admission/ticket.ts';
import { createKeyring } from './auth/authenticate.ts';
import { createBreakers, type Breakers } from './breaker/breakers.ts';
import { every, type Clock, type Random } from './clock.ts';
import type { Settings } from './config/settings.ts';
import { createControls } from './control/controls.ts';
import { accountOfWorkspace } from './credential-carriers.policy.ts';
import { Credentials } from './credentials/credentials.ts';
import type { AgentParts } from './dispatch/agents.ts';
import { Dispatcher } from './dispatch/dispatcher.ts';
import { createEndpoint } from './dispatch/one-request.ts';
import { TokenEstimates, RecentResponses } from './journey/recent-responses.ts';
import { digest } from './identity.ts';
import { backgroundLane, isBackground } from './ids.ts';
import { ChosenBuckets, ceilingOf, laneOf } from './journey/call-bucket.ts';
import { fieldsForClient } from './journey/attempts.ts';
import { createStores } from './limiter/stores.ts';
import { createPressure, noCeilings } from './observation/pressure.ts';
import { Pipeline, type PipelineParts } from './pipeline.ts';
import { createJoinedQuotas, type JoinedQuotas } from './quotas/joined-quotas.ts';
import type { Recorder } from './recording/recorder.ts';
import { Repeats } from './repeats/repeats.ts';
import { createMapsIn } from './replicated/redis-map.ts';
import { createSharedRedis } from './replicated/shared-redis.ts';
import { createRuntime } from './runtime.ts';
import type { Telemetry } from './telemetry/telemetry.ts';

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

export type Gateway = ReturnType<typeof createGateway>;

/** What a gateway needs from outside. Its label key, and where Redis is, stay for the life of the process. */
export interface GatewayOptions extends AgentParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Left out: nobody can record calls. */
  readonly recorder?: Pick<Recorder, 'isRecording' | 'arrived'>;
}

export function createGateway(options: GatewayOptions) {
  const { settings, clock, random, telemetry, resolve, recorder } = options;
  const { log } = telemetry;
  let current = createRuntime(settings, options);
  const runtime = () => current;
  const { labelKey } = settings.privacy;
  const keyring = createKeyring(() => runtime().keys, clock);
  const dispatcher = new Dispatcher(clock);
  const send = createEndpoint({ clock, resolve });
  const onError = (): void => telemetry.count('sluice_redis_errors_total', { kind: 'other' });
  /** Where features share what may be large with other replicas; `null` = there are none. */
  const sharedRedis = settings.redis === null ? null : createSharedRedis(settings.redis, options, onError);
  const createMap = sharedRedis === null ? null : createMapsIn(sharedRedis, labelKey);
  const credentials = new Credentials({ settings, clock, random, telemetry, send, createMap });
  const idempotency = () => runtime().settings.idempotency;
  const repeats = new Repeats({ clock, random, telemetry, settings: idempotency, createMap });
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
  const shared = { clock, random, labelKey, createMap: stores.createMap };
  const failed = (words: string) => (failure: unknown) => log.bug(words, failure);
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
    onReckoned: ({ workspaceId, subject: { upstream } }, reckoned) =>
      telemetry.reckoned(workspaceId, upstream, reckoned),
    onFailure: failed('a limiter operation failed'),
  });
  const quotas: JoinedQuotas = createJoinedQuotas({
    ...shared,
    onJoined: () => admission.moveToJoinedBuckets(),
    onFailure: failed('buckets that share a quota could not be joined'),
  });
  const breakers: Breakers = createBreakers({
    ...shared,
    onBreakerOpened: () => admission.refuseWaiting(({ subject }) => breakers.openBreakerRefusal(subject)),
    onRefused: (upstream, { status, retryInMs, said }) =>
      log.warn('an upstream refuses calls for good', {
        upstream,
        status,
        said,
        retryInMs: Math.ceil(retryInMs),
      }),
    onFailure: failed('a breaker failed'),
  });
  const pressure = createPressure({ clock, limiter, ceilings, admission });
  const controls = createControls({
    ...shared,
    limiter,
    bucketsOf: (upstream) => pressure.bucketsOf(upstream),
    keyOf: (upstream) => digest(labelKey, 'upstream', upstream),
    upstreams: () => runtime().settings.upstreams.keys(),
    onUpstreamReopened: (upstream) => breakers.closeAllOf(upstream),
    onFailure: failed('a pause or an opening could not be read'),
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
  const parts = {
    admission,
    around,
    breakers,
    ceilings,
    chosenBuckets: new ChosenBuckets(),
    clock,
    controls,
    credentials,
    dispatcher,
    estimates: new TokenEstimates(),
    keyring,
    pressure,
    quotas,
    repeats,
    recentResponses: new RecentResponses(),
    runtime,
    sharedRedis,
    stores,
    telemetry,
  };
  const pipeline = new Pipeline(parts);
  telemetry.reload(settings);
  const recheckKeys = (): void => {
    admission.recheckKeys();
    repeats.recheckKeys();
  };
  const cancelRecheck = every(clock, recheckMs, recheckKeys);
  return {
    /** What calls flow through. */
    parts,
    pipeline,
    /** The one in use. */
    runtime,
    /** Lower-case names of the fields in which credentials are injected now. */
    credentialFields: () => current.credentialFields,
    /** Takes over new settings, which all calls see at once; waiting calls whose key is gone are refused. */
    reload(next: Settings): void {
      current = createRuntime(next, options, current.egress.pools);
      credentials.reload(next.upstreams);
      telemetry.reload(next);
      recheckKeys();
      admission.reload(({ workspaceId, subject, admission: { lane } }) => {
        const workspace = next.workspaces.get(workspaceId);
        const upstream = next.upstreams.get(subject.upstream);
        return workspace === undefined || upstream === undefined
          ? null
          : callSettings(workspace, settingsOfOperation(upstream, subject.operation), isBackground(lane));
      });
    },
    /** Ceilings of a workspace on an upstream, as they are now. */
    async ceilings(workspaceId: string, upstreamName: string): Promise<CeilingsNow> {
      const { workspaces, upstreams, privacy } = current.settings;
      const [workspace, upstream] = [workspaces.get(workspaceId), upstreams.get(upstreamName)];
      if (workspace === undefined || upstream === undefined) return noCeilings;
      const key = ceilingOf(workspaceId, upstreamName, privacy.labelKey);
      const written = callSettings(workspace, upstream);
      const { perMinute, perDay } = pressure.hasYielded(key) ? (written.yielded ?? written) : written;
      const now = await pressure.ceilings({ key, perMinute, perDay });
      const credential = workspace.credentials.get(upstreamName) ?? upstream.credential;
      const account = credential?.quota ?? accountOfWorkspace(workspaceId);
      const [refusing = null] = breakers.observed(upstreamName, account);
      return { ...now, refusing };
    },
    /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
    async ready(): Promise<void> {
      await stores.ready();
      // What other replicas may have begun.
      if (sharedRedis !== null) await controls.start();
    },
    async close(): Promise<void> {
      cancelRecheck();
      repeats.close();
      admission.close();
      controls.close();
      const renewalsEnded = credentials.close();
      dispatcher.close(current.egress.pools);
      await stores.close();
      await renewalsEnded;
      sharedRedis?.close();
    },
  };
}
