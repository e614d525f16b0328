/**
 * One token for all replicas: one of them fetches it, and the others read it in a map that they share. For clients whose tokens
 * revoke each other this is needed, for the others it spares the endpoint.
 *
 * Keeps: while the map does not answer each replica fetches for itself; a replica that dies while it fetches delays the others by
 * `renewalMs` at most. A token that an upstream ends before its time is refused once at each replica that sends it before a new one is there.
 */
import { delay, type Clock, type Random } from '../clock.ts';
import type { OAuthClient } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { anybody, type Entry, type SharedMap } from '../replicated/shared-map.ts';
import { noToken, type FetchedToken, type FetchToken, type Token } from './token-endpoint.ts';

/** How long one replica may fetch while the others wait: longer than any request to a token endpoint. Milliseconds. */
const renewalMs = 15_000;
/** The other replicas check for its token this often, milliseconds. */
const checkEveryMs = 100;
/** A token whose life nobody knows is kept for a day; one that has ended is refused and replaced. Milliseconds. */
const unknownLifeMs = 86_400_000;
/** What replicas share of a client: its token · that one of them fetches a new one. */
export type SharedToken = Token | { readonly kind: 'fetching' };

interface SharedTokensParts {
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
export const sharedName = (labelKey: string, client: OAuthClient): string => {
  const { tokenUrl, clientId, scope, refreshTokenFile } = client;
  return digest(labelKey, 'token', tokenUrl, clientId, scope ?? '', refreshTokenFile ?? '');
};

/** The token in an entry, as a fetch that began at `askedAt` would have brought it. */
function tokenIn({ value, leftMs }: Entry<SharedToken>, askedAt: number): FetchedToken | null {
  if (value.kind !== 'token') return null;
  const ageMs = value.lifeMs === null ? 0 : value.lifeMs - leftMs;
  return { ...value, issuedAt: askedAt - ageMs, isShared: true };
}

/** Fetches a token for all replicas. */
export const fetchForAll =
  ({ clock, random, labelKey, map, fetch }: SharedTokensParts): FetchToken =>
  async (input) => {
    const { client, signal, unwanted } = input;
    const name = sharedName(labelKey, client);
    const turn = { name: `${name}.fetch` };
    const owner = random.hex(8);
    const find = async (): Promise<FetchedToken | null> => {
      const askedAt = clock.monotonic();
      const read = await map.read({ name });
      const found = read.kind === 'entry' ? tokenIn(read, askedAt) : null;
      return found?.token === unwanted ? null : found;
    };
    for (const until = clock.monotonic() + renewalMs; clock.monotonic() < until;) {
      const mine = await map.put(turn, { kind: 'fetching' }, { owner, ttlMs: renewalMs, over: null });
      if (mine.kind === 'unavailable') return fetch(input);
      try {
        const found = await find();
        if (found !== null) return found;
        if (mine.kind === 'put') {
          const fetched = await fetch(input);
          if (fetched.kind === 'failed') return fetched;
          const { token, lifeMs, issuedAt } = fetched;
          const ttlMs = lifeMs === null ? unknownLifeMs : issuedAt + lifeMs - clock.monotonic();
          const value = { kind: 'token', token, lifeMs } as const;
          if (ttlMs > 0) await map.put({ name }, value, { owner, ttlMs, over: anybody });
          return fetched;
        }
      } finally {
        if (mine.kind === 'put') await map.delete(turn, owner);
      }
      await delay(clock, checkEveryMs, signal);
      if (signal.aborted) break;
    }
    return noToken('timeout');
  };
