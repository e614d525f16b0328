/**
 * Shares what this replica saw with the others, again and again, one time after the other.
 *
 * Owns: the pace. Does not own: what is shared. Keeps: after `stop` nothing is begun any more.
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** Activity is shared this often, milliseconds. */
const shareEveryMs = 5_000;

export interface SharingParts {
  readonly clock: Clock;
  /** One round; a failure of it is reported to `onBug` and does not keep the next one from coming. */
  readonly share: () => Promise<void>;
  readonly onBug: (bug: unknown) => void;
}

export class Sharing {
  readonly #parts: SharingParts;
  #next: CancelTimer | null = null;
  #isStopped = false;

  constructor(parts: SharingParts) {
    this.#parts = parts;
  }

  start(): void {
    if (this.#isStopped) return;
    const { clock, share, onBug } = this.#parts;
    this.#next = clock.after(
      shareEveryMs,
      () =>
        void share()
          .catch(onBug)
          .finally(() => this.start()),
    );
  }

  stop(): void {
    this.#isStopped = true;
    this.#next?.();
  }
}
