/**
 * Says when a file may have changed: after something happened in its folder, and every few seconds in any case, because not
 * every change of a mounted file makes an event. Owns its watcher and its timers; reads nothing.
 */
import { watch } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '../clock.ts';

/** The file is looked at this often in any case, milliseconds. */
export const pollMs = 5_000;
/** Time from an event to the look at the file, milliseconds: writing takes a moment. */
export const settleMs = 100;

export interface FileWatchParts {
  readonly path: string;
  readonly clock: Pick<Clock, 'after'>;
  /** The file may have changed. */
  readonly onCheck: () => void;
}

export class FileWatch {
  readonly #parts: FileWatchParts;
  #cancelPoll = (): void => {};
  #cancelCheck: (() => void) | null = null;
  #stopWatching = (): void => {};
  #isClosed = false;

  constructor(parts: FileWatchParts) {
    this.#parts = parts;
    this.#watch();
    this.#poll();
  }

  /** Calls back once for all that asks within {@link settleMs}. */
  checkSoon(): void {
    if (this.#isClosed) return;
    this.#cancelCheck ??= this.#parts.clock.after(settleMs, () => {
      this.#cancelCheck = null;
      this.#parts.onCheck();
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#cancelPoll();
    this.#cancelCheck?.();
    this.#stopWatching();
  }

  #watch(): void {
    try {
      const watcher = watch(dirname(this.#parts.path), { persistent: false }, () => this.checkSoon());
      // The folder is gone or cannot be watched: what is left is to read it every few seconds.
      watcher.on('error', () => watcher.close());
      this.#stopWatching = () => watcher.close();
    } catch {
      this.#stopWatching = () => {};
    }
  }

  #poll(): void {
    this.#cancelPoll = this.#parts.clock.after(pollMs, () => {
      this.#parts.onCheck();
      this.#poll();
    });
  }
}
