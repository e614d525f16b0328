/**
 * The id that an upstream gave to one attempt, by which its own support and logs find it.
 *
 * Owns: which field holds it. Does not own: where it is shown. Invariant: a short word without blanks or control characters,
 * whatever the upstream wrote; anything else is no id.
 */

/** OpenAI, commerce and most others; Anthropic; Azure. The first one counts. */
const idFields = ['x-request-id', 'request-id', 'apim-request-id'] as const;
const idPattern = /^[\w.:-]{1,128}$/;

/** `rawFields` alternates name and value; `null` = the response names no id. */
export function upstreamIdOf(rawFields: readonly string[]): string | null {
  for (const wanted of idFields) {
    for (let at = 0; at + 1 < rawFields.length; at += 2) {
      const value = rawFields[at + 1] ?? '';
      if ((rawFields[at] ?? '').toLowerCase() === wanted && idPattern.test(value)) return value;
    }
  }
  return null;
}
