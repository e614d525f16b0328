/**
 * A gateway: the parts that calls flow through (`pipeline.ts`), and their lives from the start over reloads to the end.
 *
 * Owns: the runtime in use, and which parts hear of a reload. Does not own: the flow of a call, which part is given which (`parts.ts`).
 */
import type { CeilingsNow } from './activity/shape.ts';
import { callSettings, settingsOfOperation } from './admission/buckets.policy.ts';
import type { Settings } from './config/settings.ts';
import { accountOfWorkspace } from './credential-carriers.policy.ts';
import { ceilingOf } from './journey/key-names.ts';
import { isBackground } from './ids.ts';
import { noCeilings } from './observation/pressure.ts';
import { createParts, type PartsOptions } from './parts.ts';
import { Pipeline } from './pipeline.ts';
import { createRuntime } from './runtime.ts';

/** Keys of waiting calls are looked at again this often, so that an expired one is refused in time. Milliseconds. */
const recheckMs = 5_000;

export type Gateway = ReturnType<typeof createGateway>;

export function createGateway(options: PartsOptions & { readonly settings: Settings }) {
  const { settings, clock, telemetry } = options;
  let current = createRuntime(settings, options);
  const runtime = () => current;
  const parts = createParts(options, runtime);
  const { admission, breakers, controls, credentials, dispatcher, pressure, repeats } = parts;
  const { sharedRedis, stores } = parts;
  const pipeline = new Pipeline({ ...parts, clock, telemetry, runtime });
  telemetry.reload(settings);
  const recheckKeys = (): void => {
    admission.recheckKeys();
    repeats.recheckKeys();
  };
  let cancelRecheck = (): void => {};
  const recheckLater = (): void => {
    cancelRecheck = clock.after(recheckMs, () => {
      recheckKeys();
      recheckLater();
    });
  };
  recheckLater();
  return {
    /** What calls flow through. */
    parts,
    pipeline,
    /** The one in use. */
    runtime,
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
      const written = ceilingOf(workspace, upstream, privacy.labelKey);
      const { yielded } = callSettings(workspace, upstream);
      const { perMinute, perDay } = yielded !== null && pressure.hasYielded(written.key) ? yielded : written;
      const now = await pressure.ceilings({ key: written.key, perMinute, perDay });
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
