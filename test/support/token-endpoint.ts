/** A token endpoint (RFC 6749 §4.4 and §6) on a real socket. Owns which tokens are valid; an upstream asks `isValid`, or hears of each change. */
import type { IncomingHttpHeaders } from 'node:http';
import { systemClock } from '../../src/clock.ts';
import type { OAuthClient } from '../../src/config/settings.ts';
import { listening } from './listening.ts';

export const oauthClient: OAuthClient = {
  tokenUrl: 'https://id.example/token',
  clientId: 'client-sim',
  clientSecret: 'secret-of-the-client',
  scope: null,
  format: 'form',
  clientAuth: 'body',
  shared: true,
  refreshTokenFile: null,
};

/** How the next request is answered; the last one given stays. */
export type Manner =
  | { readonly kind: 'issue'; readonly afterMs?: number }
  | { readonly kind: 'hang' }
  | { readonly kind: 'cut' }
  /** Issues, and breaks off before the response. */
  | { readonly kind: 'lose' }
  | {
      readonly kind: 'answer';
      readonly status: number;
      readonly body: string;
      readonly headers?: Readonly<Record<string, string>>;
    };

export interface TokenEndpointOptions {
  readonly lifeSeconds?: number;
  /** A new token ends the earlier ones. */
  readonly isRotating?: boolean;
  /** Gives tokens for a refresh token only. */
  readonly refresh?: RefreshRule;
  /** Hears of all tokens that are valid, at each change; a token is given out when this has ended. */
  readonly onChange?: (valid: readonly string[]) => void | Promise<void>;
}

export type TokenEndpoint = Awaited<ReturnType<typeof startTokenEndpoint>>;

/**
 * `single_use`: each once; a second use ends the grant (RFC 9700 §4.14.2) · `until_next_is_used`: the one before works until its
 * replacement is used, as at Shopify · `same`: it is not replaced.
 */
export type RefreshRule = 'single_use' | 'until_next_is_used' | 'same';

/** The refresh tokens of one grant after another. */
class RefreshChain {
  readonly given: string[] = [];
  refused = 0;
  readonly #rule: RefreshRule;
  readonly #usable = new Set<string>();

  constructor(rule: RefreshRule) {
    this.#rule = rule;
    this.authorize();
  }

  authorize(): string {
    this.#usable.clear();
    return this.#give();
  }

  /** The next refresh token, `null` where this one stays; `refused` where it is worth nothing. */
  use(token: string): { readonly kind: 'used'; readonly next: string | null } | { readonly kind: 'refused' } {
    if (!this.#usable.has(token)) {
      this.refused += 1;
      if (this.#rule === 'single_use') this.#usable.clear();
      return { kind: 'refused' };
    }
    if (this.#rule === 'same') return { kind: 'used', next: null };
    this.#usable.clear();
    if (this.#rule === 'until_next_is_used') this.#usable.add(token);
    return { kind: 'used', next: this.#give() };
  }

  #give(): string {
    const token = `canary-refresh-${this.given.length + 1}-${Math.random().toString(36).slice(2)}`;
    this.given.push(token);
    this.#usable.add(token);
    return token;
  }
}

export async function startTokenEndpoint(options: TokenEndpointOptions = {}) {
  const { lifeSeconds = 3600, isRotating = false } = options;
  const chain = options.refresh === undefined ? null : new RefreshChain(options.refresh);
  const requests: { headers: IncomingHttpHeaders; body: string }[] = [];
  const issued: string[] = [];
  const valid = new Set<string>();
  const cancels = new Set<() => void>();
  let manners: Manner[] = [{ kind: 'issue' }];
  let atOnce = 0;
  let maxAtOnce = 0;
  const changed = async (): Promise<void> => await options.onChange?.([...valid]);
  const later = (ms: number, run: () => void): void => void cancels.add(systemClock.after(ms, run));
  const revoke = (token: string): void => {
    if (valid.delete(token)) void changed();
  };
  const issue = async (refreshToken: string | null): Promise<string> => {
    const token = `canary-token-${issued.length + 1}-${Math.random().toString(36).slice(2)}`;
    if (isRotating) valid.clear();
    valid.add(token);
    issued.push(token);
    later(lifeSeconds * 1000, () => revoke(token));
    await changed();
    const refresh = refreshToken === null ? {} : { refresh_token: refreshToken };
    return JSON.stringify({ access_token: token, token_type: 'Bearer', expires_in: lifeSeconds, ...refresh });
  };
  const server = await listening((request, response) => {
    atOnce += 1;
    maxAtOnce = Math.max(maxAtOnce, atOnce);
    response.on('close', () => (atOnce -= 1));
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.on('end', () => {
      requests.push({ headers: request.headers, body });
      const manner = (manners.length > 1 ? manners.shift() : manners[0]) ?? { kind: 'issue' };
      const json = (status: number, text: string, headers = {}): void =>
        void response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(text);
      if (manner.kind === 'hang') return;
      if (manner.kind === 'cut') return void response.destroy();
      if (manner.kind === 'answer') return json(manner.status, manner.body, manner.headers);
      const words = new URLSearchParams(body);
      const isOfClient =
        words.get('client_id') === oauthClient.clientId &&
        words.get('client_secret') === oauthClient.clientSecret;
      const grantType = chain === null ? 'client_credentials' : 'refresh_token';
      if (words.get('grant_type') !== grantType || !isOfClient)
        return json(401, '{"error":"invalid_client"}');
      const used = chain?.use(words.get('refresh_token') ?? '') ?? { kind: 'used', next: null };
      if (used.kind === 'refused') return json(400, '{"error":"invalid_grant"}');
      const isLost = manner.kind === 'lose';
      const afterMs = manner.kind === 'issue' ? manner.afterMs : undefined;
      const give = (): void =>
        void issue(used.next).then((text) => (isLost ? response.destroy() : json(200, text)));
      if (afterMs === undefined) give();
      else later(afterMs, give);
    });
  });
  return {
    url: `${server.url}/oauth/token`,
    requests: requests as readonly (typeof requests)[number][],
    issued: issued as readonly string[],
    get maxAtOnce() {
      return maxAtOnce;
    },
    /** Every refresh token that was given, the latest last; the first one is for a file. */
    refreshTokens: (chain?.given ?? []) as readonly string[],
    get refusedGrants() {
      return chain?.refused ?? 0;
    },
    /** What a person's new authorization gives: a refresh token of a new grant. */
    authorize: () => chain?.authorize() ?? '',
    isValid: (token: string) => valid.has(token),
    respond: (...given: Manner[]): void => void (manners = given),
    revoke,
    async close() {
      for (const cancel of cancels) cancel();
      await server.close();
    },
  };
}
