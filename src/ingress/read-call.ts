/**
 * A request that is served as a {@link Call}: its head has passed the guard, and it has a route.
 *
 * Owns: what the journey sees of it, and what is held for it until nobody needs it any more. Does not own: what the call asks for.
 * Invariants: fields and request target are passed on as received; bytes are counted before they are kept and given back exactly once;
 * nothing is read beyond a bound.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Call, CallBody, CallFacts, Outcome } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import { Refusal } from '../errors.ts';
import type { RefusedRequest } from '../telemetry/events.ts';
import { OpenCall, type Connections } from './connections.ts';
import type { Overload, OverloadOptions } from './overload.ts';

export interface DataServerOptions extends OverloadOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: ServerSettings;
  /** The journey of a call. */
  readonly handle: (call: Call) => Promise<Outcome>;
  /** What `GET /activity` shows to its caller, as a JSON value. */
  readonly activity: (call: Call) => Promise<unknown>;
  /** Lower-case names of the fields in which credentials are injected; asked for every request. */
  readonly credentialFields: () => ReadonlySet<string>;
  /** How long the rest of an unread request body is thrown away before the connection ends, milliseconds. Default 1,000. */
  readonly lingerMs?: number;
  /** Called for every fault of our own, once. */
  readonly onBug: (error: unknown) => void;
  readonly onRequestRefused: (refused: RefusedRequest) => void;
}

/** What all requests of the data port share. */
export interface ServeParts extends Required<DataServerOptions> {
  readonly heldBytes: HeldBytes;
  readonly connections: Connections;
  readonly overload: Overload;
  /** The replica drains: connections end with their response. */
  isDraining: boolean;
}

/** Bytes of heads and bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly #share: number;
  readonly #byOwner = new Map<string, number>();
  /** Bytes held now, heads and bodies. */
  held = 0;
  /** Bytes of bodies held now. */
  bodies = 0;

  /** @param maxBody bytes; one body of this size always fits an owner's share. */
  constructor(limit: number, maxBody: number) {
    this.limit = limit;
    this.#share = Math.max(Math.floor(limit / 2), maxBody);
  }

  /** Counts a head that is held already as this owner's; false (and nothing counted) when the owner's share is used up. */
  assign(bytes: number, owner: string): boolean {
    const own = this.#of(owner) + bytes;
    if (own > this.#share) return false;
    this.#byOwner.set(owner, own);
    return true;
  }

  /** True when `bytes` more of this owner would fit now. */
  fits(bytes: number, owner: string): boolean {
    return this.held + bytes <= this.limit && this.#of(owner) + bytes <= this.#share;
  }

  /** Counts bytes of a body as held; false (and nothing counted) when they do not fit. */
  take(bytes: number, owner: string): boolean {
    if (!this.fits(bytes, owner)) return false;
    this.assign(bytes, owner);
    this.held += bytes;
    this.bodies += bytes;
    return true;
  }

  /** Gives a call's bytes back; `owner` is `null` when none was found. */
  give(head: number, body: number, owner: string | null): void {
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
export function headBytes({ url = '', rawHeaders }: IncomingMessage): number {
  let bytes = url.length;
  for (const text of rawHeaders) bytes += text.length;
  return bytes;
}

/** True when the head announces a body, even of unknown length. */
export const announcesBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;

/** 32 hex digits. */
export const newRequestId = (random: Random): string => random.hex(16);

const nothingKnown: CallFacts = {};
const noBody: CallBody = { bytes: Buffer.alloc(0), replayable: true, completeAt: null };

/** A body of which fewer bytes come within this time is given up: slower than 1 KiB a second. */
const leastSpeed = { bytes: 30 * 1024, withinMs: 30_000 } as const;

/** A call, and what the ingress stage keeps of it until it ends: one object. */
export class ReadCall extends OpenCall implements Call {
  readonly receivedAt: number;
  readonly form: Call['form'];
  readonly method = this.request.method ?? 'GET';
  readonly rawUrl = this.request.url ?? '/';
  readonly rawFields: readonly string[] = this.request.rawHeaders;
  readonly clientGone = this.gone;
  /** What the journey reported so far, for a refusal's fields. */
  known = nothingKnown;
  readonly #parts: ServeParts;
  readonly #headBytes = headBytes(this.request);
  #bodyBytes = 0;
  /** Whom the bytes count for; `null` while that is not known. */
  #owner: string | null = null;
  /** Who still needs what is held of the call: its client, and its repeats. */
  #holders = 1;

  constructor(response: ServerResponse, form: Call['form'], parts: ServeParts) {
    super(parts.connections.on(response.req.socket), response, newRequestId(parts.random));
    this.receivedAt = parts.clock.monotonic();
    this.form = form;
    this.#parts = parts;
    // Whether it fits or not: it is in memory already.
    parts.heldBytes.held += this.#headBytes;
  }

  readBody(owner: string): CallBody | Promise<CallBody> {
    const { request, gone } = this;
    const { heldBytes, settings } = this.#parts;
    gone.throwIfAborted();
    if (!heldBytes.assign(this.#headBytes, owner)) throw this.#overloaded();
    this.#owner = owner;
    if (!announcesBody(request)) return noBody;
    const announced = Number(request.headers['content-length'] ?? 0);
    if (announced > settings.maxBodyBytes) throw this.#tooLarge();
    if (!heldBytes.fits(announced, owner)) throw this.#overloaded();
    this.connection.askForBody(this);
    return this.#bodyOf(owner);
  }

  async #bodyOf(owner: string): Promise<CallBody> {
    const { clock, settings } = this.#parts;
    const bytes = await this.#collectBody(owner);
    return { bytes, replayable: bytes.length <= settings.maxReplayBytes, completeAt: clock.monotonic() };
  }

  authenticated(): void {
    this.connection.isAuthenticated = true;
  }

  report(known: CallFacts): void {
    this.known = known;
  }

  retain(): () => void {
    let isHeld = true;
    this.#holders += 1;
    return () => {
      if (isHeld) this.release();
      isHeld = false;
    };
  }

  /** One of those who need it does so no longer. Behind the last of them the call has ended, and what was held for it is given back. */
  release(): void {
    this.#holders -= 1;
    if (this.#holders > 0) return;
    const { heldBytes, connections } = this.#parts;
    heldBytes.give(this.#headBytes, this.#bodyBytes, this.#owner);
    connections.openCalls -= 1;
  }

  /** Rejects with a refusal, 408 where the body is too slow, or with the reason of `gone`. */
  #collectBody(owner: string): Promise<Buffer> {
    const { request, gone } = this;
    const { clock } = this.#parts;
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let lately = 0;
      const stop = (): void => {
        cancelWatch();
        request.off('data', onData).off('end', onEnd);
        gone.removeEventListener('abort', onGone);
      };
      const refuse = (refusal: Refusal): void => {
        stop();
        request.pause();
        reject(refusal);
      };
      const watch = () =>
        clock.after(leastSpeed.withinMs, () => {
          const detail = 'The request did not arrive in time.';
          if (lately < leastSpeed.bytes)
            return refuse(new Refusal('request_invalid', { status: 408, detail }));
          lately = 0;
          cancelWatch = watch();
        });
      let cancelWatch = watch();
      const onData = (chunk: Buffer): void => {
        const refusal = this.#keep(chunk.length, owner);
        if (refusal !== null) return refuse(refusal);
        lately += chunk.length;
        chunks.push(chunk);
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
  }

  /** Counts a chunk before it is kept; returns why it cannot be. */
  #keep(bytes: number, owner: string): Refusal | null {
    const { heldBytes, settings } = this.#parts;
    if (this.#bodyBytes + bytes > settings.maxBodyBytes) return this.#tooLarge();
    if (this.#holders === 0 || !heldBytes.take(bytes, owner)) return this.#overloaded();
    this.#bodyBytes += bytes;
    return null;
  }

  #tooLarge(): Refusal {
    const { maxBodyBytes } = this.#parts.settings;
    return new Refusal('body_too_large', {
      detail: `The request body is above ${maxBodyBytes} bytes, which the operator can raise (\`server.maxBodyBytes\`).`,
    });
  }

  #overloaded(): Refusal {
    return this.#parts.overload.refuse('bytes');
  }
}
