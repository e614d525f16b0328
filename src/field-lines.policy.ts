/**
 * Field lines as they are received (Node's `rawHeaders`): name and value alternating. They keep what a table of fields loses: order,
 * repeats, and the spelling of names.
 */

/** The values of all lines of a field, as they are. `name`: lower case. */
export function valuesOf(rawFields: readonly string[], name: string): readonly string[] {
  let values = none;
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const written = rawFields[at] ?? '';
    if (written.length === name.length && written.toLowerCase() === name)
      values = [...values, rawFields[at + 1] ?? ''];
  }
  return values;
}

/** What is no coding: `identity`, and what some servers write for it, which clients pass over. */
const noCodings = new Set(['', 'identity', 'none', 'utf-8', 'utf8']);

/** The content codings that a field names, in the order in which they were applied. */
export const codingsIn = (encoding: string): readonly string[] =>
  encoding
    .toLowerCase()
    .split(',')
    .map((name) => name.trim())
    .filter((name) => !noCodings.has(name));

/** Most fields that are looked for are not there. */
const none: readonly string[] = [];

/** Values by lower-case name; those of repeated lines are joined as RFC 9110 §5.3 allows. */
export function fieldMap(rawFields: readonly string[]): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = (rawFields[at] ?? '').toLowerCase();
    const value = rawFields[at + 1] ?? '';
    const earlier = fields.get(name);
    fields.set(name, earlier === undefined ? value : `${earlier}, ${value}`);
  }
  return fields;
}

/** A part of a URL without its percent-encoding; a stray percent sign leaves the raw spelling. */
export function percentDecoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
