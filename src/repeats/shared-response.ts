/**
 * One response for several clients and for the store of kept responses: each gets every byte, at the pace of the slowest client.
 *
 * Owns: copies of a body that is read once. Does not own: who may have one. Keeps: `onEnd` of the outcome is called once,
 * when the last copy has ended and the body has.
 */
import { PassThrough, type Readable } from 'node:stream';
import type { ResponseEnd, Outcome } from '../call.ts';

export interface SharedResponseOptions {
  /** The body is read to its end although every client has left. */
  readonly isFinished: () => boolean;
  /** Bytes that are kept at most. */
  readonly maxKeptBytes: number;
  /** The body has ended: all of it, `too_large` when it was not kept, `null` when it broke. */
  readonly onBody: (body: Buffer | 'too_large' | null) => void;
}

/** `reported`: the outcome's `onEnd` has been called. */
type BodyState =
  | { readonly kind: 'open' }
  | { readonly kind: 'ended'; readonly how: ResponseEnd }
  | { readonly kind: 'reported' };

export class SharedResponse {
  readonly #outcome: Outcome;
  readonly #body: Readable;
  readonly #options: SharedResponseOptions;
  readonly #readers = new Set<PassThrough>();
  #kept: Buffer[] | null = [];
  #keptBytes = 0;
  #isFlowing = false;
  /** Copies handed out that have not ended. */
  #open = 0;
  #state: BodyState = { kind: 'open' };

  constructor(outcome: Outcome & { readonly body: Readable }, options: SharedResponseOptions) {
    this.#outcome = outcome;
    this.#body = outcome.body;
    this.#options = options;
    this.#body.on('end', () => this.#ended('complete'));
    this.#body.on('error', (error: Error) => this.#ended('upstream_cut', error));
    this.#body.on('close', () => this.#ended('upstream_cut'));
  }

  /** A copy for one client. Copies have to be asked for before the body flows, in one turn of the event loop. */
  copy(): Outcome {
    const reader = new PassThrough();
    this.#readers.add(reader);
    this.#open += 1;
    // A stream error without a listener would end the process; the copy's reader may not listen yet.
    reader.on('error', () => {});
    reader.on('drain', () => this.#resume());
    reader.on('close', () => {
      this.#readers.delete(reader);
      if (this.#readers.size > 0 || this.#options.isFinished()) this.#resume();
      else this.#body.destroy();
    });
    this.flow();
    return {
      ...this.#outcome,
      body: reader,
      onEnd: () => {
        this.#open -= 1;
        reader.destroy();
        this.#reportEnd();
      },
    };
  }

  /** Reads the body, whether anybody has a copy or not. */
  flow(): void {
    if (this.#isFlowing) return;
    this.#isFlowing = true;
    this.#body.on('data', (chunk: Buffer) => {
      this.#keep(chunk);
      let isFull = false;
      for (const each of this.#readers) isFull = !each.write(chunk) || isFull;
      if (isFull) this.#body.pause();
    });
    // Reading the start of the body for learning has left it paused.
    if (this.#body.destroyed) this.#ended('upstream_cut', this.#body.errored ?? undefined);
    else this.#body.resume();
  }

  /** Where no client took a copy: the body is read for whoever repeats the call, or let go. */
  unclaimed(): void {
    if (this.#isFlowing) return;
    if (this.#options.isFinished()) this.flow();
    else this.#body.destroy();
  }

  #resume(): void {
    if ([...this.#readers].every((other) => !other.writableNeedDrain)) this.#body.resume();
  }

  #keep(chunk: Buffer): void {
    this.#keptBytes += chunk.length;
    if (this.#keptBytes > this.#options.maxKeptBytes) this.#kept = null;
    this.#kept?.push(chunk);
  }

  #ended(how: ResponseEnd, error?: Error): void {
    if (this.#state.kind !== 'open') return;
    const isWhole = how === 'complete';
    for (const each of this.#readers) {
      if (isWhole) each.end();
      else each.destroy(error);
    }
    const body = this.#kept === null ? 'too_large' : Buffer.concat(this.#kept, this.#keptBytes);
    this.#kept = null;
    this.#options.onBody(isWhole ? body : null);
    this.#state = { kind: 'ended', how };
    this.#reportEnd();
  }

  #reportEnd(): void {
    if (this.#state.kind !== 'ended' || this.#open > 0) return;
    const { how } = this.#state;
    this.#state = { kind: 'reported' };
    this.#outcome.onEnd(how);
  }
}
