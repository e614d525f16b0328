/**
 * READ FIRST. Builds every part and tells the journey of a call in `handle`; its second half is `journey/travel.ts`:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → answer
 *
 * Owns: the order of the stages and what they hand each other, and the lives of the parts. Refuses to own: any decision
 * inside a stage. Invariant: the API key never reaches an upstream.
 */
import { createDesk, type Desk } from './admission/admit.ts';
import { entrySettings } from './admission/buckets.policy.ts';
import { createJoins } from './admission/join.ts';
import { authenticate, injectedFields, type AuthenticatedCaller } from './auth/authenticate.ts';
import { FailedAttempts } from './auth/failed-attempts.ts';
import { Keyring } from './auth/keyring.ts';
import type { Call, Outcome } from './call.ts';
import type { Clock, Random } from './clock.ts';
import type { Settings } from './config/settings.ts';
import type { Resolve } from './dispatch/agents.ts';
import { createDispatcher, pseudonym } from './dispatch/dispatcher.ts';
import { Refusal } from './errors.ts';
import { followedToItsEnd, tellFailure } from './journey/follow.ts';
import { ceilingOf, prepare } from './journey/prepare.ts';
import { createPressure, noCeilings } from './journey/pressure.ts';
import { createTravel } from './journey/travel.ts';
import { createStores } from './limiter/stores.ts';
import type { CeilingsNow } from './page/observation.ts';
import { createRouteFinder } from './target/route.ts';
import type { ObservedBucket, Telemetry } from './telemetry/events.ts';

export interface GatewayParts {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** Replaces the system's name resolution of upstreams. */
  readonly resolve?: Resolve;
}

export interface Gateway {
  /** The journey of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  handle(call: Call): Promise<Outcome>;
  /** Names the caller of a request that is not sent anywhere (`/activity`). */
  identify(call: Call): Promise<AuthenticatedCaller>;
  /** Fields in which API keys may come, lower case. */
  credentialFields(): ReadonlySet<string>;
  /** Takes over new settings at once; waiting calls whose key is gone are refused. */
  reconfigure(settings: Settings): void;
  /** Refuses calls that wait and cannot leave within `budgetMs`; the others go on. */
  drain(budgetMs: number): void;
  /** Ceilings of a workspace on an upstream, as they are now. */
  ceilings(workspaceId: string, upstream: string): Promise<CeilingsNow>;
  /** Buckets touched by this replica, with their upstreams. */
  buckets(): readonly ObservedBucket[];
  /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
  ready(): Promise<void>;
  close(): Promise<void>;
}

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

export function createGateway({ settings: first, clock, random, telemetry, resolve }: GatewayParts): Gateway {
  let settings = first;
  let routes = createRouteFinder(settings.upstreams, pseudonym);
  let injected = injectedFields(settings);
  const keyring = new Keyring(settings, clock);
  const failedAttempts = new FailedAttempts();
  const dispatcher = createDispatcher(settings, clock, resolve);
  const joins = createJoins();
  const stores = createStores({
    settings,
    clock,
    random,
    telemetry,
    listener: {
      onGrant: (grant) => desk.listener.onGrant(grant),
      onClosed: (bucket, closedMs) => desk.listener.onClosed(bucket, closedMs),
    },
  });
  const { limiter, ceilings } = stores;
  const desk: Desk = createDesk({
    clock,
    limiter: () => limiter,
    ceilings,
    onFailure: (failure) => telemetry.log.bug('a limiter operation failed', failure),
  });
  const pressure = createPressure({ clock, limiter, ceilings, desk });
  const travel = createTravel({ desk, ceilings, dispatcher, telemetry, routes: () => routes });
  telemetry.configured(settings.upstreams.values());

  const identify = async (call: Call): Promise<AuthenticatedCaller> => {
    try {
      return authenticate(call.rawFields, keyring, injected, call.rawUrl);
    } catch (refusal) {
      if (!(refusal instanceof Refusal) || refusal.code !== 'unauthenticated') throw refusal;
      throw await failedAttempts.refusal(call.source);
    }
  };

  const handle = async (call: Call): Promise<Outcome> => {
    const followed = telemetry.begin(call);
    try {
      const caller = await identify(call);
      followed.identified(caller);
      const route = routes.find(call, caller);
      followed.routed(route.upstream);
      const body = await call.readBody(caller.workspace.id);
      const { labelKey } = settings.privacy;
      const prepared = prepare({ call, caller, route, body, labelKey, now: clock.monotonic() });
      pressure.remember(prepared);
      followed.admitting(prepared.entry.admission.lane);
      const outcome = await joins.run(prepared.joinKey, call.clientGone, (nobodyLeft) =>
        travel(prepared, nobodyLeft, followed),
      );
      return followedToItsEnd(outcome, followed);
    } catch (failure) {
      tellFailure(call, followed, failure);
      throw failure;
    }
  };

  let cancelRecheck = (): void => {};
  const recheckLater = (): void => {
    cancelRecheck = clock.after(recheckMs, () => {
      desk.recheckKeys();
      recheckLater();
    });
  };
  recheckLater();

  return {
    handle,
    identify,
    credentialFields: () => injected,
    reconfigure(next) {
      settings = next;
      routes = createRouteFinder(next.upstreams, pseudonym);
      injected = injectedFields(next);
      keyring.replace(next);
      dispatcher.configure(next);
      telemetry.configured(next.upstreams.values());
      desk.recheckKeys();
      desk.reconfigure(({ workspaceId, upstream: name }) => {
        const workspace = next.workspaces.get(workspaceId);
        const upstream = next.upstreams.get(name);
        return workspace === undefined || upstream === undefined ? null : entrySettings(workspace, upstream);
      });
    },
    drain: (budgetMs) => desk.drain(budgetMs),
    async ceilings(workspaceId, upstreamName) {
      const workspace = settings.workspaces.get(workspaceId);
      const upstream = settings.upstreams.get(upstreamName);
      if (workspace === undefined || upstream === undefined) return noCeilings;
      return pressure.ceilings(ceilingOf(workspace, upstream, settings.privacy.labelKey));
    },
    buckets: () => pressure.buckets(),
    ready: () => stores.ready(),
    async close() {
      cancelRecheck();
      dispatcher.close();
      await stores.close();
    },
  };
}
