/**
 * The port through which replicas share what they have learned of token charges. Owns its words. Every name is a keyed digest;
 * nothing of a prompt is in it. Does not own: what is made of it (`dispatch/token-estimates.ts`).
 */

/** Tokens of output: the mean of the latest calls, and how far theirs are from it. */
export interface SharedOutput {
  readonly mean: number;
  readonly deviation: number;
}

/** What one replica has just learned. */
export type SharedEstimate =
  /** Of the calls of one workspace to one model. `output`: `null` = not known. */
  | {
      readonly kind: 'model';
      readonly name: string;
      readonly factor: number;
      readonly counted: number;
      readonly output: SharedOutput | null;
      readonly isStated: boolean;
      readonly apart: boolean;
      /** Tokens that refusals stated beyond the rule by which calls are charged. */
      readonly beyond: number;
    }
  /** Of prompts that begin alike. `kept`: tokens in the provider's cache; `beyond`: as above, `null` = no refusal stated any. */
  | {
      readonly kind: 'prompt';
      readonly name: string;
      readonly factor: number;
      readonly kept: number;
      readonly beyond: number | null;
    };

export interface EstimateStore {
  /** Passes it on to the other replicas, soon. */
  share(learned: SharedEstimate): void;
  /** Registers the one listener to what other replicas have learned. */
  listen(hear: (learned: SharedEstimate) => void): void;
}

/** One process: there are no others. */
export const embeddedEstimates: EstimateStore = { share: () => {}, listen: () => {} };
