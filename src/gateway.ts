/**
 * READ FIRST. Builds every part and runs the journey of a call in `handle`; its second half is `journey/forward.ts`:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → answer
 *
 * Owns: the order of the stages and what they hand each other, and the lives of the parts. Refuses to own: any decision
 * inside a stage. Invariant: the API key never reaches an upstream.
 */
import { AdmissionQueue } from './admission/admission.ts';
import { callSettings } from './admission/buckets.policy.ts';
import { RecentRefusals } from './admission/recent-refusals.ts';
import { addInjected, authenticate, injectedFields, injectedForAll } from './auth/authenticate.ts';
import { FailedAttempts } from './auth/failed-attempts.ts';
import { KeyIndex, Keyring } from './auth/keyring.ts';
import { Breakers } from './breaker/breakers.ts';
import { Controls } from './control/controls.ts';
import { digest } from './identity.ts';
import type { Call, Caller, Outcome } from './call.ts';
import type { Clock, Random } from './clock.ts';
import type { Settings } from './config/settings.ts';
import type { Resolve } from './dispatch/agents.ts';
import { SourceNames } from './credentials/credentials.ts';
import { startCredentials } from './credentials/start.ts';
import { createDispatcher, pseudonym } from './dispatch/dispatcher.ts';
import type { IsOwn } from './dispatch/own-listeners.ts';
import { createEndpoint } from './dispatch/token-endpoint.ts';
import { TokenEstimates } from './dispatch/token-estimates.ts';
import { Refusal } from './errors.ts';
import { followedToItsEnd, reportFailure } from './journey/follow.ts';
import { ceilingOf, laneOf, prepare, type Prepared } from './journey/prepare.ts';
import { AnswerTimes } from './journey/answer-times.ts';
import { Forwarder } from './journey/forward.ts';
import type { CeilingsNow } from './activity/shape.ts';
import { createStores } from './limiter/stores.ts';
import { createPressure, noCeilings } from './observation/pressure.ts';
import { startRepeats } from './repeats/start.ts';
import { JoinedQuotas } from './quotas/joined-quotas.ts';
import { createSlices, type Slices } from './slices.ts';
import { createRouteFinder } from './target/route.ts';
import type {
  CallTelemetry,
  ObservedBreaker,
  ObservedBucket,
  ObservedCredential,
  Telemetry,
} from './telemetry/events.ts';

export interface GatewayParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Replaces the slices in which a reload does its work. */
  readonly slices?: Slices;
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
  /** Names where this process listens: nobody is sent there. */
  readonly isOwn?: IsOwn;
}

export interface Gateway {
  /** The journey of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  handle(call: Call): Promise<Outcome>;
  /** Names the caller of a request that is not sent anywhere (`/activity`). */
  identify(call: Call): Promise<Caller>;
  /** Fields in which API keys may come, lower case. */
  credentialFields(): ReadonlySet<string>;
  /**
   * Takes over new settings; waiting calls whose key is gone are refused. Work on very many workspaces is done in slices,
   * while calls go on under the old settings; the change itself is seen by all calls at once. Resolves when it is made.
   * Several changes are made one after the other.
   */
  reconfigure(settings: Settings): Promise<void>;
  /** Refuses calls that wait and cannot leave within `budgetMs`; the others go on. */
  drain(budgetMs: number): void;
  /** Resolves when no call is under way whose clients have left, or after `withinMs`: such calls are finished for their repeats. */
  settled(withinMs: number): Promise<void>;
  /** Ceilings of a workspace on an upstream, as they are now. */
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
  /** Buckets touched by this replica, with their upstreams. */
  buckets(): readonly ObservedBucket[];
  /** Breakers of an upstream that are not closed, as far as this replica knows. */
  breakers(upstream: string): readonly ObservedBreaker[];
  /** Upstream credentials in use whose end is known. */
  credentials(): readonly ObservedCredential[];
  /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
  ready(): Promise<void>;
  /** Why Redis is away, in words for the operator; `null` while it is not, or where none is configured. */
  storeTrouble(): { readonly reason: string; readonly advice: string } | null;
  /** An operator's wishes about upstreams. */
  readonly controls: Pick<Controls, 'open' | 'pause' | 'resume'>;
  hasUpstream(name: string): boolean;
  close(): Promise<void>;
}

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

/** The call at the position of the one that it repeats; `null` = at its own. */
const at = (prepared: Prepared, arrivedAt: number | null): Prepared =>
  arrivedAt === null ? prepared : { ...prepared, request: { ...prepared.request, arrivedAt } };

export function createGateway(parts: GatewayParts): Gateway {
  const { settings: first, clock, random, telemetry, resolve, isOwn, slices = createSlices(clock) } = parts;
  let settings = first;
  let routes = createRouteFinder(settings.upstreams, pseudonym);
  let injected = injectedFields(settings);
  const keyring = new Keyring(settings, clock);
  const failedAttempts = new FailedAttempts();
  const dispatcher = createDispatcher(settings, { clock, resolve, isOwn });
  const send = createEndpoint({ clock, resolve, isOwn });
  const credentials = startCredentials({ settings, clock, random, telemetry, send });
  const repeats = startRepeats({ clock, random, telemetry, settings: () => settings });
  const recentRefusals = new RecentRefusals(clock);
  const stores = createStores({
    settings,
    clock,
    random,
    telemetry,
    listener: {
      onGrant: (grant) => {
        recentRefusals.forget(grant.bucket);
        admission.listener.onGrant(grant);
      },
      onClosed: (bucket, closedMs) => admission.listener.onClosed(bucket, closedMs),
    },
  });
  const estimates = new TokenEstimates(clock, stores.estimates);
  const answerTimes = new AnswerTimes();
  const { ceilings } = stores;
  const limiter = recentRefusals.noticing(stores.limiter);
  const admission: AdmissionQueue = new AdmissionQueue({
    clock,
    limiter,
    ceilings,
    homeOf: (request) => {
      const bucket = quotas.bucketOf(request.admission.bucket);
      if (bucket === request.admission.bucket) return null;
      const home = { bucket, lane: laneOf(bucket, request.workspaceId, settings.privacy.labelKey) };
      pressure.remember({ ...request, admission: { ...request.admission, ...home } });
      return home;
    },
    onFailure: (failure) => telemetry.log.bug('a limiter operation failed', failure),
  });
  const quotas: JoinedQuotas = new JoinedQuotas({
    clock,
    labelKey: settings.privacy.labelKey,
    store: stores.quotas,
    onJoined: () => admission.followJoined(),
    onFailure: (failure) => telemetry.log.bug('buckets that share a quota could not be joined', failure),
  });
  const breakers: Breakers = new Breakers({
    clock,
    random,
    labelKey: settings.privacy.labelKey,
    store: stores.breakers,
    onOpened: () => admission.refuseWaiting(({ subject }) => breakers.refusalOf(subject)),
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
    keyOf: (upstream) => digest(first.privacy.labelKey, 'upstream', upstream),
    upstreams: () => settings.upstreams.keys(),
    onOpened: (upstream) => breakers.open(upstream),
    onFailure: (failure) => telemetry.log.bug('a pause or an opening could not be read', failure),
  });
  const forwarder = new Forwarder({
    controls,
    admission,
    recentRefusals,
    ceilings,
    breakers,
    dispatcher,
    estimates,
    answerTimes,
    clock,
    quotas,
    telemetry,
    routes: () => routes,
    settings: () => settings,
    credentials,
  });
  telemetry.configured(settings.upstreams.values());

  const identify = async (call: Call): Promise<Caller> => {
    try {
      return authenticate(call.rawFields, keyring, injected, call.rawUrl);
    } catch (refusal) {
      if (!(refusal instanceof Refusal) || refusal.code !== 'unauthenticated') throw refusal;
      throw await failedAttempts.refusal(call.source);
    }
  };

  /** The journey up to admission, apart from the rest: what only it needs is let go while the call is held. */
  const ready = async (call: Call, followed: CallTelemetry): Promise<Prepared> => {
    const caller = await identify(call);
    followed.identified(caller);
    const route = routes.find(call, caller);
    followed.routed(route.upstream);
    const body = await call.readBody(caller.workspace.id);
    const { labelKey } = settings.privacy;
    const now = clock.monotonic();
    const prepared = prepare({ call, caller, route, body, labelKey, estimates, answerTimes, quotas, now });
    pressure.remember(prepared.request);
    followed.admitting(prepared.request.admission.lane);
    return prepared;
  };

  const handle = async (call: Call): Promise<Outcome> => {
    const followed = telemetry.begin(call);
    try {
      const prepared = await ready(call, followed);
      const { repeatKey: key, request } = prepared;
      const wish = { key, clientGone: call.clientGone, arrivedAt: request.arrivedAt };
      const outcome = await repeats.run(wish, (audience, arrivedAt) =>
        forwarder.forward(at(prepared, arrivedAt), audience, followed),
      );
      return followedToItsEnd(outcome, followed);
    } catch (failure) {
      reportFailure(call, followed, failure);
      throw failure;
    }
  };

  /** The place for what a reload has to do: slices before the change, the change in one tick, slices after it. */
  const takeOver = async (next: Settings): Promise<void> => {
    const keys = new KeyIndex();
    const fields = injectedForAll(next.upstreams);
    const sources = new SourceNames(next.upstreams);
    await slices.forEach(next.workspaces.values(), (workspace) => {
      keys.add(workspace);
      sources.addOf(workspace);
      addInjected(fields, workspace);
    });
    // First what may fail: the settings in use then stay.
    dispatcher.configure(next);
    settings = next;
    routes = createRouteFinder(next.upstreams, pseudonym);
    injected = fields;
    keyring.replace(keys);
    credentials.configure(next.upstreams, sources);
    telemetry.configured(next.upstreams.values());
    recentRefusals.forgetAll();
    admission.recheckKeys();
    admission.reconfigure(({ workspaceId, upstream: name }) => {
      const workspace = next.workspaces.get(workspaceId);
      const upstream = next.upstreams.get(name);
      return workspace === undefined || upstream === undefined ? null : callSettings(workspace, upstream);
    });
  };
  let lastTakenOver: Promise<void> = Promise.resolve();

  let cancelRecheck = (): void => {};
  const recheckLater = (): void => {
    cancelRecheck = clock.after(recheckMs, () => {
      admission.recheckKeys();
      recheckLater();
    });
  };
  recheckLater();

  return {
    handle,
    identify,
    credentialFields: () => injected,
    reconfigure(next) {
      const takenOver = lastTakenOver.then(() => takeOver(next));
      // A change that failed is reported to the one that asked for it, and does not keep the next one from being made.
      lastTakenOver = takenOver.catch(() => {});
      return takenOver;
    },
    drain: (budgetMs) => admission.drain(budgetMs),
    settled: (withinMs) => repeats.settled(withinMs),
    async ceilings(workspaceId, upstreamName) {
      const workspace = settings.workspaces.get(workspaceId);
      const upstream = settings.upstreams.get(upstreamName);
      if (workspace === undefined || upstream === undefined) return noCeilings;
      const now = await pressure.ceilings(ceilingOf(workspace, upstream, settings.privacy.labelKey));
      const credential = workspace.credentials.get(upstreamName) ?? upstream.credential;
      const [refusing] = breakers.observed(upstreamName, credential?.quota ?? '');
      return { ...now, refusing: refusing ?? null };
    },
    buckets: () => pressure.buckets(),
    breakers: (upstream) => breakers.observed(upstream),
    credentials: () => credentials.observed(),
    controls,
    hasUpstream: (name) => settings.upstreams.has(name),
    async ready() {
      await stores.ready();
      await controls.start();
    },
    storeTrouble: () => stores.trouble(),
    async close() {
      cancelRecheck();
      repeats.close();
      controls.close();
      credentials.close();
      dispatcher.close();
      breakers.close();
      await stores.close();
    },
  };
}
