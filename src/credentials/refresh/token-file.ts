/**
 * The file of a refresh token: read whole, replaced whole. Owns its form on disk, its owner and mode. Does not own: who may
 * use the token now (`file-lock.ts`), what it is used for (`refresh-grant.ts`).
 * Keeps: at every instant the path names a complete file, the one before or the next; a change that somebody else made since
 * it was read is not overwritten. A text handed to `replace` is on the disk when that has resolved with `replaced`.
 */
import { type FileHandle, open, readFile, realpath, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { FetchedToken } from '../oauth-source.ts';
import { sendableForMs } from '../renewal.policy.ts';
import { isAccessToken, isRefreshToken, objectOf } from '../token-reply.policy.ts';

/** A longer file is not taken for one with a token. */
const maxBytes = 65_536;

/** The file as it was read. It holds secrets: in memory only. */
export interface ReadFile {
  readonly kind: 'read';
  readonly text: string;
  readonly stored: StoredGrant;
  /** The path with all symbolic links resolved, so that no link is ever replaced by a file. */
  readonly realPath: string;
  readonly owner: { readonly mode: number; readonly uid: number; readonly gid: number };
}

export type FileReading =
  | ReadFile
  /** `missing`: no file, or none that may be read · `invalid`: no refresh token in it. */
  | { readonly kind: 'failed'; readonly fault: 'missing' | 'invalid' };

/** Reads the file. Never rejects. */
export async function readTokenFile(path: string): Promise<FileReading> {
  try {
    const realPath = await realpath(path);
    const file = await open(realPath);
    try {
      const { bytesRead, buffer } = await file.read(Buffer.alloc(maxBytes + 1), 0, maxBytes + 1, 0);
      const text = buffer.toString('utf8', 0, bytesRead);
      const stored = bytesRead > maxBytes ? null : parseGrant(text);
      if (stored === null) return { kind: 'failed', fault: 'invalid' };
      const { mode, uid, gid } = await file.stat();
      return { kind: 'read', text, stored, realPath, owner: { mode, uid, gid } };
    } finally {
      await file.close();
    }
  } catch {
    return { kind: 'failed', fault: 'missing' };
  }
}

/** True when users that are neither the owner nor of the file's group have access to it. */
export const isExposed = ({ owner }: ReadFile): boolean => (owner.mode & 0o007) !== 0;

/**
 * Replaces the text of the file by writing a new file beside it and renaming that one over it. `changed`: the file was changed by
 * somebody else since it was read, and stays as it is. Never rejects. Callers hold the lock of the file.
 */
export async function replaceTokenFile(
  { realPath, text: before, owner }: ReadFile,
  text: string,
): Promise<'replaced' | 'changed' | 'failed'> {
  const next = `${realPath}.new`;
  try {
    // A process that was killed may have left its new file behind.
    await rm(next, { force: true });
    const file = await open(next, 'wx', 0o600);
    try {
      await takeOwner(file, owner);
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    const now = await readFile(realPath, 'utf8').catch(() => before);
    if (now !== before) {
      await rm(next, { force: true });
      return 'changed';
    }
    await rename(next, realPath);
    await syncFolder(dirname(realPath));
    return 'replaced';
  } catch {
    await rm(next, { force: true }).catch(() => {});
    return 'failed';
  }
}

/** True when a file can be created beside this one, and this one is not itself a mount point, which no file can be renamed over. */
export async function canReplace({ realPath }: ReadFile, suffix: string): Promise<boolean> {
  const probe = `${realPath}.${suffix}`;
  try {
    await (await open(probe, 'wx', 0o600)).close();
    await rm(probe);
  } catch {
    return false;
  }
  const mounts = await readFile('/proc/self/mountinfo', 'utf8').catch(() => '');
  // The fifth word of a line is the mount point; blanks in it are written as octal numbers.
  const point = realPath.replaceAll(' ', '\\040');
  return !mounts.split('\n').some((line) => line.split(' ')[4] === point);
}

/** Gives the new file the owner, group and group's rights of the previous one, as far as this process may; others get no rights. */
async function takeOwner(file: FileHandle, { mode, uid, gid }: ReadFile['owner']): Promise<void> {
  const own = await file.stat();
  const isSame = own.uid === uid && own.gid === gid;
  const isTaken =
    isSame ||
    (await file.chown(uid, gid).then(
      () => true,
      () => false,
    ));
  // The rights of the previous group are not given to another group.
  await file.chmod(0o600 | (isTaken || own.gid === gid ? mode & 0o060 : 0));
}

/** Writes the folder to the disk, and with it a rename. Some file systems cannot do that. */
async function syncFolder(path: string): Promise<void> {
  try {
    const folder = await open(path);
    try {
      await folder.sync();
    } finally {
      await folder.close();
    }
  } catch {
    // The new file is in its place for every process; only a loss of power in this moment could undo that.
  }
}

// The text: the refresh token alone, or JSON with the names of RFC 6749 §5.1. An access token with a lifetime (`expires_in`) counts only where the
// file also states when it ends (`expires_at`), so that a response of the endpoint that somebody saved by hand is exchanged.

export interface StoredAccess {
  readonly token: string;
  /** The token's whole lifetime, milliseconds; `null` = not known. */
  readonly lifeMs: number | null;
  /** When the token ends, milliseconds since the epoch; `null` = not known. */
  readonly endsAt: number | null;
}

/** A refresh token and the access token that came with it. */
export interface StoredGrant {
  readonly refreshToken: string;
  /** Processes that see the same file share this token, also without Redis. `null` = the file has none that can be used. */
  readonly access: StoredAccess | null;
}

/** Reads the text of the file; `null`: there is no refresh token in it. */
export function parseGrant(text: string): StoredGrant | null {
  const trimmed = text.trim();
  if (!trimmed.startsWith('{'))
    return isRefreshToken(trimmed) ? { refreshToken: trimmed, access: null } : null;
  const json = objectOf(trimmed);
  const refreshToken = json?.['refresh_token'];
  if (json === null || typeof refreshToken !== 'string' || !isRefreshToken(refreshToken)) return null;
  return { refreshToken, access: accessIn(json) };
}

/** The text of the file; `expires_at` is in seconds since the epoch. */
export function grantText({ refreshToken, access }: StoredGrant): string {
  const json = {
    refresh_token: refreshToken,
    ...(access === null ? {} : { access_token: access.token }),
    ...(access === null || access.lifeMs === null || access.endsAt === null
      ? {}
      : { expires_in: access.lifeMs / 1_000, expires_at: access.endsAt / 1_000 }),
  };
  return `${JSON.stringify(json, null, 2)}\n`;
}

/**
 * The stored access token as a fetch would have brought it, unless it is the unwanted one or has ended.
 * @param now milliseconds since the epoch
 * @param monotonic the same instant on the clock by which tokens are renewed
 */
export function usableAccess(
  { access }: StoredGrant,
  unwanted: string | null,
  { now, monotonic }: { readonly now: number; readonly monotonic: number },
): FetchedToken | null {
  if (access === null || access.token === unwanted) return null;
  const { token, lifeMs, endsAt } = access;
  // The clock of the process that wrote the file may have been ahead of this one.
  const ageMs = lifeMs === null || endsAt === null ? 0 : Math.max(0, now - (endsAt - lifeMs));
  if (lifeMs !== null && ageMs >= sendableForMs(lifeMs)) return null;
  return { kind: 'token', token, lifeMs, issuedAt: monotonic - ageMs, isShared: true };
}

function accessIn(json: Readonly<Record<string, unknown>>): StoredAccess | null {
  const { access_token: token, expires_in: seconds, expires_at: end } = json;
  if (typeof token !== 'string' || !isAccessToken(token)) return null;
  if (seconds === undefined && end === undefined) return { token, lifeMs: null, endsAt: null };
  if (typeof seconds !== 'number' || !(seconds > 0) || typeof end !== 'number') return null;
  return { token, lifeMs: seconds * 1_000, endsAt: end * 1_000 };
}
