/**
 * The text of a refresh token's file: the refresh token alone, or JSON with the names of RFC 6749 §5.1. Owns: reading and writing that
 * text, and whether its access token may still be used. Does not own: the file (`token-file.ts`). Keeps: an access token with a
 * lifetime (`expires_in`) counts only where the file also states when it ends (`expires_at`), so that a response of the endpoint that
 * somebody saved by hand is exchanged. Pure.
 */
import { sendableForMs } from '../renewal.policy.ts';
import { isAccessToken, isRefreshToken, objectOf } from '../token-reply.policy.ts';

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

/** An access token as a fetch would have brought it. */
export interface UsableAccess {
  readonly kind: 'token';
  readonly token: string;
  readonly lifeMs: number | null;
  /** When the token's lifetime began, monotonic milliseconds. */
  readonly issuedAt: number;
  /** The token was fetched earlier, by this process or another one. */
  readonly isShared: true;
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
 * The stored access token, unless it is the unwanted one or has ended.
 * @param now milliseconds since the epoch
 * @param monotonic the same instant on the clock by which tokens are renewed
 */
export function usableAccess(
  { access }: StoredGrant,
  unwanted: string | null,
  { now, monotonic }: { readonly now: number; readonly monotonic: number },
): UsableAccess | null {
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
