/**
 * The one way to an upstream, and the one user of http-proxy-middleware.
 *
 * Owns: handing a prepared request to the proxy. Does not own: what is sent (fields, path and body come finished),
 * sending again, streaming the response to the client, every decision about throttling.
 * Keeps: the proxy sees an adapter instead of the client's request and response, and may neither choose fields, follow
 * redirects, answer errors nor set timers; one request is written at most once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { createProxyMiddleware } from 'http-proxy-middleware';
import type { Options, RequestHandler } from 'http-proxy-middleware';
import { LRUCache } from 'lru-cache';
import type { UpstreamResponse } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Pool } from './agents.ts';
import { Exchange } from './exchange.ts';
import type { ExchangeOwner, ExchangeTerms } from './exchange.ts';
import type { OutgoingFields } from './fields.policy.ts';
import type { SocketPermit } from './socket-permits.ts';
import { ProxyAdapter } from './proxy-adapter.ts';
import type { TransportError } from './transport-error.ts';
import { ShortLived } from '../short-lived.ts';
import { WriteBatch, type ReadyRequest } from './write-batch.ts';

export { TransportError } from './transport-error.ts';
export type { ExchangePhase, TransportFault } from './transport-error.ts';

export interface TransportAttempt extends ExchangeTerms {
  /** `scheme://host[:port]` of the route. */
  readonly origin: string;
  /** Raw, starting with `/`. */
  readonly pathAndQuery: string;
  /** Complete fields, `host` and `content-length` included. */
  readonly fields: OutgoingFields;
  readonly body: Buffer | null;
  readonly agent: Pool;
  /**
   * Called once, when the request is to be written at the end of this turn of the event loop: requests that come to this point
   * later are written later. Must not throw.
   */
  readonly onReady?: () => void;
  /** Queue for a socket permit; the wait in it counts towards the connect limit. Default: no queue. */
  readonly line?: ((start: () => void) => SocketPermit) | null;
}

export interface Transport {
  /**
   * Resolves when the response's head has arrived; its body must be read or destroyed by the caller. Limits and the
   * signal go on to hold while it is read: a cut body is destroyed with an error and never ends cleanly.
   *
   * @throws TransportError always, and nothing else
   */
  send(attempt: TransportAttempt): Promise<UpstreamResponse>;
  /** Cuts every exchange that is still going on. */
  close(): void;
}

/** The parts of an origin that the proxy needs, parsed once. */
interface PreparedOrigin {
  readonly protocol: string;
  readonly host: string;
  readonly hostname: string;
  readonly port: string;
}

/** How many origins are kept parsed. There are many under a wildcard; parsing one again costs a microsecond. */
const maxPreparedOrigins = 1000;

/** All attempts that are going on, and what they share. */
class Exchanges {
  readonly #live = new ShortLived<number, ProxiedAttempt>();
  readonly #origins = new LRUCache<string, PreparedOrigin>({ max: maxPreparedOrigins });
  readonly writes = new WriteBatch();
  #started = 0;
  isClosed = false;

  enter(attempt: ProxiedAttempt): number {
    const number = (this.#started += 1);
    this.#live.set(number, attempt);
    return number;
  }

  leave(number: number): void {
    this.#live.delete(number);
  }

  target(origin: string): PreparedOrigin {
    let target = this.#origins.get(origin);
    if (target === undefined) this.#origins.set(origin, (target = prepared(origin)));
    return target;
  }

  close(): void {
    this.isClosed = true;
    for (const { exchange } of this.#live.values()) exchange.abort();
  }
}

/** One attempt inside the proxy: the proxy is given it as request and response, and reports to its exchange. */
class ProxiedAttempt extends ProxyAdapter implements ExchangeOwner, ReadyRequest {
  readonly attempt: TransportAttempt;
  readonly target: PreparedOrigin;
  readonly exchange: Exchange;
  readonly #all: Exchanges;
  readonly #number: number;
  #permit: SocketPermit | null = null;

  constructor(attempt: TransportAttempt, all: Exchanges, clock: Clock) {
    super(attempt, attempt.body);
    this.attempt = attempt;
    this.target = all.target(attempt.origin);
    this.#all = all;
    this.#number = all.enter(this);
    this.exchange = new Exchange(clock, attempt, this);
  }

  /** Waits for its permit, then goes through the proxy. */
  begin(proxy: RequestHandler): void {
    if (this.exchange.isOver) return;
    const go = (): void => this.#go(proxy);
    this.#permit = this.attempt.line?.(go) ?? null;
    if (this.#permit === null) go();
    if (this.exchange.isOver) this.#permit?.end();
  }

  onReady(): void {
    this.attempt.onReady?.();
    this.#all.writes.add(this);
  }

  /** The end of the turn: whatever has ended meanwhile is not written. */
  write(): void {
    if (this.exchange.isOver) return;
    this.exchange.onWritten();
    try {
      this.writeBody();
    } catch (error) {
      this.exchange.onError(error);
    }
  }

  onOver(error: TransportError | null): void {
    this.#all.leave(this.#number);
    this.#permit?.end();
    if (error?.stale === true) dropIdle(this.attempt.agent, this.target);
  }

  #go(proxy: RequestHandler): void {
    if (this.#all.isClosed) return;
    // The proxy's promise ends with the response that it is given; what fails before that is passed to its `next`.
    const onError = (error: unknown): void => this.exchange.onError(error);
    proxy(asRequest(this), asResponse(this), onError).catch(onError);
  }
}

export function createTransport({ clock }: { readonly clock: Clock }): Transport {
  const all = new Exchanges();
  const proxy = createProxyMiddleware(proxyOptions());
  return {
    send(attempt) {
      const proxied = new ProxiedAttempt(attempt, all, clock);
      proxied.begin(proxy);
      return proxied.exchange.response;
    },
    close: () => all.close(),
  };
}

/** Closes the idle connections of an origin: whatever closed one of them has probably closed the others as well. */
function dropIdle(agent: Pool, origin: PreparedOrigin): void {
  const name = `${origin.hostname}:${origin.port}:`;
  for (const [key, sockets] of Object.entries(agent.freeSockets)) {
    if (!key.startsWith(name)) continue;
    for (const socket of sockets ?? []) socket.destroy();
  }
}

function prepared(origin: string): PreparedOrigin {
  const url = new URL(origin);
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const port = url.port === '' ? (url.protocol === 'https:' ? '443' : '80') : url.port;
  return Object.freeze({ protocol: url.protocol, host: hostname, hostname, port });
}

/** The attempt that the proxy was given as the client's request. */
const proxiedAttemptOf = (request: unknown): ProxiedAttempt | null =>
  request instanceof ProxiedAttempt ? request : null;

/** Built once. Per attempt only the router's copy of the options changes. */
function proxyOptions(): Options {
  return {
    // The default plugins answer errors with host and URL, and log every response.
    ejectPlugins: true,
    // Every request passes. A filter that is a function parses no path while the adapter's is empty.
    pathFilter: () => true,
    selfHandleResponse: true,
    followRedirects: false,
    xfwd: false,
    plugins: [
      (server) => {
        // The router runs a few turns of the event loop earlier; an attempt that was aborted since then opens no connection.
        server.on('start', (request) => {
          const proxied = proxiedAttemptOf(request);
          if (proxied?.exchange.isOver === true) throw new Error('the attempt is over');
          // The proxy makes its request right after this event, in the same turn of the event loop.
          proxied?.attempt.agent.kept.dropOverdue();
        });
        server.on('proxyReq', (outgoing, request) => proxiedAttemptOf(request)?.exchange.onRequest(outgoing));
        server.on('proxyRes', (response, request) =>
          proxiedAttemptOf(request)?.exchange.onResponse(response),
        );
        server.on('error', (error, request) => proxiedAttemptOf(request)?.exchange.onError(error));
        server.on('econnreset', (error, request) => proxiedAttemptOf(request)?.exchange.onError(error));
      },
    ],
    router(request, _response, options) {
      const proxied = proxiedAttemptOf(request);
      if (proxied === null) throw new Error('the request is not an attempt of this transport');
      options.agent = proxied.attempt.agent;
      options.buffer = asStream(proxied);
      proxied.url = proxied.attempt.pathAndQuery;
      return proxied.target;
    },
  };
}

/* The proxy's types ask for Node's classes, but its code uses only the members that the adapter has (checked by test/wire). */
const asRequest = (adapter: ProxyAdapter): IncomingMessage => adapter as unknown as IncomingMessage;
const asStream = (adapter: ProxyAdapter): Readable => adapter as unknown as Readable;
const asResponse = (adapter: ProxyAdapter): ServerResponse => adapter as unknown as ServerResponse;
