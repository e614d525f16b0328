/**
 * One response for several clients and for the store of kept responses: each gets every byte. While the response is kept whole, it
 * is read at the pace of the fastest client, so that one whose connection is dead does not hold up its own repeat; above that bound, at the
 * pace of the slowest.
 *
 * Owns: copies of a body that is read once. Does not own: who may have one. Keeps: `onEnd` of the outcome is called once,
 * when the last copy has ended and the body has.
 */
import { PassThrough, type Readable } from 'node:stream';
import type { ResponseEnd, Outcome } from '../call.ts';
import { type KeptBody, ownBytes } from './kept-responses.ts';

export interface SharedResponseOptions {
  /** What has passed of the body: a client that comes later gets it first. */
  readonly kept: KeptBody;
  /** The body is read on although every client has left. */
  readonly goesOn: () => boolean;
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

  /** True while a further client can have the response from its first byte. */
  get isWhole(): boolean {
    return this.#state.kind === 'open' && (!this.#isFlowing || this.#options.kept.whole !== null);
  }

  /** A copy for one client, from the first byte; only while {@link isWhole}. */
  copy(onCopyEnd: (how: ResponseEnd) => void): Outcome {
    const reader = new PassThrough();
    this.#readers.add(reader);
    this.#open += 1;
    // A stream error without a listener would end the process; the copy's reader may not listen yet.
    reader.on('error', () => {});
    reader.on('drain', () => this.#resume());
    reader.on('close', () => {
      this.#readers.delete(reader);
      if (this.#readers.size > 0 || this.#options.goesOn()) this.#resume();
      else this.letGo();
    });
    const passed = this.#isFlowing ? this.#options.kept.whole : null;
    if (passed !== null && passed.length > 0) reader.write(passed);
    this.flow();
    return {
      ...this.#outcome,
      body: reader,
      onEnd: (how) => {
        this.#open -= 1;
        reader.destroy();
        onCopyEnd(how);
        this.#reportEnd();
      },
    };
  }

  /** Reads the body, whether anybody has a copy or not. */
  flow(): void {
    if (this.#isFlowing) return;
    this.#isFlowing = true;
    this.#body.on('data', (chunk: Buffer) => {
      this.#options.kept.append(chunk);
      for (const each of this.#readers) each.write(chunk);
      if (this.#mustWait()) this.#body.pause();
    });
    // Reading the start of the body for learning has left it paused.
    if (this.#body.destroyed) this.#ended('upstream_cut', this.#body.errored ?? undefined);
    else this.#body.resume();
  }

  /** Where no client took a copy: the body is read for whoever repeats the call, or let go. */
  unclaimed(): void {
    if (this.#isFlowing) return;
    if (this.#options.goesOn()) this.flow();
    else this.letGo();
  }

  /** Nobody will have the rest of the body. */
  letGo(): void {
    this.#body.destroy();
  }

  #mustWait(): boolean {
    if (this.#readers.size === 0) return false;
    const isFull = (reader: PassThrough): boolean => reader.writableNeedDrain;
    const readers = [...this.#readers];
    return this.#options.kept.whole === null ? readers.some(isFull) : readers.every(isFull);
  }

  #resume(): void {
    if (!this.#mustWait()) this.#body.resume();
  }

  #ended(how: ResponseEnd, error?: Error): void {
    if (this.#state.kind !== 'open') return;
    const isWhole = how === 'complete';
    for (const each of this.#readers) {
      if (isWhole) each.end();
      else each.destroy(error);
    }
    this.#state = { kind: 'ended', how };
    const { kept, onBody } = this.#options;
    const body = kept.whole === null ? 'too_large' : ownBytes(kept.whole);
    kept.drop();
    onBody(isWhole ? body : null);
    this.#reportEnd();
  }

  #reportEnd(): void {
    if (this.#state.kind !== 'ended' || this.#open > 0) return;
    const { how } = this.#state;
    this.#state = { kind: 'reported' };
    this.#outcome.onEnd(how);
  }
}
