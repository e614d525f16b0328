/**
 * A gateway: the parts that calls flow through (`pipeline.ts`), and their lives from the start over reloads to the end.
 *
 * Owns: the runtime in use, and which parts hear of a reload. Does not own: the flow of a call, which part is given which (`parts.ts`).
 */
import type { CeilingsNow } from './activity/shape.ts';
import { callSettings, settingsOfOperation } from './admission/buckets.policy.ts';
import type { Call, Caller, Outcome } from './call.ts';
import type { Settings } from './config/settings.ts';
import type { Controls } from './control/controls.ts';
import { accountOfWorkspace } from './credential-carriers.policy.ts';
import { ceilingOf } from './journey/key-names.ts';
import { isBackground } from './ids.ts';
import { noCeilings } from './observation/pressure.ts';
import { createParts, type Parts, type PartsOptions } from './parts.ts';
import { Pipeline } from './pipeline.ts';
import { createRuntime, type Runtime } from './runtime.ts';

export interface GatewayOptions extends PartsOptions {
  readonly settings: Settings;
}

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

export class Gateway {
  /** What an operator may do about an upstream: pause it, resume it, reopen it. */
  readonly controls: Controls;
  readonly #options: GatewayOptions;
  /** What calls flow through. */
  readonly parts: Parts;
  readonly #pipeline: Pipeline;
  #runtime: Runtime;
  #cancelRecheck = (): void => {};

  constructor(options: GatewayOptions) {
    const { settings, clock, telemetry } = options;
    const runtime = (): Runtime => this.#runtime;
    this.#options = options;
    this.#runtime = createRuntime(settings, options);
    this.parts = createParts(options, runtime);
    this.#pipeline = new Pipeline({ ...this.parts, clock, telemetry, runtime });
    this.controls = this.parts.controls;
    telemetry.reload(settings);
    this.#recheckLater();
  }

  /** The flow of one call. Rejects with a `Refusal`, with `clientGone.reason`, or with a bug. */
  handle(call: Call): Promise<Outcome> {
    return this.#pipeline.handle(call);
  }

  /** Names the caller of a request that is not sent anywhere (`/activity`). @throws Refusal */
  identify(call: Call): Caller {
    return this.#pipeline.identify(call);
  }

  /** Fields in which API keys may come, lower case. */
  credentialFields(): ReadonlySet<string> {
    return this.#runtime.credentialFields;
  }

  /** Takes over new settings, which all calls see at once; waiting calls whose key is gone are refused. */
  reload(next: Settings): void {
    const runtime = createRuntime(next, this.#options, this.#runtime.egress.pools);
    const { credentials, admission, repeats } = this.parts;
    this.#runtime = runtime;
    credentials.reload(next.upstreams, runtime.sources);
    this.#options.telemetry.reload(next);
    admission.recheckKeys();
    repeats.recheckKeys();
    admission.reload(({ workspaceId, subject, admission: { lane } }) => {
      const workspace = next.workspaces.get(workspaceId);
      const upstream = next.upstreams.get(subject.upstream);
      return workspace === undefined || upstream === undefined
        ? null
        : callSettings(workspace, settingsOfOperation(upstream, subject.operation), isBackground(lane));
    });
  }

  /** Ceilings of a workspace on an upstream, as they are now. */
  async ceilings(workspaceId: string, upstreamName: string): Promise<CeilingsNow> {
    const { settings } = this.#runtime;
    const workspace = settings.workspaces.get(workspaceId);
    const upstream = settings.upstreams.get(upstreamName);
    if (workspace === undefined || upstream === undefined) return noCeilings;
    const { pressure } = this.parts;
    const written = ceilingOf(workspace, upstream, settings.privacy.labelKey);
    const { yielded } = callSettings(workspace, upstream);
    const { perMinute, perDay } = yielded !== null && pressure.hasYielded(written.key) ? yielded : written;
    const now = await pressure.ceilings({ key: written.key, perMinute, perDay });
    const credential = workspace.credentials.get(upstreamName) ?? upstream.credential;
    const account = credential?.quota ?? accountOfWorkspace(workspaceId);
    const [refusing = null] = this.parts.breakers.observed(upstreamName, account);
    return { ...now, refusing };
  }

  /** Resolves when calls may be taken; rejects with words for the operator when Redis cannot be used. */
  async ready(): Promise<void> {
    const { sharedRedis, stores, controls } = this.parts;
    await stores.ready();
    // What other replicas may have begun.
    if (sharedRedis !== null) await controls.start();
  }

  async close(): Promise<void> {
    this.#cancelRecheck();
    const { repeats, controls, credentials, dispatcher, sharedRedis, stores, admission } = this.parts;
    repeats.close();
    admission.close();
    controls.close();
    const renewalsEnded = credentials.close();
    dispatcher.close(this.#runtime.egress.pools);
    await stores.close();
    await renewalsEnded;
    sharedRedis?.close();
  }

  #recheckLater(): void {
    this.#cancelRecheck = this.#options.clock.after(recheckMs, () => {
      this.parts.admission.recheckKeys();
      this.parts.repeats.recheckKeys();
      this.#recheckLater();
    });
  }
}
