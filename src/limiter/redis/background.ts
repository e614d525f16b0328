/** Work that goes on behind a reply that has been given. Owns: the list of what is under way; a failure is a bug, logged. */
import type { Log } from '../../telemetry/events.ts';

export class Background {
  readonly #log: Pick<Log, 'bug'>;
  readonly #open = new Set<Promise<unknown>>();

  constructor(log: Pick<Log, 'bug'>) {
    this.#log = log;
  }

  run(work: Promise<unknown>): void {
    const tracked: Promise<unknown> = work
      .catch((failure: unknown) => this.#log.bug('a limiter operation failed', failure))
      .finally(() => this.#open.delete(tracked));
    this.#open.add(tracked);
  }

  /** Resolves when nothing is under way, or when `mayGoOn` says that waiting is no use. */
  async drained(mayGoOn: () => boolean): Promise<void> {
    while (this.#open.size > 0 && mayGoOn()) await Promise.all(this.#open);
  }
}
