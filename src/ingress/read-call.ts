/**
 * A request that is served as a {@link Call}: its head has passed the guard, and it has a route.
 *
 * Owns: what the journey sees of it, and what is held for it until nobody needs it any more. Does not own: what the call asks for.
 * Invariants: fields and request target are passed on as received; bytes are counted before they are kept and given back exactly once.
 */
import type { ServerResponse } from 'node:http';
import type { Call, CallBody, CallFacts } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock, Random } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import { Refusal } from '../errors.ts';
import type { RefusedRequest } from '../telemetry/events.ts';
import { announcesBody, collectBody, headBytes, type HeldBytes } from './body.ts';
import { OpenCall, type Connections } from './connections.ts';
import type { Overload } from './overload.ts';

/** What all requests of the data port share. */
export interface ServeParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: Pick<ServerSettings, 'maxBodyBytes' | 'maxReplayBytes'>;
  readonly heldBytes: HeldBytes;
  readonly connections: Connections;
  readonly overload: Overload;
  /** True while the replica drains: connections end with their response. */
  readonly draining: () => boolean;
  /** How long the rest of an unread request body is thrown away before the connection ends, milliseconds. */
  readonly lingerMs: number;
  /** Called for every fault of our own, once. */
  readonly onBug: (error: unknown) => void;
  readonly onRequestRefused: (refused: RefusedRequest) => void;
}

/** 16 bytes = 32 hex digits. */
const requestIdBytes = 16;

export const newRequestId = (random: Random): string => random.hex(requestIdBytes);

const nothing: CallFacts = {};
const noBody: CallBody = { bytes: Buffer.alloc(0), replayable: true, completeAt: null };

const bodyTooLarge = ({ maxBodyBytes }: Pick<ServerSettings, 'maxBodyBytes'>): Refusal =>
  new Refusal('body_too_large', {
    detail: `The request body is above ${maxBodyBytes} bytes, which the operator can raise (\`server.maxBodyBytes\`).`,
  });

/** A call, and what the ingress stage keeps of it until it ends: one object. */
export class ReadCall extends OpenCall implements Call {
  readonly receivedAt: number;
  readonly form: Call['form'];
  readonly #parts: ServeParts;
  readonly #headBytes: number;
  #bodyBytes = 0;
  /** Whom the bytes count for; `null` while that is not known. */
  #owner: string | null = null;
  #known = nothing;
  /** Who still needs what is held of the call: its client, and its repeats. */
  #holders = 1;

  constructor(response: ServerResponse, form: Call['form'], parts: ServeParts) {
    super(parts.connections.on(response.req.socket), response, newRequestId(parts.random));
    this.receivedAt = parts.clock.monotonic();
    this.form = form;
    this.#parts = parts;
    this.#headBytes = headBytes(response.req);
    parts.heldBytes.takeHead(this.#headBytes);
  }

  get method(): string {
    return this.request.method ?? 'GET';
  }

  get rawUrl(): string {
    return this.request.url ?? '/';
  }

  get rawFields(): readonly string[] {
    return this.request.rawHeaders;
  }

  get clientGone(): CallSignal {
    return this.gone;
  }

  /** What the journey reported so far, for a refusal's fields. */
  get known(): CallFacts {
    return this.#known;
  }

  async readBody(owner: string): Promise<CallBody> {
    const { request, gone } = this;
    const { heldBytes, clock, settings } = this.#parts;
    gone.throwIfAborted();
    if (!heldBytes.assign(this.#headBytes, owner)) throw this.#overloaded();
    this.#owner = owner;
    const announced = Number(request.headers['content-length'] ?? 0);
    if (announced > settings.maxBodyBytes) throw bodyTooLarge(settings);
    if (!heldBytes.fits(announced, owner)) throw this.#overloaded();
    if (!announcesBody(request)) return noBody;
    this.connection.askForBody(this);
    const bytes = await collectBody(this, (more) => this.#keep(more, owner), clock);
    return { bytes, replayable: bytes.length <= settings.maxReplayBytes, completeAt: clock.monotonic() };
  }

  authenticated(): void {
    this.connection.isAuthenticated = true;
  }

  report(known: CallFacts): void {
    this.#known = known;
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
    const { heldBytes, connections, overload } = this.#parts;
    heldBytes.give({ head: this.#headBytes, body: this.#bodyBytes }, this.#owner);
    connections.ended();
    overload.callEnded();
  }

  /** Counts a chunk before it is kept; returns why it cannot be. */
  #keep(bytes: number, owner: string): Refusal | null {
    const { heldBytes, settings } = this.#parts;
    if (this.#bodyBytes + bytes > settings.maxBodyBytes) return bodyTooLarge(settings);
    if (this.#holders === 0 || !heldBytes.take(bytes, owner)) return this.#overloaded();
    this.#bodyBytes += bytes;
    return null;
  }

  #overloaded(): Refusal {
    return new Refusal('overloaded', this.#parts.overload.refuse('bytes'));
  }
}
