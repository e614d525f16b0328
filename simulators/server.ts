/**
 * The HTTP side of a simulator: loopback only, one exchange per call, nothing a client sends ends the process.
 *
 * Owns: sockets, reading bodies. Does not own: responses (`exchange.ts`), limits.
 * Invariant: after `close()` no socket and no timer is left.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock } from './clock.ts';
import { exchangeOf, type Arrival, type Exchange } from './exchange.ts';

export interface Listening {
  /** `http://127.0.0.1:<port>` */
  readonly url: string;
  readonly port: number;
}

export interface Handler {
  /** Called when the header section has arrived; its result is passed to `handle`. */
  arrive(arrival: Arrival): unknown;
  handle(exchange: Exchange, note: unknown): Promise<void>;
  /** Called when the simulator itself failed; the call was answered 500 if that was still possible. */
  failed(error: unknown): void;
}

const maxBody = 64 * 1024 * 1024;

/** Listens on loopback. `handlerFor` picks the handler by path, so that control calls never meet the limits. */
export class Host {
  readonly #clock: Clock;
  readonly #handlerFor: (path: string) => Handler;
  readonly #server: Server;
  readonly #timers = new Set<() => void>();
  #seq = 0;

  constructor(clock: Clock, handlerFor: (path: string) => Handler) {
    this.#clock = clock;
    this.#handlerFor = handlerFor;
    this.#server = createServer({ keepAlive: true, noDelay: true }, (request, response) =>
      this.#accept(request, response),
    );
    this.#server.on('clientError', (_error, socket) => {
      if (socket.writable)
        socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      else socket.destroy();
    });
    this.#server.on('connection', (socket: Socket) => socket.on('error', () => {}));
  }

  /** @throws the listen error, e.g. port taken. */
  async listen(port = 0): Promise<Listening> {
    return await listen(this.#server, port);
  }

  async close(): Promise<void> {
    for (const stop of this.#timers) stop();
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeAllConnections();
    });
  }

  #accept(request: IncomingMessage, response: ServerResponse): void {
    const arrivedT = this.#clock.monotonic();
    const { path, query } = split(request.url ?? '/');
    const handler = this.#handlerFor(path);
    const over = new Promise<void>((resolve) => response.once('close', resolve));
    request.on('error', () => {});
    response.on('error', () => {});
    const arrival = {
      seq: (this.#seq += 1),
      arrivedT,
      request,
      method: request.method ?? 'GET',
      path,
      query,
      over,
    };
    serve(this.#clock, this.#timers, handler, arrival, response).catch((error: unknown) => {
      handler.failed(error);
      if (response.headersSent) response.destroy();
      else response.writeHead(500, { 'content-type': 'text/plain' }).end('the simulator itself failed');
    });
  }
}

async function listen(server: Server, port: number): Promise<Listening> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => {
      server.off('error', reject);
      resolve();
    });
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('not listening on a TCP port');
  return { url: `http://127.0.0.1:${address.port}`, port: address.port };
}

async function serve(
  clock: Clock,
  timers: Set<() => void>,
  handler: Handler,
  arrival: Arrival,
  response: ServerResponse,
): Promise<void> {
  const note = handler.arrive(arrival);
  const body = await readBody(arrival.request);
  if (body === undefined) {
    response.destroy();
    return;
  }
  await handler.handle(exchangeOf(clock, timers, { ...arrival, body }, response), note);
}

/** The whole body; undefined when the client broke off or sent more than a simulator takes. */
async function readBody(request: IncomingMessage): Promise<Buffer | undefined> {
  return await new Promise((resolve) => {
    const parts: Buffer[] = [];
    let length = 0;
    request.on('data', (part: Buffer) => {
      length += part.length;
      if (length <= maxBody) parts.push(part);
      else resolve(undefined);
    });
    request.once('end', () => resolve(Buffer.concat(parts)));
    request.once('close', () => resolve(undefined));
  });
}

function split(url: string): { path: string; query: URLSearchParams } {
  const mark = url.indexOf('?');
  return mark < 0
    ? { path: url, query: new URLSearchParams() }
    : { path: url.slice(0, mark), query: new URLSearchParams(url.slice(mark + 1)) };
}
