/**
 * The HTTP side of a simulator: loopback only, one exchange per call, nothing a client sends ends the process.
 *
 * Owns: sockets, reading bodies, timers of waiting answers, the `Date` field. Does not own: limits or bodies.
 * Invariant: after `close()` no socket and no timer is left.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { CancelTimer, Clock } from '../clock.ts';

export type ReplyHeaders = Record<string, string | readonly string[]>;

export interface Listening {
  /** `http://127.0.0.1:<port>` */
  readonly url: string;
  readonly port: number;
}

/** One call on its way through a simulator. */
export interface Exchange {
  readonly seq: number;
  /** Header section complete, monotonic ms. */
  readonly arrivedT: number;
  readonly request: IncomingMessage;
  readonly method: string;
  /** Path as sent, without the query. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly body: Buffer;
  /** The client has gone. */
  gone(): boolean;
  /** Waits; false when the client left (or the simulator closed) in the meantime. */
  sleep(ms: number): Promise<boolean>;
  reply(status: number, headers: ReplyHeaders, body: string | Buffer): void;
  /** Starts a streamed answer. */
  begin(status: number, headers: ReplyHeaders): void;
  /** Writes a part and waits while the client does not read; false when it has gone. */
  write(part: string): Promise<boolean>;
  end(): void;
  /** Cuts the connection, without an answer or in the middle of one. */
  cut(): void;
  /** It was the simulator that cut it. */
  wasCut(): boolean;
  /** Resolves when the exchange is over, however it ended. */
  readonly over: Promise<void>;
  /** Status sent, 0 when none. */
  status(): number;
  /** The whole answer was handed to the connection. */
  complete(): boolean;
  /** Added to the clock for this answer's `Date`, ms. */
  skewMs: number;
}

/** What a handler may learn before the body is there. */
export type Arrival = Pick<Exchange, 'seq' | 'arrivedT' | 'request' | 'method' | 'path' | 'query' | 'over'>;

export interface Handler {
  /** The header section has arrived; what it returns is handed to `handle`. */
  arrive(arrival: Arrival): unknown;
  handle(exchange: Exchange, note: unknown): Promise<void>;
  /** Something in the simulator itself failed; the call was answered 500 if that was still possible. */
  failed(error: unknown): void;
}

export interface Host {
  /** @throws the listen error, e.g. port taken. */
  listen(port?: number): Promise<Listening>;
  close(): Promise<void>;
}

const longestBody = 64 * 1024 * 1024;

/** @param handlerFor picks the handler by path, so that control calls never meet the limits. */
export function createHost(clock: Clock, handlerFor: (path: string) => Handler): Host {
  const timers = new Set<() => void>();
  let seq = 0;
  const server = createServer({ keepAlive: true, noDelay: true }, (request, response) => {
    const arrivedT = clock.monotonic();
    const { path, query } = split(request.url ?? '/');
    const handler = handlerFor(path);
    const over = new Promise<void>((resolve) => response.once('close', resolve));
    request.on('error', () => {});
    response.on('error', () => {});
    const arrival = {
      seq: (seq += 1),
      arrivedT,
      request,
      method: request.method ?? 'GET',
      path,
      query,
      over,
    };
    serve(clock, timers, handler, arrival, response).catch((error: unknown) => {
      handler.failed(error);
      if (response.headersSent) response.destroy();
      else response.writeHead(500, { 'content-type': 'text/plain' }).end('the simulator itself failed');
    });
  });
  server.on('clientError', (_error, socket) => {
    if (socket.writable)
      socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
    else socket.destroy();
  });
  server.on('connection', (socket: Socket) => socket.on('error', () => {}));
  return {
    listen: async (port = 0) => await listen(server, port),
    close: async () => {
      for (const stop of timers) stop();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    },
  };
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
      if (length <= longestBody) parts.push(part);
      else resolve(undefined);
    });
    request.once('end', () => resolve(Buffer.concat(parts)));
    request.once('close', () => resolve(undefined));
  });
}

function exchangeOf(
  clock: Clock,
  timers: Set<() => void>,
  call: Arrival & { readonly body: Buffer },
  response: ServerResponse,
): Exchange {
  let cut = false;
  const gone = (): boolean => response.destroyed || response.closed;
  const head = (headers: ReplyHeaders): Record<string, string | string[]> => {
    const fields: Record<string, string | string[]> = {
      date: new Date(clock.now() + exchange.skewMs).toUTCString(),
    };
    for (const [name, value] of Object.entries(headers)) {
      fields[name] = typeof value === 'string' ? value : [...value];
    }
    return fields;
  };
  const exchange: Exchange = {
    ...call,
    skewMs: 0,
    gone,
    complete: () => response.writableFinished,
    status: () => (response.headersSent ? response.statusCode : 0),
    sleep: async (ms) => await sleep(clock, timers, ms, response),
    reply(status, headers, content) {
      if (gone()) return;
      const fields = head(headers);
      const bodiless = status === 204 || status === 304;
      if (!bodiless) fields['content-length'] = String(Buffer.byteLength(content));
      response.writeHead(status, fields).end(bodiless || call.method === 'HEAD' ? undefined : content);
    },
    begin(status, headers) {
      if (gone()) return;
      response.writeHead(status, head(headers));
      response.flushHeaders();
    },
    write: async (part) => await write(response, part),
    end: () => {
      if (!gone()) response.end();
    },
    cut() {
      cut = true;
      if (response.socket !== null) response.socket.resetAndDestroy();
    },
    wasCut: () => cut,
  };
  return exchange;
}

async function sleep(
  clock: Clock,
  timers: Set<() => void>,
  ms: number,
  response: ServerResponse,
): Promise<boolean> {
  if (response.destroyed) return false;
  if (ms <= 0) return true;
  return await new Promise((resolve) => {
    let cancel: CancelTimer = () => {};
    const finish = (connected: boolean): void => {
      cancel();
      timers.delete(stop);
      response.off('close', stop);
      resolve(connected);
    };
    const stop = (): void => finish(false);
    cancel = clock.after(ms, () => finish(true));
    timers.add(stop);
    response.once('close', stop);
  });
}

async function write(response: ServerResponse, part: string): Promise<boolean> {
  if (response.destroyed || response.closed) return false;
  if (response.write(part)) return true;
  return await new Promise((resolve) => {
    const finish = (connected: boolean): void => {
      response.off('drain', drained);
      response.off('close', closed);
      resolve(connected);
    };
    const drained = (): void => finish(true);
    const closed = (): void => finish(false);
    response.once('drain', drained);
    response.once('close', closed);
  });
}

function split(url: string): { path: string; query: URLSearchParams } {
  const mark = url.indexOf('?');
  return mark < 0
    ? { path: url, query: new URLSearchParams() }
    : { path: url.slice(0, mark), query: new URLSearchParams(url.slice(mark + 1)) };
}
