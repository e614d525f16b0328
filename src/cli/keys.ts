/**
 * `sluice keys create`: makes an API key and shows it once; nothing is stored, the configuration gets the hash. `sluice labels`: who is
 * behind a label: ids of workspaces and keys, and hashes; never a secret.
 */
import { createHash, randomBytes } from 'node:crypto';
import { loadSettings } from '../config/load.ts';
import { readInstant, workspaceIdFault } from '../config/values.ts';
import { workspaceLabel } from '../identity.ts';
import { readOrSayWhy, table, UsageError, type CliIo } from './io.ts';

/** A fresh API key and what the configuration holds of it. 256 random bits need no slow hash: guessing them is out of reach. */
export function createKey() {
  /** The middle part of the key, which may be shown. */
  const id = randomBytes(5).toString('hex');
  const key = `slc_${id}_${randomBytes(32).toString('base64url')}`;
  return { key, id, hash: `sha256:${createHash('sha256').update(key).digest('hex')}` };
}

/** Runs the command. Exit code 0. @throws UsageError when the name or the date cannot be used */
export async function runKeysCreate(
  { workspace, expires }: { readonly workspace: string; readonly expires?: string | undefined },
  io: CliIo,
): Promise<number> {
  const fault = workspaceIdFault(workspace);
  if (fault !== null) throw new UsageError(`The workspace name ${fault}.`);
  const expiresAt = expires === undefined ? null : readInstant(expires);
  if (expires !== undefined && expiresAt === null)
    throw new UsageError('--expires is not a date. Write 2027-01-01T00:00:00Z or 2027-01-01.');
  if (expiresAt !== null && expiresAt <= io.clock.now()) throw new UsageError('--expires lies in the past.');
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

/** Runs `sluice labels`: label, workspace and its keys, one line each. Exit code 1 when there are no lasting labels. */
export async function runLabels({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  const settings = readOrSayWhy(() => loadSettings({ path: config, env: io.env }), io);
  if (settings === null) return 1;
  const { labelKey, labelKeyGenerated } = settings.privacy;
  if (labelKeyGenerated) {
    io.err(
      'privacy.labelKey is not set: every start makes new labels, so none can be told from the file. Set it.',
    );
    return 1;
  }
  const rows = [...settings.workspaces.values()].map(({ id, keys }) => [
    workspaceLabel(labelKey, id),
    JSON.stringify(id),
    // The id where the file has it, else the beginning of the hash.
    keys.map(({ id, sha256 }) => id ?? `sha256:${sha256.slice(0, 12)}…`).join(' ') || 'no key',
  ]);
  io.out(table(['label', 'workspace', 'keys'], rows).join('\n'));
  return 0;
}
