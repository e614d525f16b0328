/**
 * One token for all replicas: one of them fetches it, and the others read it in Redis, sealed. For clients whose tokens
 * revoke each other this is needed, for the others it spares the endpoint.
 *
 * Owns: who fetches, how long the others wait for it. Does not own: when a token is needed (`oauth-source.ts`), the
 * endpoint (`token-fetcher.ts`), Redis (`redis-tokens.ts`).
 * Keeps: without Redis each replica fetches for itself; a replica that dies while it fetches delays the others by `renewalMs` at
 * most; a token that the upstream has refused is not sent by any replica that has heard of the refusal.
 */
import type { Clock } from '../clock.ts';
import type { OAuthClient } from '../config/settings.ts';
import { digest } from '../identity.ts';
import type { Fetched } from './oauth-source.ts';
import type { TokenFetcher, TokenFetch } from './token-fetcher.ts';
import { TokenSeal } from './token-seal.ts';

/** How long one replica may fetch while the others wait: longer than any request to a token endpoint. Milliseconds. */
const renewalMs = 15_000;
/** The other replicas check for its token this often, milliseconds. */
const checkEveryMs = 100;
/** A token whose life nobody knows is kept for a day; one that has ended is refused and replaced. Milliseconds. */
const unknownLifeMs = 86_400_000;

/** Sealed texts that all replicas see. `null` = it cannot be asked now. */
export interface TokenStore {
  read(
    name: string,
  ): Promise<
    | { readonly kind: 'none' }
    | { readonly kind: 'sealed'; readonly text: string; readonly leftMs: number }
    | null
  >;
  store(name: string, text: string, lifeMs: number): Promise<void>;
  /** True when this replica may fetch the token, for `withinMs`; false while another replica does. */
  begin(name: string, withinMs: number): Promise<boolean | null>;
  end(name: string): Promise<void>;
  /** Lets all replicas know of this mark; resolves when they can. */
  reportRefused(name: string, mark: string): Promise<void>;
}

export interface SharedTokensParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly store: TokenStore;
  /** Fetches at the endpoint, without asking other replicas. */
  readonly ownFetcher: Pick<TokenFetcher, 'fetch'>;
}

/**
 * Opaque name under which the tokens of a client are shared, or of the grant behind a refresh token. The client's secret is no
 * part: replicas may have the old one and the new.
 */
export const sharedName = (
  labelKey: string,
  { tokenUrl, clientId, scope, refreshTokenFile }: OAuthClient,
): string =>
  digest(
    labelKey,
    'token',
    tokenUrl,
    clientId,
    scope ?? '',
    ...(refreshTokenFile === null ? [] : [refreshTokenFile]),
  );

/** The mark by which replicas recognise a refused token. It reveals nothing of the token. */
export const refusedMark = (labelKey: string, name: string, token: string): string =>
  digest(labelKey, 'refused token', name, token);

export class SharedTokens implements TokenFetcher {
  readonly #parts: SharedTokensParts;
  readonly #seal: TokenSeal;

  constructor(parts: SharedTokensParts) {
    this.#parts = parts;
    this.#seal = new TokenSeal(parts.labelKey);
  }

  async fetch(input: TokenFetch): Promise<Fetched> {
    const { clock, ownFetcher, store, labelKey } = this.#parts;
    const { client, signal } = input;
    if (!client.shared) return ownFetcher.fetch(input);
    const name = sharedName(labelKey, client);
    const until = clock.monotonic() + renewalMs;
    while (!signal.aborted && clock.monotonic() < until) {
      const found = await this.#find(name, input.unwanted);
      if (found.kind === 'token') return found;
      const isOurs = found.kind === 'none' ? await store.begin(name, renewalMs) : null;
      if (isOurs === null) return ownFetcher.fetch(input);
      if (isOurs) return this.#renew(name, input);
      await new Promise<void>((resolve) => void clock.after(checkEveryMs, resolve));
    }
    return { kind: 'failed', fault: 'timeout', statedMs: null };
  }

  async readShared({ client, unwanted }: Pick<TokenFetch, 'client' | 'unwanted'>): Promise<Fetched | null> {
    if (!client.shared) return null;
    const found = await this.#find(sharedName(this.#parts.labelKey, client), unwanted);
    return found.kind === 'token' ? found : null;
  }

  async reportRefused({
    client,
    token,
  }: {
    readonly client: OAuthClient;
    readonly token: string;
  }): Promise<void> {
    if (!client.shared) return;
    const { labelKey, store } = this.#parts;
    const name = sharedName(labelKey, client);
    await store.reportRefused(name, refusedMark(labelKey, name, token));
  }

  async #renew(name: string, input: TokenFetch): Promise<Fetched> {
    const { clock, ownFetcher, store } = this.#parts;
    try {
      // Another replica may have stored its token between this replica's reading and its turn to fetch.
      const found = await this.#find(name, input.unwanted);
      if (found.kind === 'token') return found;
      const fetched = await ownFetcher.fetch(input);
      if (fetched.kind === 'token') {
        const { token, lifeMs, issuedAt } = fetched;
        const leftMs = lifeMs === null ? unknownLifeMs : issuedAt + lifeMs - clock.monotonic();
        if (leftMs > 0) await store.store(name, this.#seal.close(name, { token, lifeMs }), leftMs);
      }
      return fetched;
    } finally {
      await store.end(name);
    }
  }

  async #find(
    name: string,
    unwanted: string | null,
  ): Promise<Extract<Fetched, { kind: 'token' }> | { readonly kind: 'none' | 'unavailable' }> {
    const { clock, store } = this.#parts;
    const askedAt = clock.monotonic();
    const read = await store.read(name);
    if (read === null) return { kind: 'unavailable' };
    const opened = read.kind === 'sealed' ? this.#seal.open(name, read.text) : null;
    if (read.kind === 'none' || opened === null || opened.token === unwanted) return { kind: 'none' };
    const { token, lifeMs } = opened;
    const issuedAt = lifeMs === null ? askedAt : askedAt + read.leftMs - lifeMs;
    return { kind: 'token', token, lifeMs, issuedAt, isShared: true };
  }
}
