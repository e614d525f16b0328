/**
 * The settings that calls are served by now, with what is derived from them: the routes, and the fields in which
 * credentials of upstreams are sent.
 *
 * Invariant: all of it is replaced at once, so that no call sees a part of a change.
 */
import { injectedFields } from './auth/authenticate.ts';
import { LRUCache } from 'lru-cache';
import type { Settings, WorkspaceSettings } from './config/settings.ts';
import { pseudonym } from './dispatch/upstream-request.ts';
import { createRouteFinder, type RouteFinder } from './target/route.ts';

export class SettingsInUse {
  #settings: Settings;
  #routes: RouteFinder;
  #credentialFields: ReadonlySet<string>;
  #keyFields: readonly string[];
  /** Whether several workspaces use a credential, by its quota, as far as it was asked. */
  readonly #sharedCredentials = new LRUCache<string, boolean>({ max: 10_000 });

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#credentialFields = injectedFields(settings);
    this.#keyFields = keyFieldsOf(this.#credentialFields);
  }

  get settings(): Settings {
    return this.#settings;
  }

  get routes(): RouteFinder {
    return this.#routes;
  }

  /** Lower-case names of the fields in which credentials are sent to upstreams. A client may send its API key in one of them. */
  get credentialFields(): ReadonlySet<string> {
    return this.#credentialFields;
  }

  /** Lower-case names of all fields in which a client may send its API key. */
  get keyFields(): readonly string[] {
    return this.#keyFields;
  }

  /** True when the credential that stands for this quota is injected into calls of several workspaces. */
  isSharedCredential(quota: string): boolean {
    let isShared = this.#sharedCredentials.get(quota);
    if (isShared === undefined) {
      isShared = servesSeveral(this.#settings, quota);
      this.#sharedCredentials.set(quota, isShared);
    }
    return isShared;
  }

  /**
   * Replaces all of it. `credentialFields` belongs to the new settings: the caller collects it beforehand in slices, because a
   * scan of all workspaces at once would delay calls.
   */
  replace(settings: Settings, credentialFields: ReadonlySet<string>): void {
    this.#settings = settings;
    this.#routes = createRouteFinder(settings.upstreams, pseudonym);
    this.#credentialFields = credentialFields;
    this.#keyFields = keyFieldsOf(credentialFields);
    this.#sharedCredentials.clear();
  }
}

/** True when calls of at least two workspaces get a credential of this quota. */
function servesSeveral({ upstreams, workspaces }: Settings, quota: string): boolean {
  const common = [...upstreams.values()].filter(({ credential }) => credential?.quota === quota);
  let served = 0;
  for (const workspace of workspaces.values()) {
    const usesCommon = common.some(
      ({ name }) => workspace.upstreams.has(name) && !workspace.credentials.has(name),
    );
    const uses = usesCommon || hasOwn(workspace, quota);
    if (uses && (served += 1) > 1) return true;
  }
  return false;
}

function hasOwn({ credentials }: WorkspaceSettings, quota: string): boolean {
  for (const credential of credentials.values()) if (credential.quota === quota) return true;
  return false;
}

const keyFieldsOf = (credentialFields: ReadonlySet<string>): readonly string[] => [
  ...new Set(['authorization', 'sluice-key', ...credentialFields]),
];
