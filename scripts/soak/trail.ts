/**
 * The way of one call as its client knows it, kept so that a call without a response explains itself: what happened last, and in
 * which phase it is. Does not own: what the upstream knows (`ledger.ts`).
 */
import type { Made } from './ledger.ts';
import type { Replica } from './replicas.ts';

/** An attempt that has not ended. */
interface Open {
  readonly replica: Replica;
  /** Monotonic milliseconds. */
  readonly startedAt: number;
  hasBegun: boolean;
}

const maxEvents = 6;
const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`;

const stateOf = ({ wasKilled, isTaking }: Replica): string =>
  wasKilled ? 'was killed' : isTaking ? 'takes calls' : 'ends';

export class Trail {
  readonly #startedAt = performance.now();
  readonly #events: string[] = [];
  #count = 0;
  #open: Open | null = null;

  sent(replica: Replica): void {
    this.#open = { replica, startedAt: performance.now(), hasBegun: false };
    this.note(`sent to ${replica.name}`);
  }

  /** The head of a response has come. */
  begun(): void {
    if (this.#open !== null) this.#open.hasBegun = true;
  }

  ended(words: string): void {
    this.#open = null;
    this.note(words);
  }

  note(words: string): void {
    this.#count += 1;
    this.#events.push(`${seconds(performance.now() - this.#startedAt)} ${words}`);
    if (this.#events.length > maxEvents) this.#events.shift();
  }

  /** Where the call is now; `made`: what the upstream knows of it. */
  phase({ arrivedAt, latestAt, answeredAt }: Made): string {
    const now = performance.now();
    if (this.#open === null) return 'between two attempts, as its refusal asked';
    const { replica, startedAt, hasBegun } = this.#open;
    const where = `at ${replica.name}, which ${stateOf(replica)}, for ${seconds(now - startedAt)}`;
    if (hasBegun) return `inside its response, ${where}`;
    if (latestAt === null || latestAt < startedAt)
      return `not sent to the upstream${arrivedAt === null ? '' : ' in this attempt'}, ${where}`;
    return answeredAt !== null && answeredAt >= latestAt
      ? `answered by the upstream ${seconds(now - answeredAt)} ago, ${where}`
      : `with the upstream for ${seconds(now - latestAt)}, ${where}`;
  }

  /** The last events. */
  inWords(): string {
    const earlier = this.#count - this.#events.length;
    return `${earlier > 0 ? `(${earlier} earlier) ` : ''}${this.#events.join(' · ')}`;
  }
}
