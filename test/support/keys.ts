/** The index of keys, and the fields in which credentials are injected, of whole settings: the gateway makes them in slices. */
import { addInjected, injectedForAll } from '../../src/auth/authenticate.ts';
import { KeyIndex } from '../../src/auth/keyring.ts';
import type { Settings } from '../../src/config/settings.ts';

export function keyIndexOf({ workspaces }: Pick<Settings, 'workspaces'>): KeyIndex {
  const index = new KeyIndex();
  for (const workspace of workspaces.values()) index.add(workspace);
  return index;
}

export function injectedFields({
  upstreams,
  workspaces,
}: Pick<Settings, 'upstreams' | 'workspaces'>): ReadonlySet<string> {
  const fields = injectedForAll(upstreams);
  for (const workspace of workspaces.values()) addInjected(fields, workspace);
  return fields;
}
