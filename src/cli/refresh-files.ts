/**
 * What is wrong with the files of refresh tokens, before one is needed: a token that cannot be replaced on the disk must not be
 * used. Owns the words; uses no token, and shows none.
 */
import { systemRandom } from '../clock.ts';
import type { Settings, UpstreamCredential } from '../config/settings.ts';
import { canReplace, isExposed, readTokenFile } from '../credentials/token-file.ts';

/** One sentence for each file that cannot be used, or that every user of the machine can. */
export async function refreshFileWarnings({ upstreams, workspaces }: Settings): Promise<readonly string[]> {
  /** Each file, with whose credential names it first. */
  const owners = new Map<string, string>();
  const add = (owner: string, credential: UpstreamCredential | null): void => {
    const path = credential?.source.kind === 'oauth' ? credential.source.client.refreshTokenFile : null;
    if (path !== null && !owners.has(path)) owners.set(path, owner);
  };
  for (const { name, credential } of upstreams.values()) add(`upstream ${name}`, credential);
  for (const { id, credentials } of workspaces.values())
    for (const [name, credential] of credentials) add(`workspace ${id}, upstream ${name}`, credential);
  const found: string[] = [];
  for (const [path, owner] of owners) {
    const caution = await cautionOf(path);
    if (caution !== null) found.push(`${owner}: the refresh token’s file ${path} ${caution}`);
  }
  return found;
}

async function cautionOf(path: string): Promise<string | null> {
  const seen = await readTokenFile(path);
  if (seen.kind === 'failed')
    return seen.fault === 'missing'
      ? 'is missing or cannot be read here: write the refresh token into it'
      : 'holds no refresh token: write it as plain text, or as the JSON of the token endpoint';
  if (!(await canReplace(seen, systemRandom.hex(8))))
    return 'cannot be replaced here: its folder must be writable';
  return isExposed(seen) ? 'can be used by every user of this machine: give it mode 600' : null;
}
