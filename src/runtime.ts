/**
 * What calls are served by: one immutable snapshot made of the settings. A reload makes the next one while calls go on under the one
 * in use, and puts it in place by one assignment: no call sees a part of a change, and each call keeps what it began with.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from './bounded.ts';
import { injectedFields, keyIndexOf } from './auth/authenticate.ts';
import type { Settings } from './config/settings.ts';
import type { AgentParts } from './dispatch/agents.ts';
import { createPools, type PoolsByUpstream } from './dispatch/dispatcher.ts';
import { createRouteFinder } from './target/route.ts';

export interface Runtime extends Readonly<ReturnType<typeof createRuntime>> {}
/** The part of a runtime that a call keeps to its end. Nothing in it grows with the workspaces, of which there may be very many. */
export type Egress = Runtime['egress'];

/** @param former pools of the runtime before it, which go on where they fit. @throws Error where a file of certificates cannot be read */
export function createRuntime(settings: Settings, agents: AgentParts, former?: PoolsByUpstream) {
  const { upstreams } = settings;
  const credentialFields = injectedFields(settings);
  return {
    settings,
    keys: keyIndexOf(settings),
    /** Lower-case names of the fields in which credentials are sent to upstreams. A client may send its API key in one of them. */
    credentialFields,
    /** True when the credential that stands for this quota is injected into calls of several workspaces. */
    isShared: sharedCredentials(settings),
    egress: {
      routes: createRouteFinder(upstreams),
      pools: createPools(upstreams, agents, former),
      /** Lower-case names of all fields in which a client may send its API key. */
      keyFields: [...new Set(['authorization', 'sluice-key', ...credentialFields])],
    },
  };
}

/** Quotas whose sharing is remembered. */
const maxQuotas = 10_000;

function sharedCredentials({ upstreams, workspaces }: Settings) {
  const isShared = new LRUCache<string, boolean>({
    ...atMost(maxQuotas),
    memoMethod(quota) {
      const common = [...upstreams.values()].filter(({ credential }) => credential?.quota === quota);
      const users = [...workspaces.values()].filter(
        ({ upstreams: allowed, credentials }) =>
          common.some(({ name }) => allowed.has(name) && !credentials.has(name)) ||
          [...credentials.values()].some((own) => own.quota === quota),
      );
      return users.length > 1;
    },
  });
  return (quota: string): boolean => isShared.memo(quota);
}
