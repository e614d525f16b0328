/**
 * Reads request bodies into memory, within bounds.
 *
 * Owns: the bound per call, the bound of the process, and giving the bytes back.
 * Refuses to own: answering, and the client's connection.
 * Invariant: bytes held are counted before they are kept and given back exactly once; nothing is read beyond a bound.
 */
import type { IncomingMessage } from 'node:http';
import type { CallBody } from '../call.ts';
import { Refusal } from '../errors.ts';

/** Bytes of request bodies that the whole process holds. */
export class HeldBytes {
  readonly limit: number;
  #held = 0;

  /** @param limit bytes; above it calls are refused with `overloaded`. */
  constructor(limit: number) {
    this.limit = limit;
  }

  /** Bytes held now. */
  get held(): number {
    return this.#held;
  }

  /** True when `bytes` more would fit now. */
  fits(bytes: number): boolean {
    return this.#held + bytes <= this.limit;
  }

  /** Counts `bytes` as held; false (and nothing counted) when they do not fit. */
  take(bytes: number): boolean {
    if (!this.fits(bytes)) return false;
    this.#held += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#held -= bytes;
  }
}

/** Bounds on one body, bytes. */
export interface BodyBounds {
  readonly maxBodyBytes: number;
  readonly maxReplayBytes: number;
  readonly heldBytes: HeldBytes;
}

/** True when the head announces a body, even of unknown length. */
export const announcesBody = (request: IncomingMessage): boolean =>
  request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0;

const overloaded = (): Refusal =>
  new Refusal('overloaded', { detail: 'Too many request bodies are held at the moment.' });

/** One request's body: read on demand, held until released. */
export class BodyReader {
  readonly #request: IncomingMessage;
  readonly #bounds: BodyBounds;
  readonly #clientGone: AbortSignal;
  readonly #sendContinue: () => void;
  #reading: Promise<CallBody> | null = null;
  #taken = 0;
  #released = false;

  /** @param sendContinue sends `100 Continue` if the client waits for it; called at most once. */
  constructor(
    request: IncomingMessage,
    bounds: BodyBounds,
    clientGone: AbortSignal,
    sendContinue: () => void,
  ) {
    this.#request = request;
    this.#bounds = bounds;
    this.#clientGone = clientGone;
    this.#sendContinue = sendContinue;
  }

  /** See `Call.readBody`. */
  read(): Promise<CallBody> {
    this.#reading ??= this.#start();
    return this.#reading;
  }

  /** Gives the held bytes back; later calls do nothing. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#bounds.heldBytes.give(this.#taken);
    this.#taken = 0;
  }

  async #start(): Promise<CallBody> {
    this.#clientGone.throwIfAborted();
    const announced = Number(this.#request.headers['content-length'] ?? 0);
    if (announced > this.#bounds.maxBodyBytes) throw new Refusal('body_too_large');
    if (!this.#bounds.heldBytes.fits(announced)) throw overloaded();
    if (!announcesBody(this.#request)) return { bytes: Buffer.alloc(0), replayable: true };
    this.#sendContinue();
    const bytes = await this.#collect();
    return { bytes, replayable: bytes.length <= this.#bounds.maxReplayBytes };
  }

  /** Counts a chunk before it is kept; the answer is why it cannot be. */
  #keep(bytes: number): Refusal | null {
    if (this.#taken + bytes > this.#bounds.maxBodyBytes) return new Refusal('body_too_large');
    if (this.#released || !this.#bounds.heldBytes.take(bytes)) return overloaded();
    this.#taken += bytes;
    return null;
  }

  #collect(): Promise<Buffer> {
    const request = this.#request;
    const clientGone = this.#clientGone;
    const chunks: Buffer[] = [];
    return new Promise((resolve, reject) => {
      const stop = (): void => {
        request.off('data', onData).off('end', onEnd);
        clientGone.removeEventListener('abort', onGone);
      };
      const onData = (chunk: Buffer): void => {
        const refusal = this.#keep(chunk.length);
        if (refusal === null) {
          chunks.push(chunk);
          return;
        }
        stop();
        request.pause();
        reject(refusal);
      };
      const onEnd = (): void => {
        stop();
        const [first] = chunks;
        resolve(chunks.length === 1 && first !== undefined ? first : Buffer.concat(chunks));
      };
      const onGone = (): void => {
        stop();
        reject(clientGone.reason as unknown);
      };
      clientGone.addEventListener('abort', onGone);
      request.on('data', onData).on('end', onEnd);
    });
  }
}
