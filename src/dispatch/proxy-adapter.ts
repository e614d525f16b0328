/**
 * What http-proxy-middleware gets instead of the client's request, its body and its response: one throw-away object per
 * attempt for all three.
 *
 * Owns: the surface that the proxy touches. Keeps: the client's own request and response never enter the proxy, so
 * dropping an attempt cannot destroy them, and attempts leave no listeners on them. Why no event emitters: the proxy
 * registers five listeners per call, and what three emitters cost is more than what the proxy itself does; only the end
 * of the receiver is ever called.
 */
import type { OutgoingFields } from './fields.policy.ts';

/** The proxy turns a reset into another event when the client's socket is gone; here a reset is a reset. */
const writableSocket = Object.freeze({ writable: true });

type Destination = NodeJS.WritableStream & { readonly destroyed?: boolean };

export class ProxyAdapter {
  readonly method: string;
  /** Empty until the proxy has chosen the target: its path filter parses anything else. Then the raw path and query. */
  url = '';
  readonly headers: OutgoingFields;
  readonly #body: Buffer | null;
  /** Where the body goes; `null` = the proxy has made no request yet. */
  #destination: Destination | null = null;
  #isDestroyed = false;
  #onClose: (() => void)[] = [];

  constructor(
    { method, fields }: { readonly method: string; readonly fields: OutgoingFields },
    body: Buffer | null,
  ) {
    this.method = method;
    this.headers = fields;
    this.#body = body;
  }

  /* As a request. */

  get httpVersion(): string {
    return '1.1';
  }

  get httpVersionMajor(): number {
    return 1;
  }

  get socket(): { readonly writable: boolean } {
    return writableSocket;
  }

  /* As a response: nothing was sent on it, and nothing will be. */

  get headersSent(): boolean {
    return false;
  }

  get finished(): boolean {
    return false;
  }

  get writableFinished(): boolean {
    return false;
  }

  get writableEnded(): boolean {
    return false;
  }

  get destroyed(): boolean {
    return this.#isDestroyed;
  }

  destroy(): this {
    this.#isDestroyed = true;
    return this;
  }

  /** The proxy listens for several events; only the end of the receiver ever happens: {@link abandon}. */
  on(event: string, listener: () => void): this {
    if (event === 'close') this.#onClose.push(listener);
    return this;
  }

  /** Tells the proxy that the receiver is gone; it then destroys its request and response. */
  abandon(): void {
    this.#isDestroyed = true;
    const listeners = this.#onClose;
    this.#onClose = [];
    for (const listener of listeners) listener();
  }

  /* As a body. */

  /** Not a real stream: the proxy reads from one only to follow redirects. The body follows with {@link writeBody}. */
  pipe<T extends Destination>(destination: T): T {
    this.#destination = destination;
    return destination;
  }

  /**
   * Writes the request, which the proxy has made. The whole body is handed over in one call, so that head and body of a small
   * request leave in one packet.
   */
  protected writeBody(): void {
    const destination = this.#destination;
    if (destination === null || destination.destroyed === true) return;
    if (this.#body === null || this.#body.length === 0) destination.end();
    else destination.end(this.#body);
  }
}
