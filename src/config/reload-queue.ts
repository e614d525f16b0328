/**
 * Takes one text of the configuration after the other into use. Owns their order: one at a time, of those that come
 * meanwhile only the newest, so that an older text never replaces a newer one, and a file that changes all the time is
 * still taken over now and then. Does not own when a text is read (`reload.ts`), and what taking one over means.
 */

/** A text that is to be used, and how it is recognized. */
export interface Candidate {
  readonly text: string;
  readonly digest: string;
}

interface Waiting extends Candidate {
  /** All that asked since the last one began: the newest text answers for those before it. */
  readonly waiting: ((isUsed: boolean) => void)[];
}

export class ReloadQueue {
  readonly #use: (candidate: Candidate, signal: AbortSignal) => Promise<boolean>;
  readonly #stop = new AbortController();
  #running: { readonly digest: string; readonly ended: Promise<void> } | null = null;
  #next: Waiting | null = null;

  /** `use` takes a text into use and says whether it could; it does not reject, and ends soon when `signal` is aborted. */
  constructor(use: (candidate: Candidate, signal: AbortSignal) => Promise<boolean>) {
    this.#use = use;
  }

  /** Digest of the text that will be the last one taken into use, or `null` while none is on its way. */
  get newest(): string | null {
    return this.#next?.digest ?? this.#running?.digest ?? null;
  }

  /** Takes a text into use, now or after the one that is on its way. Resolves with whether it, or a newer one instead, could be used. */
  add(candidate: Candidate): Promise<boolean> {
    return new Promise((resolve) => {
      this.#next = { ...candidate, waiting: [...(this.#next?.waiting ?? []), resolve] };
      if (this.#running === null) this.#start();
    });
  }

  /** Takes no further text into use. Resolves when the one on its way has ended. */
  async close(): Promise<void> {
    this.#stop.abort();
    await this.#running?.ended;
  }

  #start(): void {
    const candidate = this.#next;
    this.#next = null;
    if (candidate === null) return;
    const ended = this.#use(candidate, this.#stop.signal).then((isUsed) => {
      this.#running = null;
      for (const report of candidate.waiting) report(isUsed);
      this.#start();
    });
    this.#running = { digest: candidate.digest, ended };
  }
}
