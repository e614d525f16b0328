/**
 * The one user of http-proxy-middleware: hands it a request, and hears from it what becomes of it.
 *
 * Owns: the surface that the proxy touches. Keeps: the proxy sees a throw-away pair of objects instead of the client's request and
 * response, and may neither choose fields, follow redirects, answer errors nor set timers; so dropping an attempt cannot destroy what
 * is the client's, and attempts leave no listeners on it.
 */
import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { createProxyMiddleware, type Options } from 'http-proxy-middleware';
import { LRUCache } from 'lru-cache';
import type { Pool } from './agents.ts';
import type { OutgoingFields } from './fields.policy.ts';

/** A request as the proxy sends it. */
export interface ProxyableRequest {
  /** `scheme://host[:port]` of the route. */
  readonly origin: string;
  readonly method: string;
  /** Raw, starting with `/`. */
  readonly pathAndQuery: string;
  /** Complete fields, `host` and `content-length` included. */
  readonly fields: OutgoingFields;
  readonly agent: Pool;
}

/** What goes through the proxy, and hears of it. */
export interface Proxied {
  readonly attempt: ProxyableRequest;
  /** True when nobody waits for it any more: no connection is opened for it then. */
  readonly isOver: boolean;
  /** It has a socket; that may still be connecting. */
  onRequest(request: ClientRequest): void;
  /** The response's head is there. */
  onResponse(response: IncomingMessage): void;
  /** Node or the proxy reported an error, perhaps more than once. */
  onError(error: unknown): void;
}

/** A request that the proxy has, but not yet its body. */
export interface ProxiedRequest {
  /** Writes head and body in one call, so that those of a small request leave in one packet. */
  write(body: Buffer | null): void;
  /** Makes the proxy destroy its request and response. */
  abandon(): void;
}

export type Proxy = (proxied: Proxied) => ProxiedRequest;

/** The proxy turns a reset into another event when the client's socket is gone; here a reset is a reset. */
const writableSocket = Object.freeze({ writable: true });

/*
 * The proxy's types ask for Node's classes, but its code uses only the members that these have (checked by test/wire). They are no
 * event emitters, because two of those cost a twentieth of what the transport does for a call.
 */

class RequestOfProxy {
  readonly httpVersion = '1.1';
  readonly httpVersionMajor = 1;
  readonly socket = writableSocket;
  readonly method: string;
  readonly headers: OutgoingFields;
  readonly proxied: Proxied;
  /** Empty until the proxy has chosen the target: its path filter parses anything else. Then the raw path and query. */
  url = '';
  /** Where the body goes; `null` = the proxy has made no request yet. */
  destination: (NodeJS.WritableStream & { readonly destroyed?: boolean }) | null = null;

  constructor(proxied: Proxied) {
    this.proxied = proxied;
    this.method = proxied.attempt.method;
    this.headers = proxied.attempt.fields;
  }

  /** The proxy listens for errors; there are none. */
  on(): this {
    return this;
  }

  /** As the body. Not a real stream: the proxy reads from one only to follow redirects. */
  pipe(destination: NodeJS.WritableStream): NodeJS.WritableStream {
    return (this.destination = destination);
  }
}

/** Nothing was sent on it, and nothing will be. */
class ResponseOfProxy {
  readonly headersSent = false;
  readonly finished = false;
  readonly writableFinished = false;
  readonly writableEnded = false;
  destroyed = false;
  readonly #onClose: (() => void)[] = [];

  on(event: string, listener: () => void): this {
    if (event === 'close') this.#onClose.push(listener);
    return this;
  }

  /** Tells the proxy that the receiver is gone; it then destroys its request and response. */
  close(): void {
    this.destroyed = true;
    for (const listener of this.#onClose) listener();
  }

  destroy(): this {
    this.destroyed = true;
    return this;
  }
}

export function createProxy(): Proxy {
  const proxy = createProxyMiddleware(proxyOptions());
  return (proxied) => {
    const request = new RequestOfProxy(proxied);
    const response = new ResponseOfProxy();
    // The proxy's promise ends with the response that it is given; what fails before that is passed to its `next`.
    const onError = (error: unknown): void => proxied.onError(error);
    proxy(request as unknown as IncomingMessage, response as unknown as ServerResponse, onError).catch(
      onError,
    );
    return {
      write(body) {
        const { destination } = request;
        if (destination === null || destination.destroyed === true) return;
        if (body === null || body.length === 0) destination.end();
        else destination.end(body);
      },
      abandon() {
        response.close();
      },
    };
  };
}

/** The proxied request that the proxy was given as the client's. */
function proxiedOf(request: unknown): RequestOfProxy {
  if (request instanceof RequestOfProxy) return request;
  throw new Error('the request is not an attempt of this transport');
}

/** Built once. Per attempt only the router's copy of the options changes. */
function proxyOptions(): Options {
  const originOf = preparedOrigins();
  return {
    // The default plugins answer errors with host and URL, and log every response.
    ejectPlugins: true,
    // Every request passes. A filter that is a function parses no path while the request's is empty.
    pathFilter: () => true,
    selfHandleResponse: true,
    followRedirects: false,
    xfwd: false,
    plugins: [
      (server) => {
        // The router runs a few turns of the event loop earlier; an attempt that was aborted since then opens no connection.
        server.on('start', (request) => {
          const { proxied } = proxiedOf(request);
          if (proxied.isOver) throw new Error('the attempt is over');
          // The proxy makes its request right after this event, in the same turn of the event loop.
          proxied.attempt.agent.kept.dropOverdue();
        });
        server.on('proxyReq', (outgoing, request) => proxiedOf(request).proxied.onRequest(outgoing));
        server.on('proxyRes', (response, request) => proxiedOf(request).proxied.onResponse(response));
        server.on('error', (error, request) => proxiedOf(request).proxied.onError(error));
        server.on('econnreset', (error, request) => proxiedOf(request).proxied.onError(error));
      },
    ],
    router(given, _response, options) {
      const request = proxiedOf(given);
      const { agent, pathAndQuery, origin } = request.proxied.attempt;
      options.agent = agent;
      options.buffer = request as unknown as Readable;
      request.url = pathAndQuery;
      return originOf(origin);
    },
  };
}

/** The parts of an origin that the proxy and Node's pools need. */
export interface PreparedOrigin {
  readonly protocol: string;
  readonly host: string;
  readonly hostname: string;
  readonly port: string;
}

/** How many origins are kept parsed. There are many under a wildcard; parsing one again costs a microsecond. */
const maxPreparedOrigins = 1000;

function preparedOrigins(): (origin: string) => PreparedOrigin {
  const origins = new LRUCache<string, PreparedOrigin>({ max: maxPreparedOrigins });
  return (origin) => {
    let target = origins.get(origin);
    if (target === undefined) origins.set(origin, (target = prepared(origin)));
    return target;
  };
}

export function prepared(origin: string): PreparedOrigin {
  const url = new URL(origin);
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const port = url.port === '' ? (url.protocol === 'https:' ? '443' : '80') : url.port;
  return Object.freeze({ protocol: url.protocol, host: hostname, hostname, port });
}
