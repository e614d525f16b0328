/**
 * The grants of one process, by the file that keeps their refresh token. Owns: how long a grant exists, which is longer than a
 * source, because a reload must not lose an exchange that is under way or a grant that could not be saved.
 */
import type { TokenFetcher } from '../token-fetcher.ts';
import { RefreshGrant, type RefreshGrantParts } from './refresh-grant.ts';

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

  /** Returns a fetcher that uses the refresh token of clients that have one, and `ownFetcher` for all others. */
  fetcher(ownFetcher: TokenFetcher): TokenFetcher {
    return {
      ...ownFetcher,
      fetch: (input) =>
        input.client.refreshTokenFile === null
          ? ownFetcher.fetch(input)
          : this.of(input.client.refreshTokenFile).fetch(input),
    };
  }

  /** Resolves when no exchange is under way any more and every grant that can be saved is saved. */
  async close(): Promise<void> {
    await Promise.all([...this.#grants.values()].map((grant) => grant.close()));
  }
}
