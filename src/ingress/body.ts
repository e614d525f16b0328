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
import type { OpenCall } from './connections.ts';

/** Bytes of request bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly share: number;
  readonly #byOwner = new Map<string, number>();
  #held = 0;

  /**
   * @param limit bytes; above it calls are refused with `overloaded`.
   * @param maxBody bytes; one body of this size always fits an owner's share.
   */
  constructor(limit: number, maxBody: number) {
    this.limit = limit;
    this.share = Math.max(Math.floor(limit / 2), maxBody);
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

/** What all readers share. */
export interface BodyReaderDeps {
  readonly bounds: BodyBounds;
  readonly clock: Pick<Clock, 'monotonic'>;
  /** True when the client sent `Expect: 100-continue` and waits for our word. */
  readonly awaitsContinue: (open: OpenCall) => boolean;
}

/** One request's body: read on demand, held until released. */
export class BodyReader {
  readonly #open: OpenCall;
  readonly #deps: BodyReaderDeps;
  #reading: Promise<CallBody> | null = null;
  #owner = '';
  #taken = 0;
  #released = false;

  constructor(open: OpenCall, deps: BodyReaderDeps) {
    this.#open = open;
    this.#deps = deps;
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
    this.#deps.bounds.heldBytes.give(this.#taken, this.#owner);
    this.#taken = 0;
  }

  async #start(): Promise<CallBody> {
    const { request, gone } = this.#open;
    const { bounds, clock } = this.#deps;
    gone.throwIfAborted();
    const announced = Number(request.headers['content-length'] ?? 0);
    if (announced > bounds.maxBodyBytes) throw new Refusal('body_too_large');
    if (!bounds.heldBytes.fits(announced, this.#owner)) throw overloaded();
    if (!announcesBody(request)) return { bytes: Buffer.alloc(0), replayable: true, completeAt: null };
    this.#sendContinue();
    const bytes = await this.#collect();
    const replayable = bytes.length <= bounds.maxReplayBytes;
    return { bytes, replayable, completeAt: clock.monotonic() };
  }

  /** Sends `100 Continue` if the client waits for it. */
  #sendContinue(): void {
    const open = this.#open;
    if (!this.#deps.awaitsContinue(open)) return;
    open.response.writeContinue();
    open.connection.resume();
  }

  /** Counts a chunk before it is kept; the answer is why it cannot be. */
  #keep(bytes: number): Refusal | null {
    const { maxBodyBytes, heldBytes } = this.#deps.bounds;
    if (this.#taken + bytes > maxBodyBytes) return new Refusal('body_too_large');
    if (this.#released || !heldBytes.take(bytes, this.#owner)) return overloaded();
    this.#taken += bytes;
    return null;
  }

  #collect(): Promise<Buffer> {
    const { request, gone: clientGone } = this.#open;
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
