/**
 * Recognises a request that has already passed through Sluice, by its `Via` fields (RFC 9110 §7.6.3).
 *
 * Keeps: only the received-by part counts; a comment or a longer name that contains ours does not.
 */

/** One member of the list: protocol, received-by, and perhaps a comment. */
const member = /^\s*\S+[ \t]+([^\s,(]+)/;

/**
 * True when some `Via` line names the pseudonym.
 *
 * @param rawFields name and value alternating.
 */
export function passedThrough(rawFields: readonly string[], pseudonym: string): boolean {
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at];
    if (name === undefined || name.length !== 3 || name.toLowerCase() !== 'via') continue;
    for (const text of (rawFields[at + 1] ?? '').split(',')) {
      if (member.exec(text)?.[1]?.toLowerCase() === pseudonym.toLowerCase()) return true;
    }
  }
  return false;
}
