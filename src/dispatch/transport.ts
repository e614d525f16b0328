/**
 * The one way to an upstream: one request and its response, from the first byte out to the last byte in, with its limits in time, its
 * abort, and the judgement whether the response may be passed on. Nothing is sent again here.
 *
 * Invariants: an exchange settles exactly once; whatever happens before the head rejects, whatever happens after it destroys the body
 * with an error, so that a cut body never ends cleanly; a request is written at most once; when an exchange is over, no timer, listener,
 * permit or half-read socket of it is left.
 */
import type { ClientRequest, IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { TLSSocket } from 'node:tls';
import type { UpstreamResponse } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';
import { ShortLived } from '../short-lived.ts';
import { createProxy, parsedOrigin, type Proxied, type ProxyableRequest } from './proxy-adapter.ts';
import type { SocketPermit } from './socket-permits.ts';
import {
  codeOf,
  faultOf,
  TransportError,
  type ExchangePhase,
  type TransportFault,
} from './transport-error.ts';

/** What is sent, and for how long and under which conditions its exchange goes on. */
export interface TransportAttempt extends ProxyableRequest {
  readonly body: Buffer | null;
  readonly timeouts: UpstreamTimeouts;
  /** Ends the exchange at once, in every phase, body included. */
  readonly signal: CallSignal;
  /** The request is not written before this resolves; the connection is made meanwhile. Default: written at once. */
  readonly hold?: Promise<void> | null;
  /** Queue for a socket permit; the wait in it counts towards the connect limit. Default: no queue. */
  readonly line?: ((start: () => void) => SocketPermit) | null;
  /**
   * Called once, when the request is to be written at the end of this turn of the event loop: requests that come to this point
   * later are written later. Must not throw.
   */
  readonly onReady?: () => void;
  /** Called once, just before the request's bytes go out. Must not throw. */
  readonly onSent?: () => void;
}

export class Transport {
  readonly #shared: Shared;
  #started = 0;
  #isClosed = false;

  constructor(clock: Clock) {
    this.#shared = { clock, proxy: createProxy(), live: new ShortLived(), ready: [] };
  }

  /**
   * Resolves when the response's head has arrived; its body must be read or destroyed by the caller. Limits and the
   * signal go on to hold while it is read.
   *
   * @throws TransportError always, and nothing else
   */
  send(attempt: TransportAttempt): Promise<UpstreamResponse> {
    const exchange = new Exchange(attempt, this.#shared, (this.#started += 1));
    if (this.#isClosed) exchange.abort();
    exchange.begin();
    return exchange.response;
  }

  /** Cuts every exchange that is still going on. */
  close(): void {
    this.#isClosed = true;
    for (const exchange of this.#shared.live.values()) exchange.abort();
  }
}

/** What all exchanges of a transport share. */
interface Shared {
  readonly clock: Clock;
  readonly proxy: (proxied: Proxied) => void;
  /** Exchanges that are not over, by their numbers. */
  readonly live: ShortLived<number, Exchange>;
  /** Exchanges whose requests are written at the end of this turn of the event loop. */
  ready: Exchange[];
}

/** Interim responses (1xx) taken before an upstream counts as broken. */
const maxInterimResponses = 16;
/** Node's parser keeps 1,000 fields and drops the rest without a word, framing included (nodejs/node#65010). */
const maxFields = 1_000;

/** A 408 that came sooner was on its way before the request was. Milliseconds. */
const goodbyeMs = 1_000;

/** Silence is looked for this many times per idle limit: it is noticed at most a quarter too late. */
const looksPerIdle = 4;

/** A longer body is written in parts of this many bytes, each in a turn of the event loop of its own. */
const partBytes = 131_072;

class Exchange implements Proxied {
  /** Resolves at the response's head, rejects with a {@link TransportError}. */
  readonly response: Promise<UpstreamResponse>;
  readonly attempt: TransportAttempt;
  readonly #resolve: (response: UpstreamResponse) => void;
  readonly #reject: (error: TransportError) => void;
  readonly #shared: Shared;
  readonly #number: number;
  readonly #totalEndsAt: number;
  #stageEndsAt = 0;
  /** `null`: no timer is set. */
  #ringsAt: number | null = null;
  #cancelTimer: CancelTimer = () => {};
  #phase: ExchangePhase | 'over' = 'connect';
  #permit: SocketPermit | null = null;
  /** `null`: it has no socket yet. */
  #request: ClientRequest | null = null;
  #socket: Socket | null = null;
  #reusedSocket = false;
  #interimResponses = 0;
  #body: IncomingMessage | null = null;
  /** Bytes that had come over the connection when it was last looked at. */
  #bytesSeen = 0;

  constructor(attempt: TransportAttempt, shared: Shared, number: number) {
    const { promise, resolve, reject } = Promise.withResolvers<UpstreamResponse>();
    this.response = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    this.attempt = attempt;
    this.#shared = shared;
    this.#number = number;
    this.#totalEndsAt = shared.clock.monotonic() + (attempt.timeouts.totalMs ?? Infinity);
    this.#limit('connectMs');
    shared.live.set(number, this);
    if (attempt.signal.aborted) this.abort();
    else attempt.signal.addEventListener('abort', this);
  }

  /** Waits for its permit, then goes through the proxy. */
  begin(): void {
    if (this.isOver) return;
    const go = (): void => this.#shared.proxy(this);
    this.#permit = this.attempt.line?.(go) ?? null;
    if (this.#permit === null) go();
    if (this.isOver) this.#permit?.end();
  }

  get isOver(): boolean {
    return this.#phase === 'over';
  }

  /** The abort signal fired; as a listener object, which saves a closure per call. */
  handleEvent(): void {
    this.abort();
  }

  abort(): void {
    this.#fail('aborted', null);
  }

  onRequest(request: ClientRequest): void {
    if (this.isOver) {
      request.destroy();
      return;
    }
    const { socket } = request;
    if (socket === null) return;
    this.#request = request;
    this.#socket = socket;
    this.#reusedSocket = request.reusedSocket || !socket.connecting;
    this.#bytesSeen = socket.bytesRead;
    request.on('information', () => {
      if (++this.#interimResponses > maxInterimResponses) this.#fail('invalid', null);
    });
    request.on('upgrade', (_response, upgraded) => {
      upgraded.destroy();
      this.#fail('invalid', null);
    });
    // Neither an unasked 101 nor a destroyed request ends in an error event; `close` always comes.
    request.on('close', () => {
      if (this.#phase === 'connect' || this.#phase === 'sent') this.#fail(faultOf(null, this.#phase), null);
    });
    if (this.#reusedSocket) this.#onConnected();
    else {
      const connected = socket instanceof TLSSocket ? 'secureConnect' : 'connect';
      socket.once(connected, () => this.#onConnected());
    }
  }

  #onConnected(): void {
    const { hold = null } = this.attempt;
    if (hold === null) this.#onReady();
    else void hold.then(() => this.#onReady());
  }

  /**
   * The requests of one turn of the event loop are written one right after the other, at its end: each write to an upstream that sleeps
   * wakes it up, which costs more than the write, and of writes that follow each other only the first one does.
   */
  #onReady(): void {
    if (this.#phase !== 'connect') return;
    this.attempt.onReady?.();
    const shared = this.#shared;
    if (shared.ready.push(this) > 1) return;
    setImmediate(() => {
      const { ready } = shared;
      shared.ready = [];
      for (const exchange of ready) exchange.#write();
    });
  }

  /** Head and body leave in one call, so that those of a small request leave in one packet. */
  #write(): void {
    const { attempt } = this;
    if (this.#phase !== 'connect') return;
    this.#phase = 'sent';
    this.#limit('headMs');
    attempt.onSent?.();
    try {
      if (attempt.body === null || attempt.body.length === 0) this.#request?.end();
      else if (attempt.body.length <= partBytes) this.#request?.end(attempt.body);
      else this.#writeFrom(attempt.body, 0);
    } catch (error) {
      this.onError(error);
    }
  }

  /** To an upstream that refuses a large body before it has read all, nothing more is sent. */
  #writeFrom(body: Buffer, from: number): void {
    const request = this.#request;
    const isRefused = this.#phase === 'body' && (this.#body?.statusCode ?? 0) >= 400;
    if (request === null || this.isOver || isRefused) return;
    const part = body.subarray(from, from + partBytes);
    if (from + part.length === body.length) request.end(part);
    else request.write(part, () => setImmediate(() => this.#writeFrom(body, from + part.length)));
  }

  onResponse(response: IncomingMessage): void {
    response.on('error', (error) => this.onError(error));
    if (this.isOver) {
      response.destroy();
      return;
    }
    const status = response.statusCode ?? 0;
    // A response to nothing: pushed on a kept connection while the request was held back. It is somebody else's.
    if (this.#phase === 'connect' || this.#isGoodbye(status, response)) {
      this.#phase = 'connect';
      this.onError(null);
      return;
    }
    if (status < 200 || status > 599 || response.rawHeaders.length >= maxFields * 2) {
      this.#fail('invalid', null);
      return;
    }
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
    this.#resolve({
      head: { status, rawFields: response.rawHeaders },
      body: bodyless ? Readable.from([]) : response,
    });
  }

  /**
   * An upstream that gives up a connection on which no request came may say so with a 408, and the next request crosses it: it has read
   * nothing of that (RFC 9110 §15.5.9). A 408 that took longer may be the end of a call that ran.
   */
  #isGoodbye(status: number, { headers }: IncomingMessage): boolean {
    const leftMs = this.#stageEndsAt - this.#shared.clock.monotonic();
    const isAtOnce = this.attempt.timeouts.headMs - leftMs < goodbyeMs;
    return status === 408 && headers.connection === 'close' && this.#reusedSocket && isAtOnce;
  }

  onError(error: unknown): void {
    if (this.#phase === 'over') return;
    // Bytes after a complete message are not part of it; Node has closed the connection that they came on.
    if (this.#body?.complete === true) return;
    this.#fail(faultOf(error, this.#phase), codeOf(error));
  }

  /** The limit of the next stage counts from now: of connecting, of the response's head, of silence within the body. */
  #limit(stage: 'connectMs' | 'headMs' | 'idleMs'): void {
    this.#stageEndsAt = this.#shared.clock.monotonic() + this.attempt.timeouts[stage];
    this.#setTimer();
  }

  #setTimer(): void {
    const { clock } = this.#shared;
    const now = clock.monotonic();
    const lookAt = this.#phase === 'body' ? now + this.attempt.timeouts.idleMs / looksPerIdle : Infinity;
    const at = Math.max(now + 1, Math.min(lookAt, this.#stageEndsAt, this.#totalEndsAt));
    // One that rings earlier sets the next.
    if (this.#ringsAt !== null && this.#ringsAt <= at) return;
    this.#cancelTimer();
    this.#ringsAt = at;
    this.#cancelTimer = clock.after(at - now, () => this.#onTimer());
  }

  #onTimer(): void {
    this.#ringsAt = null;
    const now = this.#shared.clock.monotonic();
    if (this.#phase === 'body' && this.#hasMoved()) this.#stageEndsAt = now + this.attempt.timeouts.idleMs;
    if (now >= Math.min(this.#stageEndsAt, this.#totalEndsAt)) this.#fail('timeout', null);
    else this.#setTimer();
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

  #fail(kind: TransportFault, code: string | null): void {
    const phase = this.#phase;
    if (phase === 'over') return;
    // Before the head is there, any byte is one of the response.
    const hasBegun = (this.#socket?.bytesRead ?? 0) !== this.#bytesSeen;
    const reusedSocket = this.#reusedSocket;
    const stale = kind === 'reset' && phase === 'sent' && reusedSocket && !hasBegun;
    const neverSent = phase === 'connect';
    const error = new TransportError({ kind, phase, neverSent, reusedSocket, stale, code });
    this.#over();
    if (this.#body === null) {
      if (stale) dropIdle(this.attempt);
      this.#reject(error);
      this.#request?.destroy();
    } else {
      this.#body.destroy(error);
    }
    this.#socket?.destroy();
  }

  #over(): void {
    if (this.#phase === 'over') return;
    this.#phase = 'over';
    this.#cancelTimer();
    this.attempt.signal.removeEventListener('abort', this);
    this.#permit?.end();
    this.#shared.live.delete(this.#number);
  }
}

/** Closes the idle connections of an origin: whatever closed one of them has probably closed the others as well. */
function dropIdle({ agent, origin }: TransportAttempt): void {
  const { hostname, port } = parsedOrigin(origin);
  for (const [key, sockets] of Object.entries(agent.freeSockets)) {
    if (!key.startsWith(`${hostname}:${port}:`)) continue;
    for (const socket of sockets ?? []) socket.destroy();
  }
}
