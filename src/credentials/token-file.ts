/**
 * Files of credentials. The file of a fixed value is only read; that of a refresh token is also replaced, as a whole.
 * Keeps: at every instant the path names a complete file, the one before or the next; a change that somebody else made since
 * it was read is not overwritten. A text handed to `replaceTokenFile` is on the disk when that has resolved with true.
 */
import { access, constants, open, readFile, realpath, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Clock } from '../clock.ts';
import { fieldValueFault } from '../config/values.ts';
import { isAccessToken, isRefreshToken, noToken, objectOf, sendableForMs } from './token-endpoint.ts';
import type { Fetched, FetchedToken, NoToken } from './token-endpoint.ts';

/** A longer file is not taken for one with a credential. Bytes. */
const maxBytes = 65_536;

/** The text of a small file with whose it is; `null` = it is too long. @throws when it cannot be read */
async function readSmallFile(path: string) {
  const { size, mode, uid, gid } = await stat(path);
  return size > maxBytes ? null : { text: await readFile(path, 'utf8'), owner: { mode, uid, gid } };
}

/** Reads the credential in a file: its text without white space at either end. Never rejects. */
export async function readCredential(path: string, clock: Pick<Clock, 'monotonic'>): Promise<Fetched> {
  try {
    const token = (await readSmallFile(path))?.text.trim() ?? '';
    if (token === '' || fieldValueFault(token) !== null) return noToken('invalid');
    return { kind: 'token', token, lifeMs: null, issuedAt: clock.monotonic(), isShared: false };
  } catch {
    return noToken('missing');
  }
}

/** The file as it was read. It holds secrets: in memory only. */
export interface ReadFile {
  readonly kind: 'read';
  readonly text: string;
  readonly stored: StoredGrant;
  /** The path with all symbolic links resolved, so that no link is ever replaced by a file. */
  readonly realPath: string;
  readonly owner: { readonly mode: number; readonly uid: number; readonly gid: number };
}

/** Reads the file. `missing`: no file, or none that may be read · `invalid`: no refresh token in it. Never rejects. */
export async function readTokenFile(path: string): Promise<ReadFile | NoToken> {
  try {
    const realPath = await realpath(path);
    const read = await readSmallFile(realPath);
    const stored = read === null ? null : parseGrant(read.text);
    return read === null || stored === null
      ? noToken('invalid')
      : { kind: 'read', ...read, stored, realPath };
  } catch {
    return noToken('missing');
  }
}

/**
 * Replaces the text of the file by writing a new file beside it and renaming that one over it. False: it could not be, or
 * somebody else has changed the file since it was read; it stays as it is. Never rejects.
 */
export async function replaceTokenFile(
  { realPath, text: before, owner: { mode, uid, gid } }: ReadFile,
  text: string,
): Promise<boolean> {
  const next = `${realPath}.new`;
  try {
    // A process that was killed may have left its new file behind.
    await rm(next, { force: true });
    const file = await open(next, 'wx', 0o600);
    try {
      // Owner, group and group's rights stay as far as this process may give them; others get no rights, and no other group does.
      await file.chown(uid, gid).catch(() => {});
      const own = await file.stat();
      await file.chmod(0o600 | (own.gid === gid ? mode & 0o060 : 0));
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    if ((await readFile(realPath, 'utf8')) !== before) return false;
    await rename(next, realPath);
    // Writes the rename to the disk. Some file systems cannot do that; only a loss of power now could undo it.
    const folder = await open(dirname(realPath)).catch(() => null);
    await folder?.sync().catch(() => {});
    await folder?.close();
    return true;
  } catch {
    return false;
  } finally {
    await rm(next, { force: true }).catch(() => {});
  }
}

/** True when a file may be created beside this one. */
export const canReplace = ({ realPath }: ReadFile): Promise<boolean> =>
  access(dirname(realPath), constants.W_OK).then(
    () => true,
    () => false,
  );

/** A refresh token and the access token that came with it. */
export interface StoredGrant {
  readonly refreshToken: string;
  /** Processes that see the same file share this token, also without Redis. `null` = the file has none that can be used. */
  readonly access: {
    readonly token: string;
    /** The token's whole lifetime, milliseconds; `null` = not known. */
    readonly lifeMs: number | null;
    /** When the token ends, milliseconds since the epoch; `null` = not known. */
    readonly endsAt: number | null;
  } | null;
}

/**
 * Reads the text of the file: the refresh token alone, or JSON with the names of RFC 6749 §5.1; `null`: there is no refresh token in it. An
 * access token with a lifetime (`expires_in`) counts only where the file also states when it ends (`expires_at`), so that a response of
 * the endpoint that somebody saved by hand is exchanged.
 */
export function parseGrant(text: string): StoredGrant | null {
  const trimmed = text.trim();
  const json = trimmed.startsWith('{') ? objectOf(trimmed) : { refresh_token: trimmed };
  const { refresh_token: refreshToken, access_token: token, expires_in: life, expires_at: end } = json ?? {};
  if (!isRefreshToken(refreshToken)) return null;
  if (!isAccessToken(token)) return { refreshToken, access: null };
  if (typeof life === 'number' && life > 0 && typeof end === 'number')
    return { refreshToken, access: { token, lifeMs: life * 1_000, endsAt: end * 1_000 } };
  const isUntimed = life === undefined && end === undefined;
  return { refreshToken, access: isUntimed ? { token, lifeMs: null, endsAt: null } : null };
}

/** The text of the file; `expires_at` is in seconds since the epoch. */
export function grantText({ refreshToken, access }: StoredGrant): string {
  const { token, lifeMs = null, endsAt = null } = access ?? {};
  const times =
    lifeMs === null || endsAt === null ? {} : { expires_in: lifeMs / 1_000, expires_at: endsAt / 1_000 };
  return `${JSON.stringify({ refresh_token: refreshToken, access_token: token, ...times }, null, 2)}\n`;
}

/** The stored access token as a fetch would have brought it, unless it is the unwanted one or has ended. */
export function usableAccess(
  { access }: StoredGrant,
  unwanted: string | null,
  clock: Pick<Clock, 'now' | 'monotonic'>,
): FetchedToken | null {
  if (access === null || access.token === unwanted) return null;
  const { token, lifeMs, endsAt } = access;
  // The clock of the process that wrote the file may have been ahead of this one.
  const ageMs = lifeMs === null || endsAt === null ? 0 : Math.max(0, clock.now() - (endsAt - lifeMs));
  if (lifeMs !== null && ageMs >= sendableForMs(lifeMs)) return null;
  return { kind: 'token', token, lifeMs, issuedAt: clock.monotonic() - ageMs, isShared: true };
}
