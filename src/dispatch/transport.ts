/**
 * The one way to an upstream, and the one user of http-proxy-middleware.
 *
 * Owns: handing a prepared request to the proxy. Refuses to own: what is sent (fields, path and body come finished),
 * sending again, streaming the answer to the client, every decision about throttling.
 * Keeps: the proxy sees stand-ins instead of the client's request and response, and may neither choose fields, follow
 * redirects, answer errors nor set timers; one request is written at most once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { createProxyMiddleware } from 'http-proxy-middleware';
import type { Options } from 'http-proxy-middleware';
import { LRUCache } from 'lru-cache';
import type { UpstreamAnswer } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';
import type { Pool } from './agents.ts';
import { Exchange } from './exchange.ts';
import type { OutgoingFields } from './fields.policy.ts';
import type { Place } from './socket-places.ts';
import { BufferedBody, RequestStandIn } from './stand-ins.ts';
import type { ResponseStandIn } from './stand-ins.ts';
import { TransportError } from './transport-error.ts';
import { ShortLived } from '../short-lived.ts';

export { TransportError } from './transport-error.ts';
export type { ExchangePhase, TransportFault } from './transport-error.ts';

export interface TransportAttempt {
  /** `scheme://host[:port]` of the route. */
  readonly origin: string;
  readonly method: string;
  /** Raw, starting with `/`. */
  readonly pathAndQuery: string;
  /** Complete fields, `host` and `content-length` included. */
  readonly fields: OutgoingFields;
  readonly body: Buffer | null;
  readonly agent: Pool;
  readonly timeouts: UpstreamTimeouts;
  /** Ends the exchange at once, in every phase, body included. */
  readonly signal: AbortSignal;
  /** Nothing is written before it resolves; the connection is made meanwhile. Default: at once. */
  readonly hold?: Promise<void> | null;
  /** Where its turn for a socket is waited for; it counts towards the connect limit. Default: nowhere. */
  readonly line?: ((start: () => void) => Place) | null;
  /** Called once, when the request's bytes go out. Must not throw. */
  readonly onSent?: () => void;
}

export interface Transport {
  /**
   * Resolves when the answer's head has arrived; its body must be read or destroyed by the caller. Limits and the
   * signal go on to hold while it is read: a cut body is destroyed with an error and never ends cleanly.
   *
   * @throws TransportError always, and nothing else
   */
  send(attempt: TransportAttempt): Promise<UpstreamAnswer>;
  /** Cuts every exchange that is still going on. */
  close(): void;
}

/** Of an origin what the proxy needs, taken apart once. */
interface PreparedOrigin {
  readonly protocol: string;
  readonly host: string;
  readonly hostname: string;
  readonly port: string;
}

/** One request on its way through the proxy, as its router sees it. */
class Passage extends RequestStandIn {
  readonly attempt: TransportAttempt;
  readonly target: PreparedOrigin;
  readonly exchange: Exchange;

  constructor(attempt: TransportAttempt, target: PreparedOrigin, exchange: Exchange) {
    super(attempt.method, attempt.fields);
    this.attempt = attempt;
    this.target = target;
    this.exchange = exchange;
  }
}

/** Origins under a wildcard are many; parsing one again costs a microsecond. */
const maxPreparedOrigins = 1000;

export function createTransport({ clock }: { readonly clock: Clock }): Transport {
  const live = new ShortLived<number, Exchange>();
  let started = 0;
  let closed = false;
  const origins = new LRUCache<string, PreparedOrigin>({ max: maxPreparedOrigins });
  const proxy = createProxyMiddleware(proxyOptions());

  const start = (attempt: TransportAttempt): Exchange => {
    const { method, timeouts, signal } = attempt;
    const number = (started += 1);
    let place: Place | null = null;
    const exchange = new Exchange(clock, {
      method,
      timeouts,
      signal,
      hold: attempt.hold ?? null,
      onSent: attempt.onSent ?? null,
      onOver: () => {
        live.delete(number);
        place?.end();
      },
    });
    if (exchange.isOver) return exchange;
    live.set(number, exchange);
    const request = new Passage(attempt, prepared(origins, attempt.origin), exchange);
    const onError = (error: unknown): void => exchange.onError(error);
    const go = (): void => {
      if (closed) return;
      // The proxy's promise would end with the response it was given; what fails before that comes to its `next`.
      proxy(asRequest(request), asResponse(exchange.response), onError).catch(onError);
    };
    place = attempt.line?.(go) ?? null;
    if (place === null) go();
    if (exchange.isOver) place?.end();
    return exchange;
  };

  return {
    async send(attempt) {
      try {
        return await start(attempt).answer;
      } catch (error) {
        if (error instanceof TransportError && error.stale)
          dropIdle(attempt.agent, prepared(origins, attempt.origin));
        throw error;
      }
    },
    close() {
      closed = true;
      for (const exchange of live.values()) exchange.abort();
    },
  };
}

/** What closed one idle connection has probably closed its neighbours; the next request must not find another of them. */
function dropIdle(agent: Pool, origin: PreparedOrigin): void {
  const name = `${origin.hostname}:${origin.port}:`;
  for (const [key, sockets] of Object.entries(agent.freeSockets)) {
    if (!key.startsWith(name)) continue;
    for (const socket of sockets ?? []) socket.destroy();
  }
}

function prepared(origins: LRUCache<string, PreparedOrigin>, origin: string): PreparedOrigin {
  const known = origins.get(origin);
  if (known !== undefined) return known;
  const url = new URL(origin);
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const port = url.port === '' ? (url.protocol === 'https:' ? '443' : '80') : url.port;
  const target: PreparedOrigin = Object.freeze({ protocol: url.protocol, host: hostname, hostname, port });
  origins.set(origin, target);
  return target;
}

/** What the proxy was given as the client's request. */
const passageOf = (request: unknown): Passage | null => (request instanceof Passage ? request : null);

/** Built once. Per attempt only the router's copy of the options changes. */
function proxyOptions(): Options {
  return {
    // Its default plugins answer errors with host and URL, and log every answer.
    ejectPlugins: true,
    selfHandleResponse: true,
    followRedirects: false,
    xfwd: false,
    plugins: [
      (server) => {
        server.on('proxyReq', (outgoing, request) => passageOf(request)?.exchange.onRequest(outgoing));
        server.on('proxyRes', (answer, request) => passageOf(request)?.exchange.onAnswer(answer));
        server.on('error', (error, request) => passageOf(request)?.exchange.onError(error));
        server.on('econnreset', (error, request) => passageOf(request)?.exchange.onError(error));
      },
    ],
    router(request, _response, options) {
      const passage = passageOf(request);
      if (passage === null || passage.exchange.isOver) throw new Error('the attempt is over');
      options.agent = passage.attempt.agent;
      options.buffer = asStream(new BufferedBody(passage.attempt.body, passage.attempt.hold));
      return passage.target;
    },
    pathRewrite: (_path, request) => passageOf(request)?.attempt.pathAndQuery,
  };
}

/* The proxy's types ask for Node's classes; its code touches the members that the stand-ins have (wire tests hold it). */
const asRequest = (standIn: RequestStandIn): IncomingMessage => standIn as unknown as IncomingMessage;
const asStream = (body: BufferedBody): Readable => body as unknown as Readable;
const asResponse = (standIn: ResponseStandIn): ServerResponse => standIn as unknown as ServerResponse;
