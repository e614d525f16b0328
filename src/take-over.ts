/**
 * A change of settings, taken over by all parts: work on each workspace in slices before it, the change in one tick.
 *
 * Owns: which parts a reload informs, and in which order. Does not own: reading and checking a file (`config/`).
 */
import { callSettings } from './admission/buckets.policy.ts';
import { addInjected, injectedForAll } from './auth/authenticate.ts';
import { KeyIndex } from './auth/keyring.ts';
import type { Settings } from './config/settings.ts';
import { SourceNames } from './credentials/credentials.ts';
import type { Parts } from './parts.ts';
import type { SettingsInUse } from './settings-in-use.ts';
import type { Slices } from './slices.ts';
import type { Telemetry } from './telemetry/telemetry.ts';

/** Calls go on under the old settings while the slices run. @throws What a part finds wrong with them: the old ones then stay. */
export async function takeOver(
  next: Settings,
  context: {
    readonly parts: Parts;
    readonly inUse: SettingsInUse;
    readonly telemetry: Telemetry;
    readonly slices: Slices;
  },
): Promise<void> {
  const { parts, inUse, telemetry, slices } = context;
  const keys = new KeyIndex();
  const injected = injectedForAll(next.upstreams);
  const sources = new SourceNames(next.upstreams);
  await slices.forEach(next.workspaces.values(), (workspace) => {
    keys.add(workspace);
    sources.addOf(workspace);
    addInjected(injected, workspace);
  });
  // First what may fail: the settings in use then stay.
  parts.dispatcher.configure(next);
  inUse.replace(next, injected);
  parts.keyring.replace(keys);
  parts.credentials.configure(next.upstreams, sources);
  telemetry.configured(next.upstreams.values());
  parts.admission.recheckKeys();
  parts.repeats.recheckKeys();
  parts.admission.reconfigure(({ workspaceId, subject }) => {
    const workspace = next.workspaces.get(workspaceId);
    const upstream = next.upstreams.get(subject.upstream);
    return workspace === undefined || upstream === undefined ? null : callSettings(workspace, upstream);
  });
}
