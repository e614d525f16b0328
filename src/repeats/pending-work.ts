/**
 * Background work under way, so that shutting down can wait for it. Does not own: failures. Work that is added must not reject: nobody
 * would handle the rejection, and `allEnded` would reject before the other work has ended.
 */
export class PendingWork {
  readonly #pending = new Set<Promise<unknown>>();

  /** Work that must not reject. */
  add(work: Promise<unknown>): void {
    this.#pending.add(work);
    void work.finally(() => this.#pending.delete(work));
  }

  /** Resolves when all work has ended, including work that was added while waiting. */
  async allEnded(): Promise<void> {
    while (this.#pending.size > 0) await Promise.all(this.#pending);
  }
}
