/**
 * The port through which replicas share what they have learned of token charges. Every name is a keyed digest; nothing of a prompt is
 * in it. Does not own: what is made of it (`dispatch/token-estimates.ts`).
 */
import { z } from 'zod';

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
