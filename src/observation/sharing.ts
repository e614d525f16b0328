/**
 * Shares what this replica counted with the other replicas every 5 s, never two rounds at once.
 *
 * Owns: the pace. Does not own: what a round shares (`share`). Keeps: after `stop` no round begins; one that is under way goes on.
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** Time between the end of a round and the beginning of the next one, milliseconds. */
const shareEveryMs = 5_000;

export interface SharingParts {
  readonly clock: Clock;
  /** Runs one round. If it fails, `onBug` receives the error, and the next round comes all the same. */
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
