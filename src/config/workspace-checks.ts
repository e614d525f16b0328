/** Rules of workspaces and their keys: names that must exist, digests that must differ. */
import { createHash } from 'node:crypto';
import { checkCredential } from './credential-checks.ts';
import { workspaceIdFault } from './names.ts';
import { privateAddresses } from './private-addresses.ts';
import type { Finding, Path } from './problem.ts';
import { list, section } from './tree.ts';
import type { Section } from './tree.ts';

/** Rules of one workspace: its id, and that every upstream it names exists and is allowed to it. */
export function checkWorkspace(id: string, workspace: Section, upstreams: Section): Finding[] {
  const path: Path = ['workspaces', id];
  const fault = workspaceIdFault(id);
  const found: Finding[] =
    fault === null ? [] : [{ path, reason: `id ${fault}`, fix: 'use 1 to 128 printable characters' }];
  const known = Object.keys(upstreams);
  const allowed = Array.isArray(workspace['upstreams']) ? workspace['upstreams'] : known;
  const check = (at: Path, name: string): void => {
    if (!known.includes(name)) {
      const fix = known.length === 0 ? 'describe it in upstreams' : `use one of: ${known.join(', ')}`;
      found.push({ path: at, reason: 'names an upstream that is not configured', fix });
    } else if (!allowed.includes(name)) {
      const fix = `add ${name} to the workspace’s upstreams, or remove this entry`;
      found.push({ path: at, reason: 'names an upstream that the workspace may not call', fix });
    }
  };
  list(workspace['upstreams']).forEach((name, index) => {
    if (typeof name === 'string') check([...path, 'upstreams', index], name);
  });
  for (const key of ['requestsPerMinute', 'requestsPerDay', 'credentials']) {
    for (const name of Object.keys(section(workspace[key]))) check([...path, key, name], name);
  }
  for (const [name, credential] of Object.entries(section(workspace['credentials']))) {
    const allowed = privateAddresses(section(upstreams[name]));
    found.push(...checkCredential([...path, 'credentials', name], credential, allowed));
  }
  for (const name of Object.keys(section(workspace['accounts']))) {
    if (Object.hasOwn(section(workspace['credentials']), name)) continue;
    const fix = 'add the workspace’s credential for it, or leave the account out';
    found.push({ path: [...path, 'accounts', name], reason: 'names the quota of no credential', fix });
  }
  return found;
}

/** Every key hash of the file, lower case, with its path. */
function* keyHashes(workspaces: Section): Generator<{ hash: string; path: Path }> {
  for (const [id, workspace] of Object.entries(workspaces)) {
    for (const [index, entry] of list(section(workspace)['keys']).entries()) {
      const path = ['workspaces', id, 'keys', index];
      if (typeof entry === 'string') yield { hash: entry.toLowerCase(), path };
      const hash = section(entry)['hash'];
      if (typeof hash === 'string') yield { hash: hash.toLowerCase(), path: [...path, 'hash'] };
    }
  }
}

/** A key names exactly one workspace, once. */
export function checkKeys(workspaces: Section): Finding[] {
  const found: Finding[] = [];
  const seen = new Set<string>();
  for (const { hash, path } of keyHashes(workspaces)) {
    if (seen.has(hash) && /^sha256:[0-9a-f]{64}$/.test(hash)) {
      const fix = 'give each workspace its own key: a key must name exactly one workspace, once';
      found.push({ path, reason: 'is a key that was already given above', fix });
    }
    seen.add(hash);
  }
  return found;
}

/** A client's API key is never sent upstream, so it cannot be an upstream credential either. */
export function ownKeysAsCredentials(file: Section): Finding[] {
  const hashes = new Set([...keyHashes(section(file['workspaces']))].map(({ hash }) => hash));
  const credentials = [
    ...Object.entries(section(file['upstreams'])).map(
      ([name, upstream]) => [['upstreams', name, 'credential'], section(upstream)['credential']] as const,
    ),
    ...Object.entries(section(file['workspaces'])).flatMap(([id, workspace]) =>
      Object.entries(section(section(workspace)['credentials'])).map(
        ([name, value]) => [['workspaces', id, 'credentials', name], value] as const,
      ),
    ),
  ];
  return credentials.flatMap(([path, credential]) => {
    const value = typeof credential === 'string' ? credential : section(credential)['value'];
    if (typeof value !== 'string') return [];
    const digest = createHash('sha256')
      .update(value.replace(/^bearer\s+/i, ''))
      .digest('hex');
    if (!hashes.has(`sha256:${digest}`)) return [];
    const at = typeof credential === 'string' ? path : [...path, 'value'];
    return [
      { path: at, reason: 'is an API key of Sluice', fix: 'give the credential that the upstream knows' },
    ];
  });
}
