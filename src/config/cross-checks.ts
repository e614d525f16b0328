/**
 * Rules between values of the file: names that must exist, values that must differ, secrets that must be there. Reads
 * the plain tree defensively, so that these mistakes are reported together with those of single values.
 */
import { defaultServer, defaultWaits } from './defaults.ts';
import { checkRefreshTokenFiles } from './refresh-file-checks.ts';
import type { Finding } from './problem.ts';
import { checkRedis } from './redis-checks.ts';
import { section } from './tree.ts';
import type { Section } from './tree.ts';
import { checkUpstream, waitBelowCeiling } from './upstream-checks.ts';
import { checkWildcards } from './wildcard-origins.ts';
import { checkKeys, checkWorkspace, ownKeysAsCredentials } from './workspace-checks.ts';

/** Every broken rule of the tree; values of the wrong type are skipped, the schema reports them. */
export function crossChecks(root: unknown): Finding[] {
  const file = section(root);
  const upstreams = section(file['upstreams']);
  const server = section(file['server']);
  return [
    ...notEmpty(file),
    ...Object.entries(upstreams).flatMap(([name, value]) => checkUpstream(name, section(value), server)),
    ...Object.entries(section(file['workspaces'])).flatMap(([id, value]) =>
      checkWorkspace(id, section(value), upstreams),
    ),
    ...checkWildcards(file),
    ...checkRefreshTokenFiles(file),
    ...checkKeys(section(file['workspaces'])),
    ...ownKeysAsCredentials(file),
    ...checkServer(server),
    ...checkRedis(section(file['redis'])),
    ...checkPrivacy(file),
  ];
}

/** Workspaces and their keys may be none: the last key must be revocable without inventing another (`warnings.ts` warns). */
function notEmpty({ upstreams }: Section): Finding[] {
  const isSection = typeof upstreams === 'object' && upstreams !== null && !Array.isArray(upstreams);
  if (!isSection || Object.keys(upstreams).length > 0) return [];
  return [{ path: ['upstreams'], reason: 'is empty', fix: 'describe at least one upstream' }];
}

function checkServer(server: Section): Finding[] {
  const found: Finding[] = [];
  const at = (key: string, reason: string, fix: string): void =>
    void found.push({ path: ['server', key], reason, fix });
  const set: Section = { ...defaultServer, ...server };
  const { port, adminPort, maxBodyBytes, maxReplayBytes, maxHeldBytes } = set;
  if (port === adminPort && port !== 0)
    at('adminPort', 'is the data port', 'give the admin port its own number');
  if (typeof maxBodyBytes === 'number') {
    if (typeof maxReplayBytes === 'number' && maxReplayBytes > maxBodyBytes) {
      at('maxReplayBytes', 'is above maxBodyBytes', 'lower it, or leave it out');
    }
    if (typeof maxHeldBytes === 'number' && maxHeldBytes < maxBodyBytes) {
      at('maxHeldBytes', 'is below maxBodyBytes', 'raise it: one body of the largest size must fit');
    }
  }
  return [...found, ...waitBelowCeiling(['server'], server, defaultWaits.maxWaitCeilingSeconds)];
}

function checkPrivacy(file: Section): Finding[] {
  if (file['redis'] === undefined || section(file['privacy'])['labelKey'] !== undefined) return [];
  const fix = 'set it to a secret that all replicas share, for instance "${SLUICE_LABEL_KEY}"';
  return [{ path: ['privacy', 'labelKey'], reason: 'is missing, and redis needs it', fix }];
}
