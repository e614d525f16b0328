/**
 * Files of credentials. The file of a fixed value is only read; that of a refresh token is also replaced, as a whole.
 * Keeps: at every instant the path names a complete file, the one before or the next; a change that somebody else made since
 * it was read is not overwritten. A text handed to `replaceTokenFile` is on the disk when that has resolved with true.
 */
import { open, readFile, realpath, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Clock } from '../clock.ts';
import { fieldValueFault } from '../config/values.ts';
import { isRefreshToken, noToken, objectOf, type Fetched, type NoToken } from './token-endpoint.ts';

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
  readonly refreshToken: string;
  /** The path with all symbolic links resolved, so that no link is ever replaced by a file. */
  readonly realPath: string;
  readonly owner: { readonly mode: number; readonly uid: number; readonly gid: number };
}

/** Reads the file. `missing`: no file, or none that may be read · `invalid`: no refresh token in it. Never rejects. */
export async function readTokenFile(path: string): Promise<ReadFile | NoToken> {
  try {
    const realPath = await realpath(path);
    const read = await readSmallFile(realPath);
    const refreshToken = read === null ? null : refreshTokenIn(read.text);
    return read === null || refreshToken === null
      ? noToken('invalid')
      : { kind: 'read', ...read, refreshToken, realPath };
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

/** The refresh token in the text of a file: the token alone, or JSON with the name of RFC 6749 §5.1; `null` = there is none. */
export function refreshTokenIn(text: string): string | null {
  const trimmed = text.trim();
  const token = trimmed.startsWith('{') ? objectOf(trimmed)?.['refresh_token'] : trimmed;
  return isRefreshToken(token) ? token : null;
}
