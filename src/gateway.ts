/**
 * READ FIRST. Runs the journey of a call in `handle`; its second half is `journey/forward.ts`:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → answer
 *
 * Owns: the order of the stages and what they hand each other, and the lives of the parts. Refuses to own: any decision
 * inside a stage, which part is given which (`parts.ts`). Invariant: the API key never reaches an upstream.
 */
import type { CeilingsNow } from './activity/shape.ts';
import { authenticate } from './auth/authenticate.ts';
import type { Call, Caller, Outcome } from './call.ts';
import type { Settings } from './config/settings.ts';
import type { Controls } from './control/controls.ts';
import { Refusal } from './errors.ts';
import { followedToItsEnd, reportFailure } from './journey/follow.ts';
import { ceilingOf, prepare, type Prepared } from './journey/prepare.ts';
import { noCeilings } from './observation/pressure.ts';
import { createParts, type PartsOptions } from './parts.ts';
import { InUse } from './settings-in-use.ts';
import { createSlices, type Slices } from './slices.ts';
import { takeOver } from './take-over.ts';
import type {
  CallTelemetry,
  ObservedBreaker,
  ObservedBucket,
  ObservedCredential,
} from './telemetry/events.ts';

export interface GatewayOptions extends PartsOptions {
  readonly settings: Settings;
  /** Replaces the slices in which a reload does its work. */
  readonly slices?: Slices;
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

export function createGateway(options: GatewayOptions): Gateway {
  const { settings: first, clock, telemetry, slices = createSlices(clock) } = options;
  const inUse = new InUse(first);
  const parts = createParts(options, inUse);
  const { admission, breakers, controls, credentials, pressure, repeats, stores } = parts;
  telemetry.configured(first.upstreams.values());

  const identify = async (call: Call): Promise<Caller> => {
    try {
      return authenticate(call.rawFields, parts.keyring, inUse.injected, call.rawUrl);
    } catch (refusal) {
      if (!(refusal instanceof Refusal) || refusal.code !== 'unauthenticated') throw refusal;
      throw await parts.failedAttempts.refusal(call.source);
    }
  };

  /** The journey up to admission, apart from the rest: what only it needs is let go while the call is held. */
  const ready = async (call: Call, followed: CallTelemetry): Promise<Prepared> => {
    const caller = await identify(call);
    followed.identified(caller);
    const route = inUse.routes.find(call, caller);
    followed.routed(route.upstream);
    const body = await call.readBody(caller.workspace.id);
    const { estimates, answerTimes, quotas } = parts;
    const { labelKey } = inUse.settings.privacy;
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
        parts.forwarder.forward(at(prepared, arrivedAt), audience, followed),
      );
      return followedToItsEnd(outcome, followed);
    } catch (failure) {
      reportFailure(call, followed, failure);
      throw failure;
    }
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
    credentialFields: () => inUse.injected,
    reconfigure(next) {
      const takenOver = lastTakenOver.then(() => takeOver(next, { parts, inUse, telemetry, slices }));
      // A change that failed is reported to the one that asked for it, and does not keep the next one from being made.
      lastTakenOver = takenOver.catch(() => {});
      return takenOver;
    },
    drain: (budgetMs) => admission.drain(budgetMs),
    settled: (withinMs) => repeats.settled(withinMs),
    async ceilings(workspaceId, upstreamName) {
      const { settings } = inUse;
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
    hasUpstream: (name) => inUse.settings.upstreams.has(name),
    async ready() {
      repeats.connect();
      await stores.ready();
      await controls.start();
    },
    storeTrouble: () => stores.trouble(),
    async close() {
      cancelRecheck();
      repeats.close();
      controls.close();
      credentials.close();
      parts.dispatcher.close();
      breakers.close();
      await stores.close();
    },
  };
}
