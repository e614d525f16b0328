/**
 * One sending and its response, from the first byte out to the last byte in.
 *
 * Owns: phases, abort, and the judgement whether a response may be passed on. Does not own: the proxy (`proxy-adapter.ts`), limits
 * in time (`exchange-limits.ts`), sending again. Keeps: settles exactly once; whatever happens before the head rejects, whatever
 * happens after it destroys the body with an error; one request is written at most once; when the exchange is over no timer,
 * listener, permit or half-read socket of it is left.
 */
import type { ClientRequest, IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { TLSSocket } from 'node:tls';
import type { UpstreamResponse } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';
import { ExchangeLimits, type Limited } from './exchange-limits.ts';
import {
  prepared,
  type Proxied,
  type ProxiedRequest,
  type Proxy,
  type ProxyableRequest,
} from './proxy-adapter.ts';
import type { SocketPermit } from './socket-permits.ts';
import { TransportError, codeOf, faultOf } from './transport-error.ts';
import type { ExchangePhase, TransportFault } from './transport-error.ts';
import type { ReadyRequest, WriteBatch } from './write-batch.ts';

/** Interim responses (1xx) taken before an upstream counts as broken. */
const maxInterimResponses = 16;

/** Node's parser keeps 1,000 fields and drops the rest without a word, framing included (nodejs/node#65010). */
const maxFields = 1000;

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

/** What all exchanges share. */
export interface ExchangeParts {
  readonly clock: Clock;
  readonly proxy: Proxy;
  readonly writes: WriteBatch;
  /** Called once when nothing of the exchange is left. */
  readonly onOver: () => void;
}

/** Connections that were open before: the next request on them is exposed to a close that is already under way. */
const established = new WeakSet<Socket>();

export class Exchange implements Limited, Proxied, ReadyRequest {
  /** Resolves at the response's head, rejects with a {@link TransportError}. */
  readonly response: Promise<UpstreamResponse>;
  #resolve: (response: UpstreamResponse) => void = () => {};
  #reject: (error: TransportError) => void = () => {};
  readonly attempt: TransportAttempt;
  readonly #parts: ExchangeParts;
  readonly #limits: ExchangeLimits;
  #phase: ExchangePhase | 'over' = 'connect';
  #permit: SocketPermit | null = null;
  /** `null` = the proxy has not been given it. */
  #request: ProxiedRequest | null = null;
  #reusedSocket = false;
  #interimResponses = 0;
  #socket: Socket | null = null;
  #body: IncomingMessage | null = null;
  /** Bytes that had come over the connection when it was last looked at. */
  #bytesSeen = 0;

  constructor(attempt: TransportAttempt, parts: ExchangeParts) {
    this.attempt = attempt;
    this.#parts = parts;
    this.response = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#limits = new ExchangeLimits(parts.clock, attempt.timeouts, this);
    if (attempt.signal.aborted) this.#fail('aborted', null);
    else attempt.signal.addEventListener('abort', this);
  }

  /** Waits for its permit, then goes through the proxy. */
  begin(): void {
    if (this.isOver) return;
    const go = (): void => {
      this.#request = this.#parts.proxy(this);
    };
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

  /** The request has a socket; it may still be connecting. */
  onRequest(request: ClientRequest): void {
    if (this.isOver) {
      request.destroy();
      return;
    }
    const { socket } = request;
    if (socket === null) return;
    this.#socket = socket;
    this.#reusedSocket = request.reusedSocket || established.has(socket);
    request.on('information', () => this.#onInterim());
    request.on('upgrade', (_response, upgraded) => {
      upgraded.destroy();
      this.#fail('invalid', null);
    });
    request.on('close', () => this.#onRequestClosed());
    this.#bytesSeen = socket.bytesRead;
    if (this.#reusedSocket) {
      this.#onConnected();
    } else {
      socket.once(socket instanceof TLSSocket ? 'secureConnect' : 'connect', () => {
        established.add(socket);
        this.#onConnected();
      });
    }
  }

  /** The response's head is there. */
  onResponse(response: IncomingMessage): void {
    if (this.isOver) {
      response.destroy();
      return;
    }
    // A response to nothing: pushed on a kept connection while the request was held back. It is somebody else's.
    if (this.#phase === 'connect') {
      this.onError(null);
      return;
    }
    const status = response.statusCode ?? 0;
    if (status < 200 || status > 599 || response.rawHeaders.length >= maxFields * 2) {
      this.#fail('invalid', null);
      return;
    }
    this.#phase = 'body';
    this.#body = response;
    const over = (): void => this.#over();
    response.on('end', over).on('close', over);
    this.#bytesSeen = this.#socket?.bytesRead ?? 0;
    this.#limits.awaitBody();
    const bodyless = this.attempt.method === 'HEAD' || status === 204 || status === 304;
    if (bodyless) response.resume();
    this.#resolve({
      head: { status, rawFields: response.rawHeaders },
      body: bodyless ? Readable.from([]) : response,
    });
  }

  /** Node or the proxy reported an error; a second report changes nothing. */
  onError(error: unknown): void {
    if (this.#phase === 'over') return;
    // Bytes after a complete message are not part of it; Node has closed the connection that they came on.
    if (this.#body?.complete === true) return;
    this.#fail(faultOf(error, this.#phase), codeOf(error));
  }

  onLimit(): void {
    this.#fail('timeout', null);
  }

  /**
   * Bytes are counted on the socket instead of listened to: a `data` listener on the body would take its flow control
   * away. Bytes that lie unread are the reader's slowness, not the upstream's silence.
   */
  hasMoved(): boolean {
    const bytes = this.#socket?.bytesRead ?? 0;
    const moved = bytes !== this.#bytesSeen || (this.#body?.readableLength ?? 0) > 0;
    this.#bytesSeen = bytes;
    return moved;
  }

  /** Before the head is there, any byte is one of the response; counted on the socket, which costs no listener. */
  get #responseHasBegun(): boolean {
    return (this.#socket?.bytesRead ?? 0) !== this.#bytesSeen;
  }

  #onConnected(): void {
    const { hold } = this.attempt;
    if (hold === undefined || hold === null) this.#onReady();
    else void hold.then(() => this.#onReady());
  }

  #onReady(): void {
    if (this.#phase !== 'connect') return;
    this.attempt.onReady?.();
    this.#parts.writes.add(this);
  }

  /** The end of the turn: the request's bytes go out, unless it has ended meanwhile. */
  write(): void {
    if (this.#phase !== 'connect') return;
    this.#phase = 'sent';
    this.#limits.awaitHead();
    this.attempt.onSent?.();
    try {
      this.#request?.write(this.attempt.body);
    } catch (error) {
      this.onError(error);
    }
  }

  #onInterim(): void {
    if (++this.#interimResponses > maxInterimResponses) this.#fail('invalid', null);
  }

  /** Neither an unasked 101 nor a destroyed request ends in an error event; `close` always comes. */
  #onRequestClosed(): void {
    if (this.#phase === 'connect' || this.#phase === 'sent') this.#fail(faultOf(null, this.#phase), null);
  }

  #fail(kind: TransportFault, code: string | null): void {
    const phase = this.#phase;
    if (phase === 'over') return;
    const stale = kind === 'reset' && phase === 'sent' && this.#reusedSocket && !this.#responseHasBegun;
    const error = new TransportError({
      kind,
      phase,
      neverSent: phase === 'connect',
      reusedSocket: this.#reusedSocket,
      stale,
      code,
    });
    const body = this.#body;
    this.#over();
    if (body === null) {
      if (stale) dropIdle(this.attempt);
      this.#reject(error);
      this.#request?.abandon();
    } else {
      body.destroy(error);
    }
    this.#socket?.destroy();
  }

  #over(): void {
    if (this.#phase === 'over') return;
    this.#phase = 'over';
    this.#limits.stop();
    this.attempt.signal.removeEventListener('abort', this);
    this.#permit?.end();
    this.#parts.onOver();
  }
}

/** Closes the idle connections of an origin: whatever closed one of them has probably closed the others as well. */
function dropIdle({ agent, origin }: TransportAttempt): void {
  const { hostname, port } = prepared(origin);
  for (const [key, sockets] of Object.entries(agent.freeSockets)) {
    if (!key.startsWith(`${hostname}:${port}:`)) continue;
    for (const socket of sockets ?? []) socket.destroy();
  }
}
