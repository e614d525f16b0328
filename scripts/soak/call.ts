/** One attempt of a client at one replica, and how it ended. */
import { request, type Agent, type IncomingMessage } from 'node:http';

export interface Attempt {
  readonly url: string;
  readonly path: string;
  readonly method: 'GET' | 'POST';
  readonly headers: Readonly<Record<string, string>>;
  readonly agent: Agent;
  readonly signal: AbortSignal;
  /** The head of a response has come. */
  readonly onBegun: () => void;
}

export type Ending =
  | { readonly kind: 'whole'; readonly status: number; readonly text: string }
  /** The gateway made the response. */
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly code: string;
      readonly retryAfterMs: number | null;
    }
  | {
      readonly kind: 'broken';
      readonly words: string;
      /** The connection had been used before, and was closed without a byte: what every client repeats. */
      readonly isStale: boolean;
      /** A response had begun. */
      readonly isCut: boolean;
    };

export function attempt({ url, path, method, headers, agent, signal, onBegun }: Attempt): Promise<Ending> {
  return new Promise((resolve) => {
    const outgoing = request(`${url}${path}`, { method, headers, agent, signal });
    let response: IncomingMessage | null = null;
    const broken = (failure: NodeJS.ErrnoException): void => {
      const words = failure.code ?? failure.name;
      const isCut = response !== null;
      resolve({
        kind: 'broken',
        words,
        isCut,
        isStale: !isCut && outgoing.reusedSocket && words === 'ECONNRESET',
      });
    };
    outgoing.on('error', broken);
    outgoing.on('response', (incoming) => {
      response = incoming;
      onBegun();
      let text = '';
      incoming.setEncoding('utf8');
      incoming.on('data', (part: string) => (text += part));
      incoming.on('error', broken);
      incoming.on('end', () => {
        const { statusCode: status = 0, headers: fields } = incoming;
        const code = fields['sluice-error'];
        const wait = fields['retry-after-ms'];
        if (code === undefined) resolve({ kind: 'whole', status, text });
        else
          resolve({
            kind: 'refused',
            status,
            code: String(code),
            retryAfterMs: wait === undefined ? null : Number(wait),
          });
      });
    });
    outgoing.end(method === 'POST' ? '{"work":1}' : undefined);
  });
}
