/**
 * One sending and its answer, from the first byte out to the last byte in.
 *
 * Owns: phases, limits, abort, and the judgement whether an answer may be passed on. Refuses to own: how the request
 * gets onto the wire (`transport.ts`) and sending again. Keeps: settles exactly once; whatever happens before the head
 * rejects, whatever happens after it destroys the body with an error; when it is over no timer, listener or half-read
 * socket of it is left.
 */
import type { ClientRequest, IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { TLSSocket } from 'node:tls';
import type { UpstreamAnswer } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamTimeouts } from '../config/settings.ts';
import { Alarm } from './alarm.ts';
import type { AlarmOwner } from './alarm.ts';
import { ResponseStandIn } from './stand-ins.ts';
import { TransportError, codeOf, faultOf } from './transport-error.ts';
import type { ExchangePhase, TransportFault } from './transport-error.ts';

/** Interim answers (1xx) taken before an upstream counts as broken. */
const maxInterimAnswers = 16;

/** Node's parser keeps 1,000 fields and drops the rest without a word, framing included (nodejs/node#65010). */
const maxFields = 1000;

/** Silence is looked for this many times per idle limit: it is noticed at most a quarter too late. */
const looksPerIdle = 4;

export interface ExchangeInput {
  readonly method: string;
  readonly timeouts: UpstreamTimeouts;
  readonly signal: AbortSignal;
  /** Nothing is written before it resolves; `null` = at once. */
  readonly hold: Promise<void> | null;
  /** Called once, when the connection is there and the request's bytes go out. Must not throw. */
  readonly onSent: (() => void) | null;
  /** Called once when nothing of the exchange is left. */
  readonly onOver: (exchange: Exchange) => void;
}

/** Connections that were open before: the next request on them is exposed to a close that is already under way. */
const established = new WeakSet<Socket>();

export class Exchange implements AlarmOwner {
  readonly response = new ResponseStandIn();
  /** Resolves at the answer's head, rejects with a {@link TransportError}. */
  readonly answer: Promise<UpstreamAnswer>;
  #resolve: (answer: UpstreamAnswer) => void = () => {};
  #reject: (error: TransportError) => void = () => {};
  readonly #input: ExchangeInput;
  readonly #clock: Clock;
  readonly #alarm: Alarm;
  readonly #totalEndsAt: number;
  #phase: ExchangePhase | 'over' = 'connect';
  #stageEndsAt: number;
  #reusedSocket = false;
  #answerBegan = false;
  #interimAnswers = 0;
  #socket: Socket | null = null;
  #body: IncomingMessage | null = null;
  #bytesSeen = 0;

  constructor(clock: Clock, input: ExchangeInput) {
    this.#clock = clock;
    this.#input = input;
    this.#alarm = new Alarm(clock, this);
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    const now = clock.monotonic();
    this.#totalEndsAt = now + input.timeouts.totalMs;
    this.#stageEndsAt = now + input.timeouts.connectMs;
    if (input.signal.aborted) {
      this.#fail('aborted', null);
      return;
    }
    input.signal.addEventListener('abort', this);
    this.#alarm.notLaterThan(Math.min(this.#stageEndsAt, this.#totalEndsAt), now);
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
    request.on('upgrade', (_answer, upgraded) => {
      upgraded.destroy();
      this.#fail('invalid', null);
    });
    request.on('close', () => this.#onRequestClosed());
    if (this.#reusedSocket) {
      socket.once('data', () => (this.#answerBegan = true));
      this.#onConnected();
    } else {
      socket.once(socket instanceof TLSSocket ? 'secureConnect' : 'connect', () => {
        established.add(socket);
        this.#onConnected();
      });
    }
  }

  /** The answer's head is there. */
  onAnswer(answer: IncomingMessage): void {
    this.#answerBegan = true;
    if (this.isOver) {
      answer.destroy();
      return;
    }
    // An answer to nothing: pushed on a kept connection while the request was held back. It is somebody else's.
    if (this.#phase === 'connect') {
      this.onError(null);
      return;
    }
    const status = answer.statusCode ?? 0;
    if (status < 200 || status > 599 || answer.rawHeaders.length >= maxFields * 2) {
      this.#fail('invalid', null);
      return;
    }
    this.#phase = 'body';
    this.#body = answer;
    answer.once('end', () => this.#over());
    answer.once('close', () => this.#over());
    this.#watchSilence();
    const bodyless = this.#input.method === 'HEAD' || status === 204 || status === 304;
    if (bodyless) answer.resume();
    this.#resolve({
      head: { status, rawFields: answer.rawHeaders },
      body: bodyless ? Readable.from([]) : answer,
    });
  }

  /** Node or the proxy reported an error; a second report changes nothing. */
  onError(error: unknown): void {
    if (this.#phase === 'over') return;
    // Bytes after a complete message are not part of it; Node has closed the connection that they came on.
    if (this.#body?.complete === true) return;
    this.#fail(faultOf(error, this.#phase), codeOf(error));
  }

  due(now: number): number | null {
    if (this.#phase === 'over') return null;
    if (this.#phase === 'body' && this.#bodyMoved()) this.#stageEndsAt = now + this.#input.timeouts.idleMs;
    if (now >= this.#totalEndsAt || now >= this.#stageEndsAt) {
      this.#fail('timeout', null);
      return null;
    }
    const next = Math.min(this.#totalEndsAt, this.#stageEndsAt);
    return this.#phase === 'body' ? Math.min(next, now + this.#lookEveryMs) : next;
  }

  get #lookEveryMs(): number {
    return Math.max(1, this.#input.timeouts.idleMs / looksPerIdle);
  }

  #onConnected(): void {
    if (this.#input.hold === null) this.#onWritten();
    else void this.#input.hold.then(() => this.#onWritten());
  }

  #onWritten(): void {
    if (this.#phase !== 'connect') return;
    this.#phase = 'sent';
    this.#enterStage(this.#input.timeouts.headMs);
    this.#input.onSent?.();
  }

  #enterStage(lengthMs: number): void {
    const now = this.#clock.monotonic();
    this.#stageEndsAt = now + lengthMs;
    this.#alarm.notLaterThan(Math.min(this.#stageEndsAt, this.#totalEndsAt), now);
  }

  #watchSilence(): void {
    this.#bytesSeen = this.#socket?.bytesRead ?? 0;
    this.#enterStage(this.#input.timeouts.idleMs);
    const now = this.#clock.monotonic();
    this.#alarm.notLaterThan(now + this.#lookEveryMs, now);
  }

  /**
   * Bytes are counted on the socket instead of listened to: a `data` listener on the body would take its flow control
   * away. Bytes that lie unread are the reader's slowness, not the upstream's silence.
   */
  #bodyMoved(): boolean {
    const bytes = this.#socket?.bytesRead ?? 0;
    const moved = bytes !== this.#bytesSeen || (this.#body?.readableLength ?? 0) > 0;
    this.#bytesSeen = bytes;
    return moved;
  }

  #onInterim(): void {
    this.#answerBegan = true;
    if (++this.#interimAnswers > maxInterimAnswers) this.#fail('invalid', null);
  }

  /** Neither an unasked 101 nor a destroyed request ends in an error event; `close` always comes. */
  #onRequestClosed(): void {
    if (this.#phase === 'connect' || this.#phase === 'sent') this.#fail(faultOf(null, this.#phase), null);
  }

  #fail(kind: TransportFault, code: string | null): void {
    const phase = this.#phase;
    if (phase === 'over') return;
    const error = new TransportError({
      kind,
      phase,
      neverSent: phase === 'connect',
      reusedSocket: this.#reusedSocket,
      stale: kind === 'reset' && phase === 'sent' && this.#reusedSocket && !this.#answerBegan,
      code,
    });
    const body = this.#body;
    this.#over();
    if (body === null) {
      this.#reject(error);
      this.response.abandon();
    } else {
      body.destroy(error);
    }
    this.#socket?.destroy();
  }

  #over(): void {
    if (this.#phase === 'over') return;
    this.#phase = 'over';
    this.#alarm.stop();
    this.#input.signal.removeEventListener('abort', this);
    this.#input.onOver(this);
  }
}
