/**
 * What caches are told of a response that was made for one caller.
 *
 * Keeps: no cache that several callers share may store it. `Cache-Control` is `private`, or stays `no-store`; `Vary` names the
 * fields in which an API key may come, for caches that are set to store private responses nevertheless.
 */

/** Directives that let a shared cache store what it otherwise may not (RFC 9111 §5.2.2), and forms of `private` that name fields only. */
const sharing = /^(?:public|s-maxage|private\s*=)/i;

/** Splits at the commas outside of quoted strings. A quote that is never closed quotes nothing. */
const directivesOf = (value: string): string[] =>
  (value.match(/(?:"(?:[^"\\]|\\.)*"|[^,])+/g) ?? []).map((directive) => directive.trim());

const isBare = (directives: readonly string[], name: string): boolean =>
  directives.some((directive) => directive.toLowerCase() === name);

/**
 * The `Cache-Control` that the client gets for the upstream's lines of that name, in one line.
 *
 * `private` comes first, so that no unclosed quote behind it can hide it.
 */
export function privateCacheControl(lines: readonly string[]): string {
  const given = lines.flatMap(directivesOf).filter((directive) => directive !== '');
  const kept = given.filter((directive) => !sharing.test(directive));
  const balanced = lines.every((line) => (line.match(/"/g) ?? []).length % 2 === 0);
  // With `must-understand` a cache may ignore `no-store` (RFC 9111 §5.2.2.3).
  const isNeverStored = isBare(kept, 'no-store') && !isBare(kept, 'must-understand');
  const isPrivate = isNeverStored || isBare(kept, 'private');
  if (isPrivate && balanced) return kept.join(', ');
  return ['private', ...kept.filter((directive) => directive.toLowerCase() !== 'private')].join(', ');
}

/** The `Vary` that the client gets for the upstream's lines of that name. `keyFields` in lower case. */
export function varyWith(lines: readonly string[], keyFields: readonly string[]): string {
  const given = lines.flatMap((line) => line.split(',')).map((name) => name.trim());
  const names = given.filter((name) => name !== '');
  if (names.includes('*')) return '*';
  const known = new Set(names.map((name) => name.toLowerCase()));
  return [...names, ...keyFields.filter((name) => !known.has(name))].join(', ');
}
