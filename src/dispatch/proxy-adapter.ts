/**
 * The one user of http-proxy-middleware: hands it a request, and passes on what becomes of it.
 *
 * The proxy sees a throw-away description of the request instead of the client's, and a response that has ended already; it may neither
 * choose fields, follow redirects, answer errors, write a body nor set timers. So dropping an attempt cannot destroy what is the
 * client's, and attempts leave no listeners on it.
 */
import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { createProxyMiddleware, type Options } from 'http-proxy-middleware';
import { LRUCache } from 'lru-cache';
import type { Pool } from './agents.ts';
import type { OutgoingFields } from './request-fields.policy.ts';

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

/** What goes through the proxy, and is told of what becomes of it. */
export interface Proxied {
  readonly attempt: ProxyableRequest;
  /** True when nobody waits for it any more: no connection is opened for it then. */
  readonly isOver: boolean;
  /** It has a socket, which may still be connecting; nothing is written to it yet. */
  onRequest(request: ClientRequest): void;
  /** The response's head is there. */
  onResponse(response: IncomingMessage): void;
  /** Node or the proxy reported an error, perhaps more than once. */
  onError(error: unknown): void;
}

/** The members of a request that the proxy uses (checked by test/wire). */
class RequestOfProxy {
  readonly httpVersion = '1.1';
  readonly httpVersionMajor = 1;
  /** The proxy turns a reset into another event when the client's socket is gone; here a reset is a reset. */
  readonly socket = { writable: true };
  readonly method: string;
  readonly headers: OutgoingFields;
  readonly proxied: Proxied;
  /** Empty until the proxy has chosen the target: its path filter parses anything else. Then the raw path and query. */
  url = '';

  constructor(proxied: Proxied) {
    this.proxied = proxied;
    this.method = proxied.attempt.method;
    this.headers = proxied.attempt.fields;
  }

  on(): void {}
}

type Asked = RequestOfProxy & IncomingMessage;

/** The proxy adds no listener to the upstream's response for a response that has ended. */
const ended = Object.freeze({ headersSent: true, finished: true, writableFinished: true, on() {} });
/** Whoever sends the request writes its body. */
const noBody = Object.freeze({ pipe() {} });

export function createProxy(): (proxied: Proxied) => void {
  const proxy = createProxyMiddleware<Asked>(proxyOptions);
  const response = ended as unknown as ServerResponse;
  return (proxied) => {
    // What fails before there is a request is passed to the proxy's `next`.
    const onError = (error: unknown): void => proxied.onError(error);
    proxy(new RequestOfProxy(proxied) as Asked, response, onError).catch(onError);
  };
}

const proxyOptions: Options<Asked> = {
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
      server.on('start', ({ proxied }) => {
        if (proxied.isOver) throw new Error('the attempt is over');
      });
      server.on('proxyReq', (outgoing, { proxied }) => proxied.onRequest(outgoing));
      server.on('proxyRes', (response, { proxied }) => proxied.onResponse(response));
      server.on('error', (error, request) => request?.proxied.onError(error));
    },
  ],
  router(request, _response, options) {
    const { agent, pathAndQuery, origin } = request.proxied.attempt;
    options.agent = agent;
    options.buffer = noBody as unknown as Readable;
    request.url = pathAndQuery;
    return origins.memo(origin);
  },
};

/** There are many origins under a wildcard, and most calls go to few of them. */
const origins = new LRUCache({ max: 1_000, memoMethod: parsedOrigin });

/** The parts of an origin that the proxy and Node's pools need: an IPv6 address without brackets, and always a port. */
export function parsedOrigin(origin: string) {
  const { protocol, hostname, port } = new URL(origin);
  const host = hostname.replace(/^\[|\]$/g, '');
  return {
    protocol,
    host,
    hostname: host,
    port: port === '' ? (protocol === 'https:' ? '443' : '80') : port,
  };
}
