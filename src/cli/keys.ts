/**
 * `sluice keys create`: makes an API key and shows it once; nothing is stored, the configuration gets the hash. `sluice keys list` and
 * `sluice labels`: which key is behind a hash, and who is behind a label: ids of workspaces and keys, and hashes; never a secret.
 */
import { createHash, randomBytes } from 'node:crypto';
import { loadSettings } from '../config/load.ts';
import { readInstant, workspaceIdFault } from '../config/names.ts';
import type { Settings, WorkspaceKey } from '../config/settings.ts';
import { workspaceLabel } from '../identity.ts';
import { readOrSayWhy, type CliIo } from './io.ts';

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

const settingsOf = (config: string, io: CliIo): Settings | null =>
  readOrSayWhy(() => loadSettings({ path: config, env: io.env }), io);

/** Runs `sluice labels`: label, workspace and its keys, one line each. Exit code 1 when there are no lasting labels. */
export async function runLabels({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  const settings = settingsOf(config, io);
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
    keys.length === 0 ? 'no key' : keys.map(shownKey).join(' '),
  ]);
  io.out(table(['label', 'workspace', 'keys'], rows));
  return 0;
}

export interface KeysListCommand {
  readonly config: string;
  /** Only keys whose hash begins so (with or without `sha256:`), or whose id is this; `null` = all. */
  readonly find: string | null;
}

/** Runs `sluice keys list`. Exit code 1 when no key is like the one looked for. */
export async function runKeysList({ config, find }: KeysListCommand, io: CliIo): Promise<number> {
  const settings = settingsOf(config, io);
  if (settings === null) return 1;
  const now = io.clock.now();
  const wanted = find?.replace(/^sha256:/i, '').toLowerCase() ?? '';
  const rows = [...settings.workspaces.values()].flatMap(({ id, keys }) =>
    keys
      .filter((key) => key.sha256.startsWith(wanted) || key.id === find)
      .map((key) => [JSON.stringify(id), key.id ?? '-', `sha256:${key.sha256}`, ending(key, now)]),
  );
  if (rows.length === 0) {
    io.err(find === null ? 'No workspace has a key.' : notFound(settings));
    return 1;
  }
  io.out(table(['workspace', 'id', 'hash', 'valid'], rows));
  return 0;
}

/** A key whose entry has no `id` can be found by its hash only. */
function notFound({ workspaces }: Settings): string {
  const unnamed = [...workspaces.values()].flatMap(({ keys }) => keys).filter(({ id }) => id === null).length;
  const none = 'No key of the file has such a hash or id.';
  return unnamed === 0
    ? none
    : `${none} ${unnamed} of them have no id there: look for the hash that printf %s "$KEY" | sha256sum prints.`;
}

/** The id where the file has it, else the beginning of the hash. */
const shownKey = ({ id, sha256 }: WorkspaceKey): string => id ?? `sha256:${sha256.slice(0, 12)}…`;

function ending({ expiresAt }: WorkspaceKey, now: number): string {
  if (expiresAt === null) return 'yes';
  const day = new Date(expiresAt).toISOString();
  return expiresAt <= now ? `expired ${day}` : `until ${day}`;
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [head, ...rows];
  const widths = head.map((_, at) => Math.max(...all.map((row) => row[at]?.length ?? 0)));
  return all
    .map((row) =>
      row
        .map((cell, at) => cell.padEnd(widths[at] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
