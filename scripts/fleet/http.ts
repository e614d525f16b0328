/** The HTTP of verifications: an upstream of this process, and one exchange as a client sees it. */
import { createServer, request, type Agent, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Serving {
  readonly origin: string;
  stop(): void;
}

/** An upstream whose `respond` gets each request when it is complete. */
export async function serve(
  respond: (request: IncomingMessage, response: ServerResponse) => unknown,
): Promise<Serving> {
  const server = createServer((incoming, response) => {
    incoming.on('error', () => {});
    response.on('error', () => {});
    incoming.resume().on('end', () => void respond(incoming, response));
  });
  server.keepAliveTimeout = 120_000;
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stop: () => server.close().closeAllConnections(),
  };
}

/** How one exchange with a replica ended. */
export type Exchange =
  | { readonly kind: 'response'; readonly status: number; readonly text: string }
  /** The gateway made the response. `heldBy`: empty where it does not say. */
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly code: string;
      readonly heldBy: string;
      readonly retryAfterMs: number | null;
      /** Of a position that is kept. */
      readonly ticket: string | null;
    }
  | {
      readonly kind: 'broken';
      readonly words: string;
      /** The connection had been used before, and was closed without a byte: what every client repeats. */
      readonly isStale: boolean;
      /** A response had begun. */
      readonly isCut: boolean;
    };

export interface Asked {
  readonly url: string;
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  readonly agent: Agent | false;
  readonly signal: AbortSignal;
}

/** One exchange. Never rejects. */
export function exchange({ url, method, headers, body, agent, signal }: Asked): Promise<Exchange> {
  return new Promise((resolve) => {
    const outgoing = request(url, { method, headers: { ...headers }, agent, signal });
    let isCut = false;
    const broken = (failure: NodeJS.ErrnoException): void => {
      const words = failure.code ?? failure.name;
      resolve({
        kind: 'broken',
        words,
        isCut,
        isStale: !isCut && outgoing.reusedSocket && words === 'ECONNRESET',
      });
    };
    outgoing.on('error', broken);
    outgoing.on('response', (incoming) => {
      isCut = true;
      let text = '';
      incoming.setEncoding('utf8');
      incoming.on('data', (part: string) => (text += part));
      incoming.on('error', broken);
      incoming.on('end', () => {
        const { statusCode: status = 0, headers: fields } = incoming;
        const code = fields['sluice-error'];
        const wait = fields['retry-after-ms'];
        if (code === undefined) return resolve({ kind: 'response', status, text });
        const [, heldBy = ''] = /"heldBy":\s*"(\w+)"/.exec(text) ?? [];
        const retryAfterMs = wait === undefined ? null : Number(wait);
        const ticket = fields['sluice-ticket']?.toString() ?? null;
        return resolve({ kind: 'refused', status, code: String(code), heldBy, retryAfterMs, ticket });
      });
    });
    outgoing.end(body);
  });
}
