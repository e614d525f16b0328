/** `sluice keys create`: makes an API key and shows it once. Nothing is stored; the configuration gets the hash. */
import { createHash, randomBytes } from 'node:crypto';
import { readInstant, workspaceIdFault } from '../config/names.ts';
import type { CliIo } from './io.ts';

/** A fresh API key and what the configuration holds of it. */
export interface NewKey {
  /** `slc_<id>_<43 url-safe characters>`: 256 random bits behind an id that may be logged. */
  readonly key: string;
  /** The middle part of the key, which may be shown. */
  readonly id: string;
  /** `sha256:<hex>` of the whole key. */
  readonly hash: string;
}

/** Makes a key. 256 random bits need no slow hash: guessing them is out of reach, however fast a guess is. */
export function createKey(): NewKey {
  const id = randomBytes(5).toString('hex');
  const key = `slc_${id}_${randomBytes(32).toString('base64url')}`;
  return { key, id, hash: `sha256:${createHash('sha256').update(key).digest('hex')}` };
}

/** Runs the command. Exit code 0, or 2 when the name or the date cannot be used. */
export async function runKeysCreate(
  { workspace, expires }: { readonly workspace: string; readonly expires: string | null },
  io: CliIo,
): Promise<number> {
  const fault = workspaceIdFault(workspace);
  if (fault !== null) {
    io.err(`The workspace name ${fault}. Use 1 to 128 printable characters.`);
    return 2;
  }
  const expiresAt = expires === null ? null : readInstant(expires);
  if (expires !== null && expiresAt === null) {
    io.err('--expires is not a date. Write 2027-01-01T00:00:00Z or 2027-01-01.');
    return 2;
  }
  if (expiresAt !== null && expiresAt <= io.clock.now()) {
    io.err('--expires lies in the past.');
    return 2;
  }
  const { key, id, hash } = createKey();
  const ending = expiresAt === null ? '' : `, expires: ${new Date(expiresAt).toISOString()}`;
  io.out(`key:  ${key}
hash: ${hash}

The key is shown this once. The configuration needs its hash only:

workspaces:
  ${yamlKey(workspace)}:
    keys:
      - { id: "${id}", hash: "${hash}"${ending} }`);
  return 0;
}

/** JSON texts are YAML texts; plain words, the usual case, need no quotes. */
const yamlKey = (text: string): string =>
  /^[A-Za-z][A-Za-z0-9_-]*$/.test(text) && !/^(true|false|null)$/i.test(text) ? text : JSON.stringify(text);
