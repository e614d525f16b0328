/**
 * Access tokens of one grant, renewed by its refresh token (RFC 6749 §6). Many providers replace the refresh token with each use: a
 * client that loses the endpoint's response, or uses a refresh token twice, may lose the grant.
 *
 * Owns: the order of one renewal, which token was refused. Does not own: when a token is needed (`changing-source.ts`), which replica
 * fetches it (`shared-tokens.ts`), the file itself.
 * Keeps: this process exchanges the token once at a time, with what the file says at that time; nothing is exchanged unless the file could be
 * replaced a moment before; a new refresh token is on the disk before its access token is sent. An exchange that has begun is never cut off
 * by a reload or the end of the process.
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { askForToken, noToken, sendableForMs } from './token-endpoint.ts';
import type { Fetched, FetchedToken, SendTokenRequest, TokenFetch } from './token-endpoint.ts';
import { readTokenFile, replaceTokenFile, type ReadFile } from './token-file.ts';

/** A response that nobody reads may be the only one that names the next refresh token. */
const { signal: never } = new AbortController();

interface RefreshGrantParts {
  readonly path: string;
  readonly clock: Clock;
  readonly send: SendTokenRequest;
  readonly telemetry: Pick<Telemetry, 'count' | 'log'>;
}

type RenewalInput = Pick<TokenFetch, 'client' | 'upstream' | 'unwanted'>;

export class RefreshGrant {
  readonly #parts: RefreshGrantParts;
  /** Resolves when no renewal is under way. */
  #idle: Promise<unknown> = Promise.resolve();
  /** Client and refresh token that the endpoint has refused for good: with a new secret the same token may be accepted. */
  #ended: string | null = null;
  /** The latest access token, for whoever else uses the grant. */
  #latest: FetchedToken | null = null;

  constructor(parts: RefreshGrantParts) {
    this.#parts = parts;
  }

  /** An access token other than the unwanted one, from the file or by an exchange. Takes a bounded time, as long as the disk answers. */
  fetch(input: RenewalInput): Promise<Fetched> {
    const fetched = this.#idle.then(() => this.#fetch(input));
    this.#idle = fetched.catch(() => {});
    return fetched;
  }

  /** Resolves when no exchange is under way any more. */
  async close(): Promise<void> {
    await this.#idle;
  }

  async #fetch(input: RenewalInput): Promise<Fetched> {
    const seen = await readTokenFile(this.#parts.path);
    // While somebody replaces a token that has ended, its file may be empty or away: that is no other fault, and it is looked at again soon.
    if (seen.kind === 'failed') return this.#ended === null ? seen : noToken('grant_ended');
    if (this.#latest !== null && this.#latest.token !== input.unwanted && this.#isUsable(this.#latest))
      return { ...this.#latest, isShared: true };
    if (this.#ended === endedName(input.client, seen)) return noToken('grant_ended');
    const isReplaced = await replaceTokenFile(seen, seen.text);
    return isReplaced ? this.#exchange(input, seen) : noToken('unwritable');
  }

  #isUsable({ issuedAt, lifeMs }: FetchedToken): boolean {
    return lifeMs === null || this.#parts.clock.monotonic() < issuedAt + sendableForMs(lifeMs);
  }

  async #exchange(input: RenewalInput, seen: ReadFile): Promise<Fetched> {
    const { name } = input.upstream;
    const { fetched, next } = await askForToken(this.#parts, { ...input, signal: never }, seen.refreshToken);
    if (next !== null) await this.#save(next, seen, name);
    if (fetched.kind === 'token') {
      this.#ended = null;
      return (this.#latest = fetched);
    }
    if (fetched.fault !== 'grant_ended') return fetched;
    this.#ended = endedName(input.client, seen);
    this.#parts.telemetry.log.error(
      'a refresh token is not valid any more: authorize the client again and write the new refresh token to its file',
      { upstream: name },
    );
    // A wait that the endpoint states is no reason to look at the file later.
    return noToken('grant_ended');
  }

  async #save(refreshToken: string, seen: ReadFile, upstream: string): Promise<void> {
    const { telemetry } = this.#parts;
    if (await replaceTokenFile(seen, `${refreshToken}\n`)) return;
    telemetry.count('sluice_credential_renewals_total', { upstream, outcome: 'unwritable' });
    telemetry.log.error(
      'a new refresh token could not be written and is lost when its access token ends: free or mend the disk, and authorize the client again',
      { upstream },
    );
  }
}

const endedName = (client: RenewalInput['client'], { refreshToken }: ReadFile): string =>
  JSON.stringify([client, refreshToken]);
