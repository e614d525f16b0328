/**
 * Reads request bodies into memory, within bounds.
 *
 * Owns: the bounds per call, per workspace and of the process, and giving the bytes back.
 * Refuses to own: answering, and the client's connection.
 * Invariant: bytes held are counted before they are kept and given back exactly once; nothing is read beyond a bound.
 */
import type { IncomingMessage } from 'node:http';
import type { CallBody } from '../call.ts';
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';

/** Bytes of request bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly share: number;
  readonly #byOwner = new Map<string, number>();
  #held = 0;

  /**
   * @param limit bytes; above it calls are refused with `overloaded`.
   * @param largestBody bytes; one body of this size always fits an owner's share.
   */
  constructor(limit: number, largestBody: number) {
    this.limit = limit;
    this.share = Math.max(Math.floor(limit / 2), largestBody);
  }

  /** Bytes held now. */
  get held(): number {
    return this.#held;
  }

  /** True when `bytes` more of this owner would fit now. */
  fits(bytes: number, owner: string): boolean {
    return this.#held + bytes <= this.limit && this.#of(owner) + bytes <= this.share;
  }

  /** Counts `bytes` as held; false (and nothing counted) when they do not fit. */
  take(bytes: number, owner: string): boolean {
    if (!this.fits(bytes, owner)) return false;
    this.#held += bytes;
    this.#byOwner.set(owner, this.#of(owner) + bytes);
    return true;
  }

  give(bytes: number, owner: string): void {
    this.#held -= bytes;
    const left = this.#of(owner) - bytes;
    // Owners that hold nothing are forgotten: the map is as small as what is held.
    if (left > 0) this.#byOwner.set(owner, left);
    else this.#byOwner.delete(owner);
  }

  #of(owner: string): number {
    return this.#byOwner.get(owner) ?? 0;
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

export interface BodyReaderParts {
  readonly request: IncomingMessage;
  readonly bounds: BodyBounds;
  readonly clientGone: AbortSignal;
  readonly clock: Pick<Clock, 'monotonic'>;
  /** Sends `100 Continue` if the client waits for it; called at most once. */
  readonly sendContinue: () => void;
}

/** One request's body: read on demand, held until released. */
export class BodyReader {
  readonly #request: IncomingMessage;
  readonly #bounds: BodyBounds;
  readonly #clientGone: AbortSignal;
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #sendContinue: () => void;
  #reading: Promise<CallBody> | null = null;
  #owner = '';
  #taken = 0;
  #released = false;

  constructor({ request, bounds, clientGone, clock, sendContinue }: BodyReaderParts) {
    this.#request = request;
    this.#bounds = bounds;
    this.#clientGone = clientGone;
    this.#clock = clock;
    this.#sendContinue = sendContinue;
  }

  /** See `Call.readBody`. */
  read(owner: string): Promise<CallBody> {
    if (this.#reading !== null) return this.#reading;
    this.#owner = owner;
    this.#reading = this.#start();
    return this.#reading;
  }

  /** Gives the held bytes back; later calls do nothing. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#bounds.heldBytes.give(this.#taken, this.#owner);
    this.#taken = 0;
  }

  async #start(): Promise<CallBody> {
    this.#clientGone.throwIfAborted();
    const announced = Number(this.#request.headers['content-length'] ?? 0);
    if (announced > this.#bounds.maxBodyBytes) throw new Refusal('body_too_large');
    if (!this.#bounds.heldBytes.fits(announced, this.#owner)) throw overloaded();
    if (!announcesBody(this.#request)) return { bytes: Buffer.alloc(0), replayable: true, completeAt: null };
    this.#sendContinue();
    const bytes = await this.#collect();
    const replayable = bytes.length <= this.#bounds.maxReplayBytes;
    return { bytes, replayable, completeAt: this.#clock.monotonic() };
  }

  /** Counts a chunk before it is kept; the answer is why it cannot be. */
  #keep(bytes: number): Refusal | null {
    if (this.#taken + bytes > this.#bounds.maxBodyBytes) return new Refusal('body_too_large');
    if (this.#released || !this.#bounds.heldBytes.take(bytes, this.#owner)) return overloaded();
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
