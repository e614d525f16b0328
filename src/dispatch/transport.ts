/**
 * The one way to an upstream: one request and its response, from the first byte out to the last byte in, with its limits in time, its
 * abort, and the judgement whether the response may be passed on. Nothing is sent again here.
 *
 * Invariants: an exchange settles exactly once; whatever happens before the head rejects, whatever happens after it destroys the body
 * with an error, so that a cut body never ends cleanly; a request is written at most once; when an exchange is over, no timer, listener,
 * permit or half-read socket of it is left.
 */
import type { Agent, ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { TLSSocket } from 'node:tls';
import { createProxyMiddleware, type Options } from 'http-proxy-middleware';
import type { UpstreamResponse } from '../call.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';
import { ShortLived } from '../short-lived.ts';
import type { OutgoingFields } from './fields.policy.ts';
import { codeOf, faultOf, TransportError, type ExchangePhase } from './transport-error.ts';

/** What is sent, and for how long and under which conditions its exchange goes on. */
export interface TransportAttempt {
  /** `scheme://host[:port]` of the route. */
  readonly origin: string;
  readonly method: string;
  /** Raw, starting with `/`. */
  readonly pathAndQuery: string;
  /** Complete fields, `host` and `content-length` included. */
  readonly fields: OutgoingFields;
  readonly agent: Agent;
  readonly body: Buffer | null;
  readonly timeouts: UpstreamTimeouts;
  /** Ends the exchange at once, in every phase, body included. */
  readonly signal: AbortSignal;
  /** The request is not written before this resolves; the connection is made meanwhile. Default: written at once. */
  readonly hold?: Promise<void> | null;
  /** Queue for a socket permit, and what ends it; the wait counts towards the connect limit. Default: no queue. */
  readonly line?: (start: () => void) => () => void;
  /**
   * Called when the request is to be written at the end of this turn of the event loop, or never will be: requests that come to this
   * point later are written later. Must not throw.
   */
  readonly onReady?: () => void;
  /** Called once, just before the request's bytes go out. Must not throw. */
  readonly onSent?: () => void;
}

export class Transport {
  readonly clock: Clock;
  /** Exchanges that are not over, by their numbers. */
  readonly live = new ShortLived<number, Exchange>();
  /** Writes the requests that are ready. */
  #writes: Exchange[] = [];
  #started = 0;
  #isClosed = false;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /**
   * Resolves when the response's head has arrived; its body must be read or destroyed by the caller. Limits and the
   * signal go on to hold while it is read.
   *
   * @throws TransportError always, and nothing else
   */
  send(attempt: TransportAttempt): Promise<UpstreamResponse> {
    const exchange = new Exchange(attempt, this, (this.#started += 1));
    if (this.#isClosed || attempt.signal.aborted) exchange.handleEvent();
    else exchange.begin();
    return exchange.outcome.promise;
  }

  /**
   * The requests of one turn of the event loop are written one right after the other, at its end: each write to an upstream that sleeps
   * wakes it up, which costs more than the write, and of writes that follow each other only the first one does.
   */
  writeAtEndOfTurn(exchange: Exchange): void {
    if (this.#writes.push(exchange) > 1) return;
    setImmediate(() => {
      for (const each of this.#writes.splice(0)) each.write();
    });
  }

  /** Cuts every exchange that is still going on. */
  close(): void {
    this.#isClosed = true;
    for (const exchange of this.live.values()) exchange.handleEvent();
  }
}

/** Interim responses (1xx) taken before an upstream counts as broken. */
const maxInterimResponses = 16;
/** Node's parser keeps 1,000 fields and drops the rest without a word, framing included (nodejs/node#65010). */
const maxFields = 1_000;
/** Silence is looked for this many times per idle limit: it is noticed at most a quarter too late. */
const looksPerIdle = 4;
/** A longer body is written in parts of this many bytes, each in a turn of the event loop of its own. */
const partBytes = 131_072;

class Exchange {
  readonly attempt: TransportAttempt;
  readonly outcome = Promise.withResolvers<UpstreamResponse>();
  readonly #transport: Transport;
  readonly #number: number;
  readonly #totalEndsAt: number;
  #stageEndsAt = 0;
  /** When the timer rings, monotonic milliseconds; `null`: none is set. */
  #ringsAt: number | null = null;
  #cancelTimer: CancelTimer | null = null;
  #phase: ExchangePhase | 'over' = 'connect';
  #endPermit: (() => void) | null = null;
  /** `null`: it has no socket yet. */
  #request: ClientRequest | null = null;
  #socket: Socket | null = null;
  #reusedSocket = false;
  #interimResponses = 0;
  #body: IncomingMessage | null = null;
  /** Bytes that had come over the connection when it was last looked at. */
  #bytesSeen = 0;

  constructor(attempt: TransportAttempt, transport: Transport, number: number) {
    this.attempt = attempt;
    this.#transport = transport;
    this.#number = number;
    const now = transport.clock.monotonic();
    this.#totalEndsAt = now + (attempt.timeouts.totalMs ?? Infinity);
    transport.live.set(number, this);
    this.#limit('connectMs', now);
    attempt.signal.addEventListener('abort', this);
  }

  /** True when nobody waits for it any more: no connection is opened for it then. */
  get isOver(): boolean {
    return this.#phase === 'over';
  }

  /** Waits for its permit, then goes through the proxy. */
  begin(): void {
    const go = (): void => sendThroughProxy(this);
    this.#endPermit = this.attempt.line?.(go) ?? null;
    if (this.#endPermit === null) go();
    if (this.isOver) this.#endPermit?.();
  }

  /** The abort signal fired, or the transport was closed; a listener object saves a closure per call. */
  handleEvent(): void {
    this.#fail('aborted');
  }

  /** It has a socket, which may still be connecting; nothing is written to it yet. */
  onRequest(request: ClientRequest): void {
    const { socket } = request;
    if (this.isOver || socket === null) {
      request.destroy();
      return;
    }
    this.#request = request;
    this.#socket = socket;
    this.#reusedSocket = request.reusedSocket || !socket.connecting;
    this.#bytesSeen = socket.bytesRead;
    request.on('information', () => {
      if (++this.#interimResponses > maxInterimResponses) this.#fail('invalid');
    });
    request.on('upgrade', (_response, upgraded) => {
      upgraded.destroy();
      this.#fail('invalid');
    });
    // Neither an unasked 101 nor a destroyed request ends in an error event; `close` always comes.
    request.on('close', () => {
      if (this.#phase === 'connect' || this.#phase === 'sent') this.onError(null);
    });
    const onConnected = (): void => {
      const { hold = null } = this.attempt;
      if (hold === null) this.#ready();
      else void hold.then(() => this.#ready());
    };
    if (this.#reusedSocket) onConnected();
    else socket.once(socket instanceof TLSSocket ? 'secureConnect' : 'connect', onConnected);
  }

  #ready(): void {
    if (this.#phase !== 'connect') return;
    this.attempt.onReady?.();
    this.#transport.writeAtEndOfTurn(this);
  }

  /** Head and body leave in one call, so that those of a small request leave in one packet. */
  write(): void {
    const { body, onSent } = this.attempt;
    if (this.#phase !== 'connect') return;
    this.#phase = 'sent';
    this.#limit('headMs');
    onSent?.();
    try {
      if (body === null) this.#request?.end();
      else this.#writeFrom(body, 0);
    } catch (error) {
      this.onError(error);
    }
  }

  /** To an upstream that refuses a large body before it has read all, nothing more is sent. */
  #writeFrom(body: Buffer, from: number): void {
    const request = this.#request;
    const isRefused = this.#phase === 'body' && (this.#body?.statusCode ?? 0) >= 400;
    if (request === null || this.isOver || isRefused) return;
    const to = from + partBytes;
    if (to >= body.length) request.end(body.subarray(from));
    else request.write(body.subarray(from, to), () => setImmediate(() => this.#writeFrom(body, to)));
  }

  onResponse(response: IncomingMessage): void {
    response.on('error', (error) => this.onError(error));
    if (this.isOver) {
      response.destroy();
      return;
    }
    const status = response.statusCode ?? 0;
    // A response to nothing: pushed on a kept connection while the request was held back. It is somebody else's.
    if (this.#phase === 'connect') return this.onError(null);
    if (status < 200 || status > 599 || response.rawHeaders.length >= maxFields * 2)
      return this.#fail('invalid');
    this.#phase = 'body';
    this.#body = response;
    const over = (): void => {
      this.#over();
      // It is not sent any more, so that nothing else may follow on this connection.
      if (this.#request?.writableEnded === false) this.#request.destroy();
    };
    response.on('end', over).on('close', over);
    this.#bytesSeen = this.#socket?.bytesRead ?? 0;
    this.#limit('idleMs');
    const bodyless = this.attempt.method === 'HEAD' || status === 204 || status === 304;
    if (bodyless) response.resume();
    this.outcome.resolve({
      head: { status, rawFields: response.rawHeaders },
      body: bodyless ? Readable.from([]) : response,
    });
  }

  /** Node or the proxy reported an error, perhaps more than once. */
  onError(error: unknown): void {
    // Bytes after a complete message are not part of it; Node has closed the connection that they came on.
    if (this.#phase === 'over' || this.#body?.complete === true) return;
    this.#fail(faultOf(error, this.#phase), codeOf(error));
  }

  /** The limit of the next stage counts from now: of connecting, of the response's head, of silence within the body. */
  #limit(stage: 'connectMs' | 'headMs' | 'idleMs', now = this.#transport.clock.monotonic()): void {
    this.#stageEndsAt = now + this.attempt.timeouts[stage];
    this.#setTimer(now);
  }

  #setTimer(now: number): void {
    const isBody = this.#phase === 'body';
    const { idleMs } = this.attempt.timeouts;
    const lookAt = isBody ? now + idleMs / looksPerIdle : Infinity;
    const at = Math.min(lookAt, this.#stageEndsAt, this.#totalEndsAt);
    // One that rings earlier sets the next: most exchanges end with their first timer.
    if (this.#ringsAt !== null && this.#ringsAt <= at) return;
    this.#cancelTimer?.();
    this.#ringsAt = at;
    this.#cancelTimer = this.#transport.clock.after(Math.max(1, at - now), () => {
      this.#ringsAt = null;
      const then = this.#transport.clock.monotonic();
      if (this.#phase === 'body' && this.#hasMoved()) this.#stageEndsAt = then + idleMs;
      if (then >= Math.min(this.#stageEndsAt, this.#totalEndsAt)) this.#fail('timeout');
      else this.#setTimer(then);
    });
  }

  /**
   * True when the body has moved since this was asked before. Bytes are counted on the socket: a `data` listener on the body would take
   * its flow control away. Bytes that lie unread are the reader's slowness, not the upstream's silence.
   */
  #hasMoved(): boolean {
    const bytes = this.#socket?.bytesRead ?? 0;
    const moved = bytes !== this.#bytesSeen || (this.#body?.readableLength ?? 0) > 0;
    this.#bytesSeen = bytes;
    return moved;
  }

  #fail(kind: TransportError['kind'], code: string | null = null): void {
    const phase = this.#phase;
    if (phase === 'over') return;
    // Before the head is there, any byte is one of the response.
    const hasBegun = (this.#socket?.bytesRead ?? 0) !== this.#bytesSeen;
    const stale = kind === 'reset' && phase === 'sent' && this.#reusedSocket && !hasBegun;
    const neverSent = phase === 'connect';
    const error = new TransportError({ kind, phase, neverSent, stale, code });
    this.#over();
    if (this.#body === null) {
      this.outcome.reject(error);
      this.#request?.destroy();
    } else {
      this.#body.destroy(error);
    }
    this.#socket?.destroy();
  }

  #over(): void {
    if (this.isOver) return;
    const wasNeverWritten = this.#phase === 'connect';
    this.#phase = 'over';
    this.#cancelTimer?.();
    this.attempt.signal.removeEventListener('abort', this);
    this.#endPermit?.();
    this.#transport.live.delete(this.#number);
    // It must not hold back those behind it.
    if (wasNeverWritten) this.attempt.onReady?.();
  }
}

// The one use of http-proxy-middleware. The proxy sees a throw-away description of the request instead of the client's, and a response
// that has ended already; it may neither choose fields, follow redirects, answer errors, write a body nor set timers. So dropping an
// attempt cannot destroy what is the client's, and attempts leave no listeners on it.

/** The members of a request that the proxy uses (checked by test/wire). */
class RequestOfProxy {
  readonly httpVersion = '1.1';
  readonly httpVersionMajor = 1;
  /** The proxy turns a reset into another event when the client's socket is gone; here a reset is a reset. */
  readonly socket = { writable: true };
  readonly method: string;
  readonly headers: OutgoingFields;
  readonly exchange: Exchange;
  /** Empty until the proxy has chosen the target: its path filter parses anything else. Then the raw path and query. */
  url = '';

  constructor(exchange: Exchange) {
    this.exchange = exchange;
    this.method = exchange.attempt.method;
    this.headers = exchange.attempt.fields;
  }

  on(): void {}
}

type Asked = RequestOfProxy & IncomingMessage;

/** The proxy adds no listener to the upstream's response for a response that has ended. */
const ended = {
  headersSent: true,
  finished: true,
  writableFinished: true,
  on() {},
} as unknown as ServerResponse;
/** Whoever sends the request writes its body. */
const noBody = { pipe() {} } as unknown as Readable;

/** Where an origin is, as the proxy wants it. */
function targetOf(origin: string): { protocol: string; host: string; hostname: string; port: string } {
  const { protocol, hostname, port } = new URL(origin);
  // An IPv6 address goes without brackets.
  const host = hostname.replace(/^\[|\]$/g, '');
  return { protocol, host, hostname: host, port: port || (protocol === 'https:' ? '443' : '80') };
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
      server.on('start', ({ exchange }) => {
        if (exchange.isOver) throw new Error('the attempt is over');
      });
      server.on('proxyReq', (outgoing, { exchange }) => exchange.onRequest(outgoing));
      server.on('proxyRes', (response, { exchange }) => exchange.onResponse(response));
      server.on('error', (error, request) => request?.exchange.onError(error));
    },
  ],
  router(request, _response, options) {
    const { agent, pathAndQuery, origin } = request.exchange.attempt;
    options.agent = agent;
    options.buffer = noBody;
    request.url = pathAndQuery;
    return targetOf(origin);
  },
};
const proxy = createProxyMiddleware<Asked>(proxyOptions);

function sendThroughProxy(exchange: Exchange): void {
  // What fails before there is a request is passed to the proxy's `next`.
  const onError = (error: unknown): void => exchange.onError(error);
  proxy(new RequestOfProxy(exchange) as Asked, ended, onError).catch(onError);
}
