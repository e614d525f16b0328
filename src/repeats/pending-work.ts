/** Background work, collected so that shutting down can wait for it. */
export class PendingWork {
  readonly #pending = new Set<Promise<unknown>>();

  add(work: Promise<unknown>): void {
    this.#pending.add(work);
    void work.finally(() => this.#pending.delete(work));
  }

  /** Resolves when all work has ended, including work that was added while waiting. */
  async over(): Promise<void> {
    while (this.#pending.size > 0) await Promise.all(this.#pending);
  }
}
