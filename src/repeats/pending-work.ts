/** Work that nobody waits for, until everything is to be over. */
export class PendingWork {
  readonly #pending = new Set<Promise<unknown>>();

  add(work: Promise<unknown>): void {
    this.#pending.add(work);
    void work.finally(() => this.#pending.delete(work));
  }

  /** Resolves when all of it has ended, with what it began meanwhile. */
  async over(): Promise<void> {
    while (this.#pending.size > 0) await Promise.all(this.#pending);
  }
}
