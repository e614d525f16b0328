/**
 * A token endpoint (RFC 6749 §4.4) on a real socket: tokens that end, tokens that revoke each other, answers that are slow,
 * missing or wrong. Owns which tokens are valid; an upstream asks `isValid`, or hears of each change.
 */
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { systemClock, type Clock } from '../../src/clock.ts';

/** How the next request is answered; the last one given stays. */
export type Manner =
  | { readonly kind: 'issue'; readonly afterMs?: number }
  | { readonly kind: 'hang' }
  | { readonly kind: 'cut' }
  | {
      readonly kind: 'answer';
      readonly status: number;
      readonly body: string;
      readonly headers?: Readonly<Record<string, string>>;
    };

export interface TokenEndpointOptions {
  readonly clock?: Clock;
  /** Life of a token; `null`: it does not end, and no life is stated. */
  readonly lifeSeconds?: number | null;
  /** A new token ends the earlier ones. */
  readonly isRotating?: boolean;
  readonly client?: { readonly id: string; readonly secret: string };
  /** Hears of all tokens that are valid, at each change. */
  readonly onChange?: (valid: readonly string[]) => void;
}

export interface TokenEndpoint {
  readonly url: string;
  readonly requests: readonly { readonly headers: IncomingHttpHeaders; readonly body: string }[];
  /** Every token that was issued, the latest last. */
  readonly issued: readonly string[];
  /** Requests that were under way at once, at most. */
  readonly maxAtOnce: number;
  isValid(token: string): boolean;
  answer(...manners: Manner[]): void;
  /** Ends a token before its time. */
  revoke(token: string): void;
  close(): Promise<void>;
}

export async function startTokenEndpoint(options: TokenEndpointOptions = {}): Promise<TokenEndpoint> {
  const { clock = systemClock, lifeSeconds = 3600, isRotating = false } = options;
  const { client = { id: 'client-sim', secret: 'secret-of-the-client' } } = options;
  const requests: { headers: IncomingHttpHeaders; body: string }[] = [];
  const issued: string[] = [];
  const valid = new Set<string>();
  const cancels = new Set<() => void>();
  let manners: Manner[] = [{ kind: 'issue' }];
  let atOnce = 0;
  let maxAtOnce = 0;
  const changed = (): void => options.onChange?.([...valid]);
  const later = (ms: number, run: () => void): void => void cancels.add(clock.after(ms, run));
  const revoke = (token: string): void => {
    if (valid.delete(token)) changed();
  };
  const issue = (): string => {
    const token = `canary-token-${issued.length + 1}-${Math.random().toString(36).slice(2)}`;
    if (isRotating) valid.clear();
    valid.add(token);
    issued.push(token);
    if (lifeSeconds !== null) later(lifeSeconds * 1000, () => revoke(token));
    changed();
    const life = lifeSeconds === null ? {} : { expires_in: lifeSeconds };
    return JSON.stringify({ access_token: token, token_type: 'Bearer', ...life });
  };
  const server = createServer((request, response) => {
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
      if (!isOfClient(request.headers, body, client)) return json(401, '{"error":"invalid_client"}');
      const { afterMs } = manner;
      if (afterMs === undefined) json(200, issue());
      else later(afterMs, () => json(200, issue()));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/oauth/token`,
    requests,
    issued,
    get maxAtOnce() {
      return maxAtOnce;
    },
    isValid: (token) => valid.has(token),
    answer: (...given) => (manners = given),
    revoke,
    async close() {
      for (const cancel of cancels) cancel();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function isOfClient(
  headers: IncomingHttpHeaders,
  body: string,
  { id, secret }: { readonly id: string; readonly secret: string },
): boolean {
  const basic = /^Basic (.+)$/.exec(headers.authorization ?? '')?.[1];
  if (basic !== undefined) {
    const [user = '', ...rest] = Buffer.from(basic, 'base64').toString().split(':');
    return decodeURIComponent(user) === id && decodeURIComponent(rest.join(':')) === secret;
  }
  const isJson = headers['content-type'] === 'application/json';
  const words = isJson
    ? new Map(Object.entries(JSON.parse(body) as Record<string, string>))
    : new URLSearchParams(body);
  return (
    words.get('grant_type') === 'client_credentials' &&
    words.get('client_id') === id &&
    words.get('client_secret') === secret
  );
}
