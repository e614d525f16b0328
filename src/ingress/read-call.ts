/**
 * Makes a {@link Call} of a request whose head has passed the guard.
 *
 * Owns: the call's identity and how its body is read. Does not own: what the call asks for.
 * Invariant: fields and request target are passed on as received; nothing is decoded or joined here.
 */
import type { Call, CallBody, CallFacts } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock, Random } from '../clock.ts';
import type { ArrivalTimes } from './arrival-times.ts';
import { BodyReader } from './body.ts';
import type { BodyReaderParts } from './body.ts';
import type { OpenCall } from './connections.ts';

export interface ReadCallParts extends BodyReaderParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly arrivals: Pick<ArrivalTimes, 'arrived'>;
}

/** 16 bytes = 32 hex digits. */
const requestIdBytes = 16;

export const newRequestId = (random: Random): string => random.hex(requestIdBytes);

const nothing: CallFacts = {};

/** A call, and what the ingress stage keeps of it until it ends. A class: its functions are not made for each call. */
export class ReadCall implements Call {
  readonly id: string;
  readonly receivedAt: number;
  readonly arrivedAt: number;
  readonly form: Call['form'];
  readonly #open: OpenCall;
  readonly #body: BodyReader;
  #known = nothing;

  constructor(open: OpenCall, form: Call['form'], parts: ReadCallParts) {
    this.id = newRequestId(parts.random);
    this.receivedAt = parts.clock.monotonic();
    this.arrivedAt = parts.arrivals.arrived();
    this.form = form;
    this.#open = open;
    this.#body = new BodyReader(open, parts);
  }

  get method(): string {
    return this.#open.request.method ?? 'GET';
  }

  get rawUrl(): string {
    return this.#open.request.url ?? '/';
  }

  get rawFields(): readonly string[] {
    return this.#open.request.rawHeaders;
  }

  get source(): string {
    return this.#open.request.socket.remoteAddress ?? '';
  }

  get clientGone(): CallSignal {
    return this.#open.gone;
  }

  /** What the journey reported so far, for a refusal's fields. */
  get known(): CallFacts {
    return this.#known;
  }

  readBody(owner: string): Promise<CallBody> {
    return this.#body.read(owner);
  }

  report(more: CallFacts): void {
    this.#known = { ...this.#known, ...more };
  }

  /** Gives back what is held for the call; later calls do nothing. */
  release(): void {
    this.#body.release();
  }
}
