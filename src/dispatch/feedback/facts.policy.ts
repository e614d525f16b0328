/**
 * What a feedback policy is given: the plain facts of one response. No stream, no socket, no configuration.
 */
import type { Feedback } from '../../call.ts';

export interface ResponseFacts {
  readonly status: number;
  /** Field values by lower-case name; repeated fields joined by `, `. */
  readonly fields: ReadonlyMap<string, string>;
  /** Decoded text of the body, or its last 8 KiB when it is larger; `null` when nobody read it. */
  readonly body: string | null;
  /** Which of an upstream's limits the call counts against: `rest`, `graphql` (commerce) or `default`. */
  readonly callClass: string;
  /** Wall clock at which the head arrived, milliseconds since the epoch. */
  readonly nowMs: number;
}

/** A response that taught nothing. */
export const nothingLearned: Feedback = { meters: [], throttle: null };
