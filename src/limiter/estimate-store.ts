/**
 * The port through which replicas share what they have learned of token charges. Every name is a keyed digest; nothing of a prompt is
 * in it. Does not own: what is made of it (`dispatch/token-estimates.ts`).
 */
import { z } from 'zod';
import type { Clock } from '../clock.ts';

const amount = z.number().nonnegative();

/** What one replica has just learned. */
export const sharedEstimate = z.discriminatedUnion('kind', [
  /** Of the calls of one workspace to one model. `output`: the mean of the latest calls, and how far theirs are from it. */
  z.object({
    kind: z.literal('model'),
    name: z.string(),
    factor: amount,
    counted: amount,
    output: z.object({ mean: amount, deviation: amount }).nullable(),
    isStated: z.boolean(),
    apart: z.boolean(),
    /** Tokens that refusals stated beyond the rule by which calls are charged. */
    beyond: amount,
  }),
  /** Of prompts that begin alike. `kept`: tokens in the provider's cache; `beyond`: as above, `null` = no refusal stated any. */
  z.object({
    kind: z.literal('prompt'),
    name: z.string(),
    factor: amount,
    kept: amount,
    beyond: amount.nullable(),
  }),
]);
export type SharedEstimate = Readonly<z.output<typeof sharedEstimate>>;

export interface EstimateStore {
  /** Passes it on to the other replicas, soon. */
  share(learned: SharedEstimate): void;
  /** Registers the one listener to what other replicas have learned. */
  listen(hear: (learned: SharedEstimate) => void): void;
}

/** One process: there are no others. */
export const embeddedEstimates: EstimateStore = { share: () => {}, listen: () => {} };

// Over Redis, as messages: the latest of each name, several times a second, and no command at all where there is no other replica. Redis keeps
// none of it; a replica that starts learns from then on. Beyond what is gathered between two messages the replicas learn by themselves.

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
