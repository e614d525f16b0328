/**
 * One token for all replicas: one of them fetches it, and the others read it in a map that they share. For clients whose tokens
 * revoke each other this is needed, for the others it spares the endpoint.
 *
 * Keeps: while the map does not answer each replica fetches for itself; a replica that dies while it fetches delays the others by
 * `renewalMs` at most. A token that an upstream ends before its time is refused once at each replica that sends it before a new one is there.
 */
import type { Clock, Random } from '../clock.ts';
import type { OAuthClient } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { anybody, type SharedMap } from '../replicated/shared-map.ts';
import type { Fetched, FetchedToken } from './oauth-source.ts';
import type { FetchToken, TokenFetch } from './token-fetcher.ts';
import type { Token } from './token-reply.policy.ts';

/** How long one replica may fetch while the others wait: longer than any request to a token endpoint. Milliseconds. */
const renewalMs = 15_000;
/** The other replicas check for its token this often, milliseconds. */
const checkEveryMs = 100;
/** A token whose life nobody knows is kept for a day; one that has ended is refused and replaced. Milliseconds. */
const unknownLifeMs = 86_400_000;
/** What replicas share of a client: its token · that one of them fetches a new one. */
export type SharedToken = Token | { readonly kind: 'fetching' };

export interface SharedTokensParts {
  readonly clock: Clock;
  readonly random: Pick<Random, 'hex'>;
  readonly labelKey: string;
  readonly map: SharedMap<SharedToken>;
  /** Fetches at the endpoint, without asking other replicas. */
  readonly fetch: FetchToken;
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

/** The name of the client in the name of one of its entries. */
export const clientIn = (entryName: string): string => entryName.split('.')[0] ?? '';

export class SharedTokens {
  readonly #parts: SharedTokensParts;

  constructor(parts: SharedTokensParts) {
    this.#parts = parts;
  }

  async fetch(input: TokenFetch): Promise<Fetched> {
    const { clock, random, fetch, map, labelKey } = this.#parts;
    const { client, signal } = input;
    const name = sharedName(labelKey, client);
    const owner = random.hex(8);
    const until = clock.monotonic() + renewalMs;
    while (!signal.aborted && clock.monotonic() < until) {
      const found = await this.#find(name, input.unwanted);
      if (found.kind === 'token') return found;
      if (found.kind === 'unavailable') return fetch(input);
      const turn = { owner, ttlMs: renewalMs, over: null };
      const begun = await map.put({ name: `${name}.fetch` }, { kind: 'fetching' }, turn);
      if (begun.kind === 'unavailable') return fetch(input);
      if (begun.kind === 'put') return this.#renew(name, owner, input);
      await new Promise<void>((resolve) => void clock.after(checkEveryMs, resolve));
    }
    return { kind: 'failed', fault: 'timeout', statedMs: null };
  }

  /** A token that another replica has fetched; `null` = there is none but the unwanted one. */
  async read({ client, unwanted }: Pick<TokenFetch, 'client' | 'unwanted'>): Promise<Fetched | null> {
    const found = await this.#find(sharedName(this.#parts.labelKey, client), unwanted);
    return found.kind === 'token' ? found : null;
  }

  async #renew(name: string, owner: string, input: TokenFetch): Promise<Fetched> {
    const { clock, fetch, map } = this.#parts;
    try {
      // Another replica may have stored its token between this replica's reading and its turn to fetch.
      const found = await this.#find(name, input.unwanted);
      if (found.kind === 'token') return found;
      const fetched = await fetch(input);
      if (fetched.kind === 'token') {
        const { token, lifeMs, issuedAt } = fetched;
        const ttlMs = lifeMs === null ? unknownLifeMs : issuedAt + lifeMs - clock.monotonic();
        if (ttlMs > 0)
          await map.put({ name }, { kind: 'token', token, lifeMs }, { owner, ttlMs, over: anybody });
      }
      return fetched;
    } finally {
      await map.delete({ name: `${name}.fetch` }, owner);
    }
  }

  async #find(
    name: string,
    unwanted: string | null,
  ): Promise<FetchedToken | { readonly kind: 'none' | 'unavailable' }> {
    const { clock, map } = this.#parts;
    const askedAt = clock.monotonic();
    const read = await map.read({ name });
    if (read.kind === 'unavailable') return { kind: 'unavailable' };
    const found = read.kind === 'entry' && read.value.kind === 'token' ? read.value : null;
    if (read.kind !== 'entry' || found === null || found.token === unwanted) return { kind: 'none' };
    const { token, lifeMs } = found;
    const issuedAt = lifeMs === null ? askedAt : askedAt + read.leftMs - lifeMs;
    return { kind: 'token', token, lifeMs, issuedAt, isShared: true };
  }
}
