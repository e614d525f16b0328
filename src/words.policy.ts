/** Tables of words that are compared as a whole, written as texts. */

/** The words of texts in which blanks separate them. */
export const wordsOf = (...texts: readonly string[]): readonly string[] =>
  texts.flatMap((text) => text.split(' '));

/** What each word of such texts means: rows of a meaning and the words that have it. */
export const meaningOfWords = <Meaning>(
  rows: readonly (readonly [meaning: Meaning, words: string])[],
): ReadonlyMap<string, Meaning> =>
  new Map(rows.flatMap(([meaning, words]) => wordsOf(words).map((word) => [word, meaning] as const)));

type Words<Text extends string> = Text extends `${infer First} ${infer Rest}` ? First | Words<Rest> : Text;

/** The words of a literal text, typed as themselves. */
export const namesIn = <const Text extends string>(text: Text): readonly Words<Text>[] =>
  text.split(' ') as Words<Text>[];
