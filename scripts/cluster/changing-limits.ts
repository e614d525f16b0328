/**
 * One configuration in four states, for reloads and a restart: each workspace, and each upstream that one workspace has
 * for itself, stands for one change. Owns: limits and configuration text.
 */
import { createKey } from '../../src/cli/keys.ts';
import type { FleetConfig } from '../../test/support/redis-fleet.ts';
import type { Configure } from './setups.ts';

interface Limits {
  readonly requestsPerMinute?: number | 'none';
  readonly requestsPerDay?: number | 'none';
}

export interface State {
  /** Own ceilings of workspaces that share an upstream without limits. */
  readonly workspaces: Readonly<Record<string, Limits>>;
  /** Limits of upstreams, each of one workspace with the same name. */
  readonly upstreams: Readonly<Record<string, Limits>>;
}

const open: Limits = { requestsPerMinute: 100_000, requestsPerDay: 'none' };

const before: State = {
  workspaces: {
    'day-raised': { requestsPerDay: 2 },
    'day-continued': { requestsPerDay: 3 },
    'day-raised-by-restart': { requestsPerDay: 2 },
    'minute-raised': { requestsPerMinute: 3 },
    'minute-removed': { requestsPerMinute: 3 },
    'minute-lowered': { requestsPerMinute: 30 },
  },
  upstreams: {
    'upstream-day-raised': { ...open, requestsPerDay: 2 },
    'upstream-day-removed': { ...open, requestsPerDay: 2 },
    'upstream-minute-removed': { ...open, requestsPerMinute: 3 },
  },
};

const after: State = {
  workspaces: {
    'day-raised': { requestsPerDay: 50 },
    'day-continued': { requestsPerDay: 5 },
    'day-raised-by-restart': { requestsPerDay: 2 },
    'minute-raised': { requestsPerMinute: 50 },
    'minute-removed': {},
    'minute-lowered': { requestsPerMinute: 12 },
  },
  upstreams: {
    'upstream-day-raised': { ...open, requestsPerDay: 50 },
    'upstream-day-removed': open,
    'upstream-minute-removed': { ...open, requestsPerMinute: 'none' },
  },
};

const raisedAgain: State = {
  ...after,
  workspaces: { ...after.workspaces, 'minute-lowered': { requestsPerMinute: 30 } },
};

const restarted: State = {
  ...raisedAgain,
  workspaces: { ...raisedAgain.workspaces, 'day-raised-by-restart': { requestsPerDay: 50 } },
};

export const states = { before, after, raisedAgain, restarted };

/** Where the calls of this workspace go. */
export const upstreamOf = (workspace: string): string =>
  workspace in before.upstreams ? workspace : 'openai';

/** The configuration in each state, always with the same keys. */
export function configurations(modelUrl: string): (state: State) => Configure {
  const names = [...Object.keys(before.workspaces), ...Object.keys(before.upstreams)];
  const made = names.map((name) => ({ name, ...createKey() }));
  const upstream = (limits: Limits) => ({
    kind: 'language-model',
    origins: [modelUrl],
    allowPrivateAddresses: true,
    credential: { header: 'authorization', value: 'Bearer sk-sim' },
    limits: { ...limits, tokensPerMinute: 100_000_000 },
  });
  const workspace = (name: string, hash: string, limits: Limits) => ({
    keys: [hash],
    upstreams: [upstreamOf(name)],
    ...Object.fromEntries(Object.entries(limits).map(([limit, value]) => [limit, { openai: value }])),
  });
  return (state) =>
    (redisUrl): FleetConfig => ({
      keys: Object.fromEntries(made.map(({ name, key }) => [name, key])),
      // Every JSON text is YAML.
      yaml: () =>
        JSON.stringify({
          server: { host: '127.0.0.1', adminHost: '127.0.0.1', port: 0, adminPort: 0 },
          ...(redisUrl === null ? {} : { redis: { url: redisUrl } }),
          privacy: { labelKey: 'a label key for tests only' },
          log: { level: 'info', sampleSuccesses: 0 },
          upstreams: Object.fromEntries(
            Object.entries({ openai: open, ...state.upstreams }).map(([name, limits]) => [
              name,
              upstream(limits),
            ]),
          ),
          workspaces: Object.fromEntries(
            made.map(({ name, hash }) => [name, workspace(name, hash, state.workspaces[name] ?? {})]),
          ),
        }),
    });
}
