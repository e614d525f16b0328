/**
 * What http-proxy-middleware gets instead of the client's request and response: one throw-away pair per attempt.
 *
 * Owns: the surface that the proxy touches. Keeps: the client's own request and response never enter the proxy, so
 * dropping an attempt cannot destroy them, and attempts leave no listeners on them.
 */
import { EventEmitter } from 'node:events';
import type { OutgoingFields } from './fields.policy.ts';

export class RequestStandIn extends EventEmitter {
  readonly method: string;
  /** A constant, because the proxy's path filter parses it; the real path is given through its path rewriting. */
  url = '/';
  readonly headers: OutgoingFields;
  readonly httpVersion = '1.1';
  readonly httpVersionMajor = 1;
  /** The proxy turns a reset into another event when the client's socket is gone; here a reset is a reset. */
  readonly socket = { writable: true };

  constructor(method: string, headers: OutgoingFields) {
    super();
    this.method = method;
    this.headers = headers;
  }
}

export class ResponseStandIn extends EventEmitter {
  readonly headersSent = false;
  readonly finished = false;
  readonly writableFinished = false;
  readonly writableEnded = false;
  destroyed = false;

  destroy(): this {
    this.destroyed = true;
    return this;
  }

  /** Tells the proxy that the receiver is gone; it then destroys its request and answer. */
  abandon(): void {
    this.destroyed = true;
    this.emit('close');
  }
}

/**
 * A buffered body as what the proxy pipes. Piping hands the whole buffer over in one call, so that head and body of a
 * small request leave in one packet. Not a real stream: the proxy reads from one only to follow redirects.
 */
export class BufferedBody {
  readonly #bytes: Buffer | null;
  readonly #hold: Promise<void> | null;

  /** `hold`: nothing is written before it resolves; the connection is made meanwhile. */
  constructor(bytes: Buffer | null, hold: Promise<void> | null = null) {
    this.#bytes = bytes;
    this.#hold = hold;
  }

  pipe<T extends NodeJS.WritableStream>(destination: T): T {
    if (this.#hold === null) this.#write(destination);
    else void this.#hold.then(() => this.#write(destination));
    return destination;
  }

  #write(destination: NodeJS.WritableStream & { readonly destroyed?: boolean }): void {
    if (destination.destroyed === true) return;
    if (this.#bytes === null || this.#bytes.length === 0) destination.end();
    else destination.end(this.#bytes);
  }
}
