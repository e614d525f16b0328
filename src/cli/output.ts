/**
 * What the process prints, on streams that may break at any time: the reader is gone (EPIPE), the disk is full (ENOSPC), a pipe
 * is full and nobody reads it. None of that ends the process, keeps it waiting or fills its memory: what cannot be written is
 * lost and counted. Node never closes standard output and standard error, so writing succeeds again when it can.
 */
import type { Writable } from 'node:stream';

/** So much may wait for a reader; further texts are lost. Bytes, or UTF-16 units where the stream keeps strings. */
const maxWaiting = 1_048_576;

interface OutputWatcher {
  /** A text was lost, the first since one was written. `why`: a code of the system such as `EPIPE`; `full`: nobody reads. */
  onLoss?(why: string): void;
  /** Something was written again. Returns what says so in the output, or `null`. `lost`: texts that were lost so far in all. */
  noticeOf?(lost: number): string | null;
}

export class Output {
  readonly #stream: Writable;
  readonly #watcher: OutputWatcher;
  #lost = 0;
  #noticed = 0;
  #isBroken = false;

  constructor(stream: Writable, watcher: OutputWatcher = {}) {
    this.#stream = stream;
    this.#watcher = watcher;
    // Each failed write is counted by its callback. Without a listener the event would end the process.
    stream.on('error', () => {});
  }

  /** Writes the text, or loses it; never throws. */
  write(text: string): void {
    if (this.#stream.writableLength > maxWaiting) this.#lose('full');
    else this.#stream.write(text, this.#written);
  }

  readonly #written = (failure?: Error | null): void => {
    if (failure !== undefined && failure !== null) return this.#lose(codeOf(failure));
    if (this.#noticed === this.#lost || this.#stream.writableLength > maxWaiting / 2) return;
    this.#isBroken = false;
    this.#noticed = this.#lost;
    const notice = this.#watcher.noticeOf?.(this.#lost) ?? null;
    if (notice !== null) this.write(notice);
  };

  #lose(why: string): void {
    this.#lost += 1;
    if (this.#isBroken) return;
    this.#isBroken = true;
    this.#watcher.onLoss?.(why);
  }
}

const codeOf = (failure: Error): string =>
  'code' in failure && typeof failure.code === 'string' ? failure.code : failure.name;
