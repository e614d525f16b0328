/**
 * Lists of field names, and what belongs to one: a name that is listed, begins as listed, or fits a pattern. Servers that hand fields on
 * as variables read `_` as `-`, so that both spellings count.
 */
import { wordsOf } from '../words.policy.ts';

interface FieldNames {
  /** Texts of names, separated by blanks; so are `prefixes`. Lower case. */
  readonly names: readonly string[];
  readonly prefixes: readonly string[];
  readonly pattern: RegExp;
}

/** True for names of the list, which are given in lower case. */
export function namesIn({ names, prefixes, pattern }: FieldNames): (name: string) => boolean {
  const listed = new Set(wordsOf(...names));
  const begins = new RegExp(`^(?:${wordsOf(...prefixes).join('|')})`);
  return (name) => {
    const hyphened = name.includes('_') ? name.replaceAll('_', '-') : name;
    return listed.has(hyphened) || begins.test(hyphened) || pattern.test(hyphened);
  };
}

const hopByHop = new Set(
  wordsOf('connection keep-alive te trailer transfer-encoding upgrade http2-settings'),
);

/**
 * True for a field that speaks to the next machine only (RFC 9110 §7.6.1 and what is used like it), so that it passes in neither
 * direction. `name` in lower case. Everything that begins with `proxy-` speaks to or of a proxy.
 */
export const isHopByHop = (name: string): boolean => hopByHop.has(name) || name.startsWith('proxy-');
