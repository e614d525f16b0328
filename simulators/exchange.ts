/**
 * One call on its way through a simulator: what is known of it, and every way to answer or not to.
 *
 * Owns: waiting responses and their timers, the `Date` field, streams that wait for their reader. Does not own: sockets
 * (`server.ts`), what is answered.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { CancelTimer, Clock } from './clock.ts';

export type ReplyHeaders = Record<string, string | readonly string[]>;

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
  /** Starts a streamed response. */
  begin(status: number, headers: ReplyHeaders): void;
  /** Writes a part and waits while the client does not read; false when it has gone. */
  write(part: string): Promise<boolean>;
  end(): void;
  /** Cuts the connection, without a response or in the middle of one. */
  cut(): void;
  /** True when the simulator cut the connection. */
  wasCut(): boolean;
  /** Resolves when the exchange is over, however it ended. */
  readonly over: Promise<void>;
  /** Status sent, 0 when none. */
  status(): number;
  /** The whole response was handed to the connection. */
  complete(): boolean;
  /** Added to the clock for this response's `Date`, ms. */
  skewMs: number;
}

/** What a handler may learn before the body is there. */
export type Arrival = Pick<Exchange, 'seq' | 'arrivedT' | 'request' | 'method' | 'path' | 'query' | 'over'>;

/** @param timers what ends the waits of all exchanges, for the server's end. */
export function exchangeOf(
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
