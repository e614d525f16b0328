/**
 * What replicas have learned of token charges, as messages over Redis: the latest of each name, several times a second, and no
 * command at all where there is no other replica. Redis keeps none of it; a replica that starts learns from then on. Bound: what is
 * gathered between two messages; beyond it the replicas learn by themselves.
 */
import { z } from 'zod';
import type { Clock } from '../../clock.ts';
import { sharedEstimate, type EstimateStore, type SharedEstimate } from '../estimate-store.ts';

/** Milliseconds between two messages: less than a call that follows another one takes to come. */
const everyMs = 100;
const maxGathered = 500;

export interface EstimatesParts {
  readonly clock: Pick<Clock, 'after'>;
  /** Number of living replicas. */
  readonly replicas: () => number;
  /** Sends a message to the other replicas. While Redis is unavailable each of them learns from its own calls only. */
  readonly tell: (text: string) => void;
}

export class RedisEstimates implements EstimateStore {
  readonly #parts: EstimatesParts;
  readonly #gathered = new Map<string, SharedEstimate>();
  #cancel: (() => void) | null = null;
  #hear: (learned: SharedEstimate) => void = () => {};

  constructor(parts: EstimatesParts) {
    this.#parts = parts;
  }

  share(learned: SharedEstimate): void {
    const { replicas, clock } = this.#parts;
    if (replicas() < 2 || this.#gathered.size >= maxGathered) return;
    this.#gathered.set(`${learned.kind} ${learned.name}`, learned);
    this.#cancel ??= clock.after(everyMs, () => this.#tell());
  }

  listen(hear: (learned: SharedEstimate) => void): void {
    this.#hear = hear;
  }

  /** Another replica's message. Throws where it is none. */
  hears(text: string): void {
    for (const learned of z.array(sharedEstimate).parse(JSON.parse(text))) this.#hear(learned);
  }

  close(): void {
    this.#cancel?.();
  }

  #tell(): void {
    this.#cancel = null;
    this.#parts.tell(JSON.stringify([...this.#gathered.values()]));
    this.#gathered.clear();
  }
}
