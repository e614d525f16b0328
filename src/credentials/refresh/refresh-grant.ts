/**
 * Access tokens of one grant, renewed by its refresh token (RFC 6749 §6). Many providers replace the refresh token with each use: a
 * client that loses the endpoint's response, or uses a refresh token twice, may lose the grant.
 *
 * Owns: the order of one renewal, what is kept in memory while the file cannot be written, which token was refused. Does not
 * own: when a token is needed (`oauth-source.ts`), which replica fetches it (`shared-tokens.ts`), the file itself.
 * Keeps: one process of all that see the file exchanges the token at a time, with what the file says at that time; nothing is exchanged
 * unless the file could be replaced a moment before; a new refresh token is on the disk before its access token is sent. An exchange that
 * has begun is never cut off by a reload or the end of the process.
 */
import type { Clock, Random } from '../../clock.ts';
import type { OAuthClient } from '../../config/settings.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import type { Fetched } from '../oauth-source.ts';
import type { NoToken } from '../token-reply.policy.ts';
import { type FetchToken, type SendTokenRequest, type TokenFetch, tokenRequest } from '../token-fetcher.ts';
import { readRefreshToken, readToken } from '../token-reply.policy.ts';
import { FileLock } from './file-lock.ts';
import {
  grantText,
  isExposed,
  type ReadFile,
  readTokenFile,
  replaceTokenFile,
  type StoredGrant,
  usableAccess,
} from './token-file.ts';

/** How long a renewal waits for the lock of the file: longer than the lock outlives a dead process. Milliseconds. */
const lockWaitMs = 13_000;
const lockCheckMs = 50;
/** Saving a grant that could not be written is tried again after this time, milliseconds. */
export const saveAgainMs = 5_000;

export interface RefreshGrantParts {
  readonly path: string;
  readonly clock: Clock;
  readonly random: Pick<Random, 'hex'>;
  readonly send: SendTokenRequest;
  readonly telemetry: Pick<Telemetry, 'credentialRenewal' | 'log'>;
}

/** The result of an exchange that is not on the disk. */
interface Unsaved {
  readonly grant: StoredGrant;
  /** The file as it was at the exchange: while its text is unchanged, `grant` takes precedence over it. */
  readonly seen: ReadFile;
  readonly upstream: string;
}

type RenewalInput = Pick<TokenFetch, 'client' | 'upstream' | 'unwanted'>;
const failed = (fault: NoToken['fault']): Fetched => ({
  kind: 'failed',
  fault,
  statedMs: null,
});

export class RefreshGrant {
  readonly #parts: RefreshGrantParts;
  readonly #underWay = new Set<Promise<unknown>>();
  #unsaved: Unsaved | null = null;
  /** Client and refresh token that the endpoint has refused for good; `null` = none. */
  #ended: string | null = null;
  /** The file's text when this process last read it for a check or a renewal, or wrote it. */
  #lastText: string | null = null;
  #hasWarned = false;
  #cancelSave = (): void => {};
  #isClosed = false;

  constructor(parts: RefreshGrantParts) {
    this.#parts = parts;
  }

  /** An access token other than the unwanted one, from the file or by an exchange. Takes a bounded time, as long as the disk answers. */
  fetch(input: RenewalInput): Promise<Fetched> {
    return this.#keep(this.#fetch(input));
  }

  /** True when another process or an operator has changed the file since this process last read or wrote it. Never rejects. */
  async hasChanged(): Promise<boolean> {
    const seen = await readTokenFile(this.#parts.path);
    const text = seen.kind === 'read' ? seen.text : null;
    const isNew = text !== null && text !== this.#lastText;
    this.#lastText = text;
    return isNew;
  }

  /** Resolves when no exchange and no save is under way any more, after one last attempt to save what is not on the disk. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelSave();
    await Promise.allSettled(this.#underWay);
    if (this.#unsaved !== null) await this.#saveAgain();
  }

  async #keep<T>(work: Promise<T>): Promise<T> {
    this.#underWay.add(work);
    try {
      return await work;
    } finally {
      this.#underWay.delete(work);
    }
  }

  async #fetch(input: RenewalInput): Promise<Fetched> {
    const { clock } = this.#parts;
    for (const until = clock.monotonic() + lockWaitMs; ;) {
      const fetched = await this.#attempt(input);
      if (fetched !== null) return fetched;
      if (this.#isClosed || clock.monotonic() >= until) return failed('timeout');
      await new Promise<void>((resolve) => void clock.after(lockCheckMs, resolve));
    }
  }

  /** One attempt to get a token; `null`: another process holds the lock of the file, or has just changed the file. */
  async #attempt(input: RenewalInput): Promise<Fetched | null> {
    const { path } = this.#parts;
    const seen = await readTokenFile(path);
    if (seen.kind === 'failed') return this.#withoutFile(input, seen.fault);
    this.#warnOnce(seen, input);
    const lock = this.#lockOf(seen);
    const taken = await lock.take();
    if (taken === 'held') return null;
    if (taken === 'failed') return this.#withoutFile(input, 'unwritable');
    try {
      // The previous holder of the lock may have exchanged the token.
      const now = await readTokenFile(path);
      return now.kind === 'failed' ? failed(now.fault) : await this.#renew(input, now, lock);
    } finally {
      await lock.release();
    }
  }

  /** Where the latest exchange could not be saved, the grant in memory is newer than the file, and is exchanged without it. */
  async #withoutFile(
    input: RenewalInput,
    fault: 'missing' | 'invalid' | 'unwritable',
  ): Promise<Fetched | null> {
    const { seen, grant } = this.#unsaved ?? {};
    return seen === undefined || grant === undefined ? failed(fault) : this.#exchange(input, seen, grant);
  }

  async #renew(input: RenewalInput, seen: ReadFile, lock: FileLock): Promise<Fetched | null> {
    const { clock } = this.#parts;
    this.#lastText = seen.text;
    const grant = this.#grantIn(seen);
    const found = usableAccess(grant, input.unwanted, { now: clock.now(), monotonic: clock.monotonic() });
    if (found !== null) return found;
    if (this.#ended === endedName(input.client, grant)) return failed('grant_ended');
    if (this.#unsaved === null) {
      const tried = await replaceTokenFile(seen, seen.text);
      if (tried !== 'replaced') return tried === 'changed' ? null : failed('unwritable');
    }
    return (await lock.isOurs()) ? this.#exchange(input, seen, grant) : null;
  }

  async #exchange(input: RenewalInput, seen: ReadFile, grant: StoredGrant): Promise<Fetched | null> {
    const { clock, send, path } = this.#parts;
    const { client, upstream } = input;
    const [issuedAt, asked] = [clock.monotonic(), clock.now()];
    // A response that nobody reads may be the only one that names the next refresh token.
    const { signal } = new AbortController();
    const result = await send(tokenRequest(client, grant.refreshToken), upstream, signal);
    if (result.kind === 'failed') return failed(result.fault);
    const read = readToken(result.reply, clock.now(), 'refresh_token');
    const refreshToken = readRefreshToken(result.reply);
    if (read.kind === 'failed' && read.fault === 'grant_ended') {
      const later = await readTokenFile(path);
      if (later.kind === 'read' && this.#grantIn(later).refreshToken !== grant.refreshToken) return null;
      this.#end(input, grant);
    }
    if (read.kind === 'token' || refreshToken !== null) {
      const access =
        read.kind === 'failed'
          ? null
          : { ...read, endsAt: read.lifeMs === null ? null : asked + read.lifeMs };
      const next = { refreshToken: refreshToken ?? grant.refreshToken, access };
      await this.#save({ grant: next, seen, upstream: upstream.name });
    }
    return read.kind === 'failed' ? read : { ...read, issuedAt, isShared: false };
  }

  /** The grant in force: that of the file, unless a newer one could not be saved and the file has not changed since. */
  #grantIn(seen: ReadFile): StoredGrant {
    if (this.#unsaved === null) return seen.stored;
    if (seen.text === this.#unsaved.seen.text) return this.#unsaved.grant;
    this.#unsaved = null;
    this.#cancelSave();
    return seen.stored;
  }

  async #save(unsaved: Unsaved): Promise<void> {
    const { telemetry } = this.#parts;
    const { upstream, seen } = unsaved;
    const text = grantText(unsaved.grant);
    const saved = await replaceTokenFile(seen, text);
    if (saved === 'failed') {
      telemetry.credentialRenewal(upstream, 'unwritable');
      if (this.#unsaved === null)
        telemetry.log.error(
          'a new refresh token could not be written and is in memory only: free or mend the disk before this process ends',
          { upstream },
        );
      this.#unsaved = unsaved;
      this.#saveLater();
      return;
    }
    if (saved === 'replaced') this.#lastText = text;
    else
      telemetry.log.warn('a refresh token’s file was changed during its renewal: the change stays', {
        upstream,
      });
    if (this.#unsaved !== null) telemetry.log.info('a refresh token is in its file again', { upstream });
    this.#unsaved = null;
    this.#cancelSave();
  }

  #saveLater(): void {
    this.#cancelSave();
    if (this.#isClosed) return;
    this.#cancelSave = this.#parts.clock.after(saveAgainMs, () => void this.#keep(this.#saveAgain()));
  }

  async #saveAgain(): Promise<void> {
    if (this.#unsaved === null) return;
    const lock = this.#lockOf(this.#unsaved.seen);
    if ((await lock.take()) === 'held') return this.#saveLater();
    const unsaved = this.#unsaved;
    if (unsaved !== null) await this.#save(unsaved);
    await lock.release();
  }

  #end({ client, upstream }: RenewalInput, grant: StoredGrant): void {
    this.#ended = endedName(client, grant);
    this.#parts.telemetry.log.error(
      'a refresh token is not valid any more: authorize the client again and write the new refresh token to its file',
      { upstream: upstream.name },
    );
  }

  #warnOnce(seen: ReadFile, { upstream }: RenewalInput): void {
    if (this.#hasWarned || !isExposed(seen)) return;
    this.#hasWarned = true;
    const advice = 'a refresh token’s file can be used by every user of the machine: give it mode 600';
    this.#parts.telemetry.log.warn(advice, { upstream: upstream.name });
  }

  #lockOf({ realPath }: ReadFile): FileLock {
    return new FileLock(`${realPath}.lock`, this.#parts.random.hex(16));
  }
}

/** Identifies a refused refresh token together with its client: with another client, or a new secret, the same token may be accepted. */
const endedName = (
  { tokenUrl, clientId, clientSecret }: OAuthClient,
  { refreshToken }: StoredGrant,
): string => JSON.stringify([tokenUrl, clientId, clientSecret, refreshToken]);

/**
 * The grants of one process, by the file that keeps their refresh token. A grant exists longer than a source of tokens, because a
 * reload must not lose an exchange that is under way or a grant that could not be saved.
 */
export class RefreshGrants {
  readonly #parts: Omit<RefreshGrantParts, 'path'>;
  readonly #grants = new Map<string, RefreshGrant>();

  constructor(parts: Omit<RefreshGrantParts, 'path'>) {
    this.#parts = parts;
  }

  of(path: string): RefreshGrant {
    let grant = this.#grants.get(path);
    if (grant === undefined) this.#grants.set(path, (grant = new RefreshGrant({ ...this.#parts, path })));
    return grant;
  }

  /** Fetches by the refresh token of clients that have one, and by `otherwise` for all others. */
  fetcher(otherwise: FetchToken): FetchToken {
    return (input) => {
      const { refreshTokenFile } = input.client;
      return refreshTokenFile === null ? otherwise(input) : this.of(refreshTokenFile).fetch(input);
    };
  }

  /** Resolves when no exchange is under way any more and every grant that can be saved is saved. */
  async close(): Promise<void> {
    await Promise.all([...this.#grants.values()].map((grant) => grant.close()));
  }
}
