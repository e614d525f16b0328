/**
 * Recognises a request that has already passed through Sluice, by its `Via` fields (RFC 9110 §7.6.3).
 *
 * Keeps: only the received-by part counts; a comment or a longer name that contains ours does not.
 */
import { valuesOf } from '../field-lines.policy.ts';

/** One member of the list: protocol, received-by, and perhaps a comment. */
const member = /^\s*\S+[ \t]+([^\s,(]+)/;

/**
 * True when some `Via` line names the pseudonym.
 *
 * @param rawFields name and value alternating.
 */
export function passedThrough(rawFields: readonly string[], pseudonym: string): boolean {
  return valuesOf(rawFields, 'via')
    .flatMap((value) => value.split(','))
    .some((text) => member.exec(text)?.[1]?.toLowerCase() === pseudonym.toLowerCase());
}
