/**
 * Reads request bodies into memory, within bounds.
 *
 * Owns: the bounds per call, per workspace and of the process, and giving the bytes back.
 * Does not own: answering, and the client's connection.
 * Invariant: bytes held are counted before they are kept and given back exactly once; nothing is read beyond a bound.
 */
import type { IncomingMessage } from 'node:http';
import type { CancelTimer, Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { OpenCall } from './connections.ts';

/** Bytes of heads and bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly share: number;
  readonly #byOwner = new Map<string, number>();
  /** Bytes held now, heads and bodies. */
  held = 0;
  /** Bytes of bodies held now. */
  bodies = 0;

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
    this.held += bytes;
  }

  /** Counts a head that is held already as this owner's; false (and nothing counted) when the owner's share is used up. */
  assign(bytes: number, owner: string): boolean {
    const own = this.#of(owner) + bytes;
    if (own > this.share) return false;
    this.#byOwner.set(owner, own);
    return true;
  }

  /** True when `bytes` more of this owner would fit now. */
  fits(bytes: number, owner: string): boolean {
    return this.held + bytes <= this.limit && this.#of(owner) + bytes <= this.share;
  }

  /** Counts bytes of a body as held; false (and nothing counted) when they do not fit. */
  take(bytes: number, owner: string): boolean {
    if (this.held + bytes > this.limit || !this.assign(bytes, owner)) return false;
    this.held += bytes;
    this.bodies += bytes;
    return true;
  }

  /** Gives a call's bytes back; `owner` is `null` when none was found. */
  give({ head, body }: { readonly head: number; readonly body: number }, owner: string | null): void {
    this.held -= head + body;
    this.bodies -= body;
    if (owner === null) return;
    const left = this.#of(owner) - head - body;
    // Owners that hold nothing are forgotten: the map is as small as what is held.
    if (left > 0) this.#byOwner.set(owner, left);
    else this.#byOwner.delete(owner);
  }

  #of(owner: string): number {
    return this.#byOwner.get(owner) ?? 0;
  }
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

const tooSlow = (): Refusal =>
  new Refusal('request_invalid', { status: 408, detail: 'The request did not arrive in time.' });

/**
 * The whole body of a request. `keep` counts each chunk before it is kept, or says why it cannot be.
 * Rejects with that refusal, with 408 where the body is too slow, or with the reason of `gone`.
 */
export const collectBody = (
  { request, gone }: Pick<OpenCall, 'request' | 'gone'>,
  keep: (bytes: number) => Refusal | null,
  clock: Pick<Clock, 'after'>,
): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let lately = 0;
    const watch = (): CancelTimer =>
      clock.after(leastSpeed.withinMs, () => {
        if (lately < leastSpeed.bytes) return refuse(tooSlow());
        lately = 0;
        cancelWatch = watch();
      });
    let cancelWatch = watch();
    const stop = (): void => {
      cancelWatch();
      request.off('data', onData).off('end', onEnd);
      gone.removeEventListener('abort', onGone);
    };
    const onData = (chunk: Buffer): void => {
      const refusal = keep(chunk.length);
      if (refusal !== null) return refuse(refusal);
      lately += chunk.length;
      chunks.push(chunk);
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
      reject(gone.reason as unknown);
    };
    gone.addEventListener('abort', onGone);
    request.on('data', onData).on('end', onEnd);
  });
