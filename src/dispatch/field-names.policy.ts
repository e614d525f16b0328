/** Lists of field names. */
import { wordsOf } from '../words.policy.ts';

interface FieldNames {
  /** Texts of names, separated by blanks; so are `prefixes`. Lower case. */
  readonly names: readonly string[];
  readonly prefixes: readonly string[];
  readonly pattern: RegExp;
}

/**
 * True for names of a list: a name that is listed, begins as listed, or fits a pattern; `name` in lower case. Servers that hand fields on
 * as variables read `_` as `-`, so that both spellings count.
 */
export function namesIn({ names, prefixes, pattern }: FieldNames): (name: string) => boolean {
  const listed = new Set(wordsOf(...names));
  const begins = new RegExp(`^(?:${wordsOf(...prefixes).join('|')})`);
  return (name) => {
    const hyphened = name.replaceAll('_', '-');
    return listed.has(hyphened) || begins.test(hyphened) || pattern.test(hyphened);
  };
}

const hopByHop = new Set(
  wordsOf('connection keep-alive te trailer transfer-encoding upgrade http2-settings'),
);

/**
 * True for a field that passes in neither direction: it speaks to the next machine only (RFC 9110 §7.6.1 and what is used like it), to or
 * of a proxy, or in the name of Sluice. `name` in lower case.
 */
export const endsHere = (name: string): boolean => hopByHop.has(name) || /^(?:proxy-|sluice[-_])/.test(name);

/** Names are few and come with every call: this many answers are kept. Characters of a name that is kept. */
const maxKept = 2_000;
const maxKeptName = 64;

/** The same judgement of names, which judges a name once. */
export function remembered(judge: (name: string) => boolean): (name: string) => boolean {
  const kept = new Map<string, boolean>();
  return (name) => {
    const known = kept.get(name);
    if (known !== undefined) return known;
    const judged = judge(name);
    if (kept.size < maxKept && name.length <= maxKeptName) kept.set(name, judged);
    return judged;
  };
}
