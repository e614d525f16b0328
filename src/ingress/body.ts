/**
 * Reads request bodies into memory, within bounds.
 *
 * Owns: the bounds per call, per workspace and of the process, and giving the bytes back.
 * Does not own: answering, and the client's connection.
 * Invariant: bytes held are counted before they are kept and given back exactly once; nothing is read beyond a bound.
 */
import type { IncomingMessage } from 'node:http';
import type { CallBody } from '../call.ts';
import type { CancelTimer, Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { OpenCall } from './connections.ts';

/** Bytes of heads and bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly share: number;
  readonly #byOwner = new Map<string, number>();
  #bodies = 0;
  #heads = 0;

  /**
   * @param limit bytes; above it calls are refused with `overloaded`.
   * @param maxBody bytes; one body of this size always fits an owner's share.
   */
  constructor(limit: number, maxBody: number) {
    this.limit = limit;
    this.share = Math.max(Math.floor(limit / 2), maxBody);
  }

  /** Counts the head of a call whose owner is not known yet, whether it fits or not: it is in memory already. */
  takeHead(bytes: number): void {
    this.#heads += bytes;
  }

  /** Counts a head as this owner's; false (and nothing counted) when the owner's share is used up. */
  assignHead(bytes: number, owner: string): boolean {
    if (this.#of(owner) + bytes > this.share) return false;
    this.#byOwner.set(owner, this.#of(owner) + bytes);
    return true;
  }

  /** Gives a head back; `owner` is `null` when none was found. */
  giveHead(bytes: number, owner: string | null): void {
    this.#heads -= bytes;
    if (owner !== null) this.#giveOf(bytes, owner);
  }

  /** Bytes held now, heads and bodies. */
  get held(): number {
    return this.#heads + this.#bodies;
  }

  /** Bytes of bodies held now. */
  get bodies(): number {
    return this.#bodies;
  }

  /** True when `bytes` more of this owner would fit now. */
  fits(bytes: number, owner: string): boolean {
    return this.held + bytes <= this.limit && this.#of(owner) + bytes <= this.share;
  }

  /** Counts `bytes` as held; false (and nothing counted) when they do not fit. */
  take(bytes: number, owner: string): boolean {
    if (!this.fits(bytes, owner)) return false;
    this.#bodies += bytes;
    this.#byOwner.set(owner, this.#of(owner) + bytes);
    return true;
  }

  give(bytes: number, owner: string): void {
    this.#bodies -= bytes;
    this.#giveOf(bytes, owner);
  }

  #giveOf(bytes: number, owner: string): void {
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
  /** The refusal of a call whose bytes do not fit. */
  readonly refuseBytes: () => { readonly detail: string; readonly retryInMs: number };
}

/** Bytes of a request's target and fields. Node keeps them as text, one byte a character, while the call is open. */
export function headBytes({ url = '', rawHeaders }: Pick<IncomingMessage, 'url' | 'rawHeaders'>): number {
  let bytes = url.length;
  for (const text of rawHeaders) bytes += text.length;
  return bytes;
}

/** True when the head announces a body, even of unknown length. */
export const announcesBody = (request: IncomingMessage): boolean =>
  request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0;

/** A body of which fewer bytes come within this time is given up: slower than 1 KiB a second. */
const leastSpeed = { bytes: 30 * 1024, withinMs: 30_000 } as const;

/** What all readers share. */
export interface BodyReaderParts {
  readonly bounds: BodyBounds;
  readonly clock: Pick<Clock, 'monotonic' | 'after'>;
  /** True when the client sent `Expect: 100-continue` and waits for our word. */
  readonly awaitsContinue: (open: OpenCall) => boolean;
}

/** One request's body, read on demand; head and body count as held until they are released. */
export class BodyReader {
  readonly #open: OpenCall;
  readonly #parts: BodyReaderParts;
  #reading: Promise<CallBody> | null = null;
  readonly #headBytes: number;
  #owner: string | null = null;
  #taken = 0;
  #released = false;

  constructor(open: OpenCall, parts: BodyReaderParts) {
    this.#open = open;
    this.#parts = parts;
    this.#headBytes = headBytes(open.request);
    parts.bounds.heldBytes.takeHead(this.#headBytes);
  }

  /** See `Call.readBody`. */
  read(owner: string): Promise<CallBody> {
    if (this.#reading !== null) return this.#reading;
    this.#reading = this.#start(owner);
    return this.#reading;
  }

  /** Gives the held bytes back; later calls do nothing. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    const { heldBytes } = this.#parts.bounds;
    heldBytes.giveHead(this.#headBytes, this.#owner);
    if (this.#owner !== null) heldBytes.give(this.#taken, this.#owner);
    this.#taken = 0;
  }

  async #start(owner: string): Promise<CallBody> {
    const { request, gone } = this.#open;
    const { bounds, clock } = this.#parts;
    gone.throwIfAborted();
    if (!bounds.heldBytes.assignHead(this.#headBytes, owner)) throw this.#overloaded();
    this.#owner = owner;
    const announced = Number(request.headers['content-length'] ?? 0);
    if (announced > bounds.maxBodyBytes) throw new Refusal('body_too_large');
    if (!bounds.heldBytes.fits(announced, owner)) throw this.#overloaded();
    if (!announcesBody(request)) return { bytes: Buffer.alloc(0), replayable: true, completeAt: null };
    this.#sendContinue();
    const bytes = await this.#collect(owner);
    const replayable = bytes.length <= bounds.maxReplayBytes;
    return { bytes, replayable, completeAt: clock.monotonic() };
  }

  /** Sends `100 Continue` if the client waits for it. */
  #sendContinue(): void {
    const open = this.#open;
    if (!this.#parts.awaitsContinue(open)) return;
    open.response.writeContinue();
    open.connection.resume();
  }

  /** Counts a chunk before it is kept; the response is why it cannot be. */
  #keep(bytes: number, owner: string): Refusal | null {
    const { maxBodyBytes, heldBytes } = this.#parts.bounds;
    if (this.#taken + bytes > maxBodyBytes) return new Refusal('body_too_large');
    if (this.#released || !heldBytes.take(bytes, owner)) return this.#overloaded();
    this.#taken += bytes;
    return null;
  }

  #overloaded(): Refusal {
    return new Refusal('overloaded', this.#parts.bounds.refuseBytes());
  }

  #collect(owner: string): Promise<Buffer> {
    const { request, gone: clientGone } = this.#open;
    const chunks: Buffer[] = [];
    return new Promise((resolve, reject) => {
      let cancelWatch: CancelTimer = () => {};
      const watch = (before: number): void => {
        cancelWatch = this.#parts.clock.after(leastSpeed.withinMs, () => {
          if (this.#taken - before >= leastSpeed.bytes) return watch(this.#taken);
          refuse(
            new Refusal('request_invalid', { status: 408, detail: 'The request did not arrive in time.' }),
          );
        });
      };
      // Most bodies are complete in this turn.
      const watching = setImmediate(() => watch(this.#taken));
      const stop = (): void => {
        clearImmediate(watching);
        cancelWatch();
        request.off('data', onData).off('end', onEnd);
        clientGone.removeEventListener('abort', onGone);
      };
      const onData = (chunk: Buffer): void => {
        const refusal = this.#keep(chunk.length, owner);
        if (refusal === null) chunks.push(chunk);
        else refuse(refusal);
      };
      const refuse = (refusal: Refusal): void => {
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
