/**
 * Access tokens of one grant, renewed by its refresh token (RFC 6749 §6). Many providers replace the refresh token with each use: a
 * client that loses the endpoint's response, or uses a refresh token twice, may lose the grant.
 *
 * Owns: the order of one renewal, what is kept in memory while the file cannot be written, which token was refused. Does not
 * own: when a token is needed (`changing-source.ts`), which replica fetches it (`shared-tokens.ts`), the file itself.
 * Keeps: one process of all that see the file exchanges the token at a time, with what the file says at that time; nothing is exchanged
 * unless the file could be replaced a moment before; a new refresh token is on the disk before its access token is sent. An exchange that
 * has begun is never cut off by a reload or the end of the process.
 */
import { delay, type Clock, type Random } from '../clock.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { noToken, readRefreshToken, readToken, tokenRequest } from './token-endpoint.ts';
import type { Fetched, SendTokenRequest, TokenFetch } from './token-endpoint.ts';
import { FileLock, grantText, readTokenFile, replaceTokenFile, usableAccess } from './token-file.ts';
import type { ReadFile, StoredGrant } from './token-file.ts';

/** How long a renewal waits for the lock of the file: longer than the lock outlives a dead process. Milliseconds. */
const lockWaitMs = 13_000;
const lockCheckMs = 50;
/** A response that nobody reads may be the only one that names the next refresh token. */
const { signal: never } = new AbortController();

interface RefreshGrantParts {
  readonly path: string;
  readonly clock: Clock;
  readonly random: Pick<Random, 'hex'>;
  readonly send: SendTokenRequest;
  readonly telemetry: Pick<Telemetry, 'count' | 'log'>;
}

type RenewalInput = Pick<TokenFetch, 'client' | 'upstream' | 'unwanted'>;

export class RefreshGrant {
  readonly #parts: RefreshGrantParts;
  readonly #underWay = new Set<Promise<unknown>>();
  /** What an exchange brought that is not on the disk. It takes precedence while the text of the file is that of `seen`. */
  #unsaved: { readonly grant: StoredGrant; readonly seen: ReadFile } | null = null;
  /** Client and refresh token that the endpoint has refused for good: with a new secret the same token may be accepted. */
  #ended: string | null = null;
  /** The file's text when this process last read it for a check or a renewal, or wrote it. */
  #lastText: string | null = null;
  #isClosed = false;

  constructor(parts: RefreshGrantParts) {
    this.#parts = parts;
  }

  /** An access token other than the unwanted one, from the file or by an exchange. Takes a bounded time, as long as the disk answers. */
  fetch(input: RenewalInput): Promise<Fetched> {
    const work = this.#fetch(input);
    this.#underWay.add(work);
    return work.finally(() => this.#underWay.delete(work));
  }

  /** True when another process or an operator has changed the file since this process last read or wrote it. Never rejects. */
  async hasChanged(): Promise<boolean> {
    const seen = await readTokenFile(this.#parts.path);
    const text = seen.kind === 'read' ? seen.text : null;
    const isNew = text !== null && text !== this.#lastText;
    this.#lastText = text;
    return isNew;
  }

  /** Resolves when no exchange is under way any more, after one last attempt to save what is not on the disk. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.allSettled(this.#underWay);
    if (this.#unsaved !== null) await replaceTokenFile(this.#unsaved.seen, grantText(this.#unsaved.grant));
  }

  async #fetch(input: RenewalInput): Promise<Fetched> {
    const { clock } = this.#parts;
    for (const until = clock.monotonic() + lockWaitMs; ;) {
      const fetched = await this.#attempt(input);
      if (fetched !== null) return fetched;
      if (this.#isClosed || clock.monotonic() >= until) return noToken('timeout');
      await delay(clock, lockCheckMs, never);
    }
  }

  /** One attempt to get a token; `null`: another process holds the lock of the file, or has just changed the file. */
  async #attempt(input: RenewalInput): Promise<Fetched | null> {
    const { path, random } = this.#parts;
    const found = await readTokenFile(path);
    if (found.kind === 'failed') return found;
    const lock = new FileLock(`${found.realPath}.lock`, random.hex(16));
    const taken = await lock.take();
    if (taken !== 'taken') return taken === 'held' ? null : noToken('unwritable');
    try {
      // The previous holder of the lock may have exchanged the token.
      const seen = await readTokenFile(path);
      return seen.kind === 'failed' ? seen : await this.#renew(input, seen, lock);
    } finally {
      await lock.release();
    }
  }

  async #renew(input: RenewalInput, seen: ReadFile, lock: FileLock): Promise<Fetched | null> {
    this.#lastText = seen.text;
    if (seen.text !== this.#unsaved?.seen.text) this.#unsaved = null;
    const grant = this.#unsaved?.grant ?? seen.stored;
    const found = usableAccess(grant, input.unwanted, this.#parts.clock);
    if (found !== null) return found;
    if (this.#ended === endedName(input, grant)) return noToken('grant_ended');
    if (this.#unsaved === null) {
      const tried = await replaceTokenFile(seen, seen.text);
      if (tried !== 'replaced') return tried === 'changed' ? null : noToken('unwritable');
    }
    return (await lock.isOurs()) ? this.#exchange(input, seen, grant) : null;
  }

  async #exchange(input: RenewalInput, seen: ReadFile, grant: StoredGrant): Promise<Fetched | null> {
    const { clock, send, path, telemetry } = this.#parts;
    const { client, upstream } = input;
    const [issuedAt, asked] = [clock.monotonic(), clock.now()];
    const result = await send(tokenRequest(client, grant.refreshToken), upstream, never);
    if (result.kind === 'failed') return noToken(result.fault);
    const read = readToken(result.reply, clock.now(), 'refresh_token');
    if (read.kind === 'failed' && read.fault === 'grant_ended') {
      const later = await readTokenFile(path);
      if (later.kind === 'read' && later.text !== seen.text) return null;
      this.#ended = endedName(input, grant);
      telemetry.log.error(
        'a refresh token is not valid any more: authorize the client again and write the new refresh token to its file',
        { upstream: upstream.name },
      );
    }
    const next = readRefreshToken(result.reply);
    if (read.kind === 'token' || next !== null) {
      const access =
        read.kind === 'failed'
          ? null
          : { ...read, endsAt: read.lifeMs === null ? null : asked + read.lifeMs };
      await this.#save({ refreshToken: next ?? grant.refreshToken, access }, seen, upstream.name);
    }
    return read.kind === 'failed' ? read : { ...read, issuedAt, isShared: false };
  }

  async #save(grant: StoredGrant, seen: ReadFile, upstream: string): Promise<void> {
    const { telemetry } = this.#parts;
    const text = grantText(grant);
    const saved = await replaceTokenFile(seen, text);
    if (saved === 'failed') {
      telemetry.count('sluice_credential_renewals_total', { upstream, outcome: 'unwritable' });
      telemetry.log.error(
        'a new refresh token could not be written and is in memory only: free or mend the disk before this process ends',
        { upstream },
      );
    }
    if (saved === 'replaced') this.#lastText = text;
    this.#unsaved = saved === 'failed' ? { grant, seen } : null;
  }
}

const endedName = ({ client }: RenewalInput, { refreshToken }: StoredGrant): string =>
  JSON.stringify([client, refreshToken]);
