/**
 * The id that an upstream gave to one attempt, by which its own support and logs find it.
 *
 * Owns: which field holds it. Does not own: where it is shown. Invariant: a short word without blanks or control characters,
 * whatever the upstream wrote; anything else is no id.
 */
import { valuesOf } from '../field-lines.policy.ts';

/** OpenAI, commerce and most others; Anthropic; Azure. The first one counts. */
const idFields = ['x-request-id', 'request-id', 'apim-request-id'] as const;
const idPattern = /^[\w.:-]{1,128}$/;

/** `rawFields` alternates name and value; `null` = the response names no id. */
export const upstreamIdOf = (rawFields: readonly string[]): string | null =>
  idFields.flatMap((name) => valuesOf(rawFields, name)).find((value) => idPattern.test(value)) ?? null;
