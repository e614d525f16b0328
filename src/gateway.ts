/**
 * READ FIRST. Runs the journey of a call in `handle`; its second half is `journey/forward.ts`:
 *
 *   authenticate → resolve the target → read the body → enter the lane → (granted → send → learn → judge)* → response
 *
 * Owns: the order of the stages and what they hand each other, and the lives of the parts. Does not own: any decision
 * inside a stage, which part is given which (`parts.ts`). Invariant: the API key never reaches an upstream.
 */
import type { CeilingsNow } from './activity/shape.ts';
import { authenticate } from './auth/authenticate.ts';
import type { Call, Caller, Outcome } from './call.ts';
import type { Clock } from './clock.ts';
import type { Settings } from './config/settings.ts';
import type { Controls } from './control/controls.ts';
import { accountOfWorkspace } from './credential-carriers.policy.ts';
import { Refusal } from './errors.ts';
import { followedToItsEnd, reportFailure } from './journey/follow.ts';
import { ceilingOf, prepare, type Prepared } from './journey/prepare.ts';
import { noCeilings } from './observation/pressure.ts';
import type { Audience } from './repeats/repeat.ts';
import type { IncomingCall } from './repeats/repeats.ts';
import { createParts, type Parts, type PartsOptions } from './parts.ts';
import { SettingsInUse } from './settings-in-use.ts';
import { createSlices, type Slices } from './slices.ts';
import { takeOver } from './take-over.ts';
import type { CallRecord } from './telemetry/call-record.ts';
import type { ObservedBreaker, ObservedBucket, ObservedCredential } from './telemetry/events.ts';
import type { Telemetry } from './telemetry/telemetry.ts';

export interface GatewayOptions extends PartsOptions {
  readonly settings: Settings;
  /** Replaces the slices in which a reload does its work. */
  readonly slices?: Slices;
}

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

/** The call for all clients that wait for it, at the position of the one that it repeats. */
const shared = (prepared: Prepared, audience: Audience, arrivedAt: number): Prepared => {
  const { request } = prepared;
  const stillValid = (): boolean => audience.stillValid?.() ?? request.stillValid();
  return { ...prepared, request: { ...request, arrivedAt, stillValid } };
};

export class Gateway {
  /** What an operator may do about an upstream: pause it, resume it, reopen it. */
  readonly controls: Pick<Controls, 'open' | 'pause' | 'resume'>;
  readonly #clock: Clock;
  readonly #telemetry: Telemetry;
  readonly #slices: Slices;
  readonly #inUse: SettingsInUse;
  readonly #parts: Parts;
  #lastTakenOver: Promise<void> = Promise.resolve();
  #cancelRecheck = (): void => {};

  constructor(options: GatewayOptions) {
    const { settings, clock, telemetry, slices = createSlices(clock) } = options;
    this.#clock = clock;
    this.#telemetry = telemetry;
    this.#slices = slices;
    this.#inUse = new SettingsInUse(settings);
    this.#parts = createParts(options, this.#inUse);
    this.controls = this.#parts.controls;
    telemetry.configured(settings.upstreams.values());
    this.#recheckLater();
  }

  /** The journey of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  async handle(call: Call): Promise<Outcome> {
    const callRecord = this.#telemetry.begin(call);
    try {
      const prepared = await this.#ready(call, callRecord);
      return followedToItsEnd(await this.#respond(prepared, callRecord), callRecord);
    } catch (failure) {
      reportFailure(call, callRecord, failure);
      throw failure;
    }
  }

  /** Names the caller of a request that is not sent anywhere (`/activity`). */
  async identify(call: Call): Promise<Caller> {
    try {
      const { rawFields, rawUrl } = call;
      const caller = authenticate(rawFields, this.#parts.keyring, this.#inUse.credentialFields, rawUrl);
      call.report({ isAuthenticated: true });
      return caller;
    } catch (refusal) {
      if (!(refusal instanceof Refusal) || refusal.code !== 'unauthenticated') throw refusal;
      throw await this.#parts.failedAttempts.refusal(call.source);
    }
  }

  /** Fields in which API keys may come, lower case. */
  credentialFields(): ReadonlySet<string> {
    return this.#inUse.credentialFields;
  }

  /**
   * Takes over new settings; waiting calls whose key is gone are refused. Work on very many workspaces is done in slices,
   * while calls go on under the old settings; the change itself is seen by all calls at once. Resolves when it is made.
   * Several changes are made one after the other.
   */
  reconfigure(settings: Settings): Promise<void> {
    const [parts, inUse, telemetry, slices] = [this.#parts, this.#inUse, this.#telemetry, this.#slices];
    const takenOver = this.#lastTakenOver.then(() => takeOver(settings, { parts, inUse, telemetry, slices }));
    // A change that failed is reported to the one that asked for it, and does not keep the next one from being made.
    this.#lastTakenOver = takenOver.catch(() => {});
    return takenOver;
  }

  /** Refuses calls that wait and cannot leave within `budgetMs`; the others go on. */
  drain(budgetMs: number): void {
    this.#parts.admission.drain(budgetMs);
  }

  /** Resolves when no call is under way whose clients have left, or after `withinMs`: such calls are finished for their repeats. */
  settled(withinMs: number): Promise<void> {
    return this.#parts.repeats.settled(withinMs);
  }

  /** Memory of responses: of those that have ended and are kept for repeats, and of those under way. */
  responseMemory(): { readonly keptBytes: number; readonly underWayBytes: number } {
    return this.#parts.repeats.memory();
  }

  /** Ceilings of a workspace on an upstream, as they are now. */
  async ceilings(workspaceId: string, upstreamName: string): Promise<CeilingsNow> {
    const { settings } = this.#inUse;
    const workspace = settings.workspaces.get(workspaceId);
    const upstream = settings.upstreams.get(upstreamName);
    if (workspace === undefined || upstream === undefined) return noCeilings;
    const ceiling = ceilingOf(workspace, upstream, settings.privacy.labelKey);
    const now = await this.#parts.pressure.ceilings(ceiling);
    const credential = workspace.credentials.get(upstreamName) ?? upstream.credential;
    const [refusing] = this.#parts.breakers.observed(
      upstreamName,
      credential?.quota ?? accountOfWorkspace(workspaceId),
    );
    return { ...now, refusing: refusing ?? null };
  }

  /** Buckets touched by this replica, with their upstreams. */
  buckets(): readonly ObservedBucket[] {
    return this.#parts.pressure.buckets();
  }

  /** Breakers of an upstream that are not closed, as far as this replica knows. */
  breakers(upstream: string): readonly ObservedBreaker[] {
    return this.#parts.breakers.observed(upstream);
  }

  /** Upstream credentials in use whose end is known. */
  credentials(): readonly ObservedCredential[] {
    return this.#parts.credentials.observed();
  }

  hasUpstream(name: string): boolean {
    return this.#inUse.settings.upstreams.has(name);
  }

  upstreamNames(): readonly string[] {
    return [...this.#inUse.settings.upstreams.keys()];
  }

  /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
  async ready(): Promise<void> {
    const { repeats, stores, controls } = this.#parts;
    repeats.connect();
    await stores.ready();
    await controls.start();
  }

  /** Why Redis is unavailable, in words for the operator; `null` while it is available, or where none is configured. */
  storeTrouble(): { readonly reason: string; readonly advice: string } | null {
    return this.#parts.stores.trouble();
  }

  async close(): Promise<void> {
    this.#cancelRecheck();
    const { repeats, controls, credentials, dispatcher, breakers, stores } = this.#parts;
    repeats.close();
    controls.close();
    const renewalsEnded = credentials.close();
    dispatcher.close();
    breakers.stop();
    await stores.close();
    await renewalsEnded;
  }

  /** The journey up to admission, apart from the rest: what only it needs is let go while the call is held. */
  async #ready(call: Call, callRecord: CallRecord): Promise<Prepared> {
    const caller = await this.identify(call);
    callRecord.workspaceId = caller.workspace.id;
    const route = this.#inUse.routes.find(call, caller);
    callRecord.routed(route.upstream);
    const body = await call.readBody(caller.workspace.id);
    const { estimates, responseTimes, quotas, chosenBuckets } = this.#parts;
    const { labelKey, labelKeyGenerated } = this.#inUse.settings.privacy;
    const now = this.#clock.monotonic();
    const prepared = prepare({
      call,
      caller,
      route,
      body,
      labelKey,
      isLabelKeyGenerated: labelKeyGenerated,
      isShared: (quota) => this.#inUse.isSharedCredential(quota),
      estimates,
      responseTimes,
      quotas,
      chosenBuckets,
      now,
    });
    callRecord.admitting(prepared.request.admission.lane);
    return prepared;
  }

  /** The journey from admission on: for the call itself, or for all clients that make the same call. */
  #respond(prepared: Prepared, callRecord: CallRecord): Promise<Outcome> {
    const { repeats, forwarder } = this.#parts;
    const { repeatKey: key, request, call } = prepared;
    if (key === null) return forwarder.forward(prepared, call.clientGone, callRecord);
    const incoming: IncomingCall = {
      key,
      clientGone: call.clientGone,
      stillValid: request.stillValid,
      arrivedAt: request.arrivedAt,
      fieldsFor: (head, addsRateLimit) => forwarder.fieldsFor(prepared, head, addsRateLimit),
      retain: () => call.retain(),
    };
    return repeats.run(incoming, (audience, arrivedAt) =>
      forwarder.forward(shared(prepared, audience, arrivedAt), audience, callRecord),
    );
  }

  #recheckLater(): void {
    this.#cancelRecheck = this.#clock.after(recheckMs, () => {
      this.#parts.admission.recheckKeys();
      this.#parts.repeats.recheckKeys();
      this.#recheckLater();
    });
  }
}
