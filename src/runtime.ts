/**
 * What calls are served by: one immutable snapshot made of the settings. A reload makes the next one while calls go on under the one
 * in use, and puts it in place by one assignment: no call sees a part of a change, and each call keeps what it began with.
 */
import { LRUCache } from 'lru-cache';
import { addInjected, injectedForAll } from './auth/authenticate.ts';
import { KeyIndex } from './auth/keyring.ts';
import type { Settings, WorkspaceSettings } from './config/settings.ts';
import { SourceNames } from './credentials/credentials.ts';
import type { AgentParts } from './dispatch/agents.ts';
import { createPools, type PoolsByUpstream } from './dispatch/dispatcher.ts';
import type { Slices } from './slices.ts';
import { createRouteFinder, type RouteFinder } from './target/route.ts';

export interface Runtime {
  readonly settings: Settings;
  readonly keys: KeyIndex;
  /** Lower-case names of the fields in which credentials are sent to upstreams. A client may send its API key in one of them. */
  readonly credentialFields: ReadonlySet<string>;
  /** The sources of all credentials. */
  readonly sources: SourceNames;
  /** True when the credential that stands for this quota is injected into calls of several workspaces. */
  readonly isShared: (quota: string) => boolean;
  readonly egress: Egress;
}

/** The part of a runtime that a call keeps to its end. Nothing in it grows with the workspaces, of which there may be very many. */
export interface Egress {
  readonly routes: RouteFinder;
  readonly pools: PoolsByUpstream;
  /** Lower-case names of all fields in which a client may send its API key. */
  readonly keyFields: readonly string[];
}

/** @throws Error where a file of certificates cannot be read */
export function createRuntime(settings: Settings, agents: AgentParts): Runtime {
  const gathered = new OfWorkspaces(settings);
  for (const workspace of settings.workspaces.values()) gathered.add(workspace);
  return runtimeOf(settings, gathered, createPools(settings.upstreams, agents));
}

/** The runtime that comes after `former`. Work on each workspace is done in slices. @throws as {@link createRuntime} */
export async function nextRuntime(
  settings: Settings,
  {
    former,
    agents,
    slices,
  }: { readonly former: Runtime; readonly agents: AgentParts; readonly slices: Slices },
): Promise<Runtime> {
  const gathered = new OfWorkspaces(settings);
  await slices.forEach(settings.workspaces.values(), (workspace) => gathered.add(workspace));
  return runtimeOf(settings, gathered, createPools(settings.upstreams, agents, former.egress.pools));
}

/** What is gathered of each workspace. */
class OfWorkspaces {
  readonly keys = new KeyIndex();
  readonly credentialFields: Set<string>;
  readonly sources: SourceNames;

  constructor({ upstreams }: Settings) {
    this.credentialFields = injectedForAll(upstreams);
    this.sources = new SourceNames(upstreams);
  }

  add(workspace: WorkspaceSettings): void {
    this.keys.add(workspace);
    this.sources.addOf(workspace);
    addInjected(this.credentialFields, workspace);
  }
}

function runtimeOf(settings: Settings, gathered: OfWorkspaces, pools: PoolsByUpstream): Runtime {
  const { keys, sources, credentialFields } = gathered;
  const keyFields = [...new Set(['authorization', 'sluice-key', ...credentialFields])];
  const routes = createRouteFinder(settings.upstreams);
  return {
    settings,
    keys,
    credentialFields,
    sources,
    isShared: sharedCredentials(settings),
    egress: { routes, pools, keyFields },
  };
}

/** Quotas whose sharing is remembered. */
const maxQuotas = 10_000;

function sharedCredentials(settings: Settings): Runtime['isShared'] {
  const known = new LRUCache<string, boolean>({ max: maxQuotas });
  return (quota) => {
    let isShared = known.get(quota);
    if (isShared === undefined) known.set(quota, (isShared = servesSeveral(settings, quota)));
    return isShared;
  };
}

/** True when calls of at least two workspaces get a credential of this quota. */
function servesSeveral({ upstreams, workspaces }: Settings, quota: string): boolean {
  const common = [...upstreams.values()].filter(({ credential }) => credential?.quota === quota);
  let served = 0;
  for (const { upstreams: allowed, credentials } of workspaces.values()) {
    const uses =
      common.some(({ name }) => allowed.has(name) && !credentials.has(name)) ||
      [...credentials.values()].some((own) => own.quota === quota);
    if (uses && (served += 1) > 1) return true;
  }
  return false;
}
