/**
 * A request that is served as a {@link Call}: its head has passed the guard, and it has a route.
 *
 * Owns: what the journey sees of it and how its body is read. Does not own: what the call asks for.
 * Invariant: fields and request target are passed on as received; nothing is decoded or joined here.
 */
import type { ServerResponse } from 'node:http';
import type { Call, CallBody, CallFacts } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock, Random } from '../clock.ts';
import { BodyReader } from './body.ts';
import type { BodyReaderParts } from './body.ts';
import { OpenCall } from './connections.ts';
import type { Connection } from './connections.ts';

/** What all calls of one route share. */
export interface ReadCallParts extends BodyReaderParts {
  readonly form: Call['form'];
  readonly clock: Clock;
  readonly random: Random;
}

/** 16 bytes = 32 hex digits. */
const requestIdBytes = 16;

export const newRequestId = (random: Random): string => random.hex(requestIdBytes);

const nothing: CallFacts = {};

/** A call, and what the ingress stage keeps of it until it ends: one object. */
export class ReadCall extends OpenCall implements Call {
  readonly receivedAt: number;
  readonly form: Call['form'];
  readonly #body: BodyReader;
  #known = nothing;
  /** Who still needs what is held of the call: its client, and its repeats. */
  #holders = 1;
  #onLetGo = (): void => {};

  constructor(connection: Connection, response: ServerResponse, parts: ReadCallParts) {
    super(connection, response, newRequestId(parts.random));
    this.receivedAt = parts.clock.monotonic();
    this.form = parts.form;
    this.#body = new BodyReader(this, parts);
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

  readBody(owner: string): Promise<CallBody> {
    return this.#body.read(owner);
  }

  report(more: CallFacts): void {
    if (more.isAuthenticated === true) this.connection.isAuthenticated = true;
    this.#known = { ...this.#known, ...more };
  }

  retain(): () => void {
    let isHeld = true;
    this.#holders += 1;
    return () => {
      if (isHeld) this.#letGo();
      isHeld = false;
    };
  }

  /** The client's call has ended. `onLetGo` is called when nobody else needs it, and what was held for it is given back. */
  end(onLetGo: () => void): void {
    this.#onLetGo = onLetGo;
    this.#letGo();
  }

  #letGo(): void {
    this.#holders -= 1;
    if (this.#holders > 0) return;
    this.#body.release();
    this.#onLetGo();
  }
}
