/**
 * Rules between all credentials of the file: one refresh token belongs to one client, and is no credential itself. Paths are
 * compared as they are written, without `.` and `..`.
 */
import { normalize } from 'node:path';
import type { Finding, Path } from './problem.ts';
import { section, type Section } from './tree.ts';

interface Written {
  readonly path: Path;
  readonly credential: Section;
}

/** What makes two clients one; a change of how they write their request would be a mistake as well. */
const clientKeys = ['tokenUrl', 'clientId', 'clientSecret', 'scope', 'format', 'clientAuth'] as const;

/** Credentials that name the refresh token's file of another client, or as a value to send. */
export function checkRefreshTokenFiles(file: Section): Finding[] {
  const credentials = credentialsOf(file);
  const owners = new Map<string, { readonly client: string; readonly at: string }>();
  const found: Finding[] = [];
  for (const { path, credential } of credentials) {
    const oauth = section(credential['oauth']);
    const refreshTokenFile = oauth['refreshTokenFile'];
    if (typeof refreshTokenFile !== 'string') continue;
    const client = JSON.stringify(clientKeys.map((key) => oauth[key] ?? null));
    const owner = owners.get(normalize(refreshTokenFile));
    if (owner === undefined) {
      owners.set(normalize(refreshTokenFile), { client, at: path.join('.') });
    } else if (owner.client !== client) {
      const reason = `is the file of another client (${owner.at})`;
      const fix = 'give each client a file of its own: two that use one refresh token lock each other out';
      found.push({ path: [...path, 'oauth', 'refreshTokenFile'], reason, fix });
    }
  }
  for (const { path, credential } of credentials) {
    const sent = credential['file'];
    if (typeof sent !== 'string' || !owners.has(normalize(sent))) continue;
    const fix =
      'leave file out and use the same oauth section: a refresh token is never sent to the upstream';
    found.push({ path: [...path, 'file'], reason: 'is a refreshTokenFile, too', fix });
  }
  return found;
}

function credentialsOf(file: Section): Written[] {
  const found: Written[] = [];
  for (const [name, upstream] of Object.entries(section(file['upstreams'])))
    found.push({
      path: ['upstreams', name, 'credential'],
      credential: section(section(upstream)['credential']),
    });
  for (const [id, workspace] of Object.entries(section(file['workspaces'])))
    for (const [name, credential] of Object.entries(section(section(workspace)['credentials'])))
      found.push({ path: ['workspaces', id, 'credentials', name], credential: section(credential) });
  return found;
}
