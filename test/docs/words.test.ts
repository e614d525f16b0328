/** The check behind `npm run words` finds planted words, names the right one, and leaves innocent text alone. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import type { Language } from '../../scripts/code-only.ts';
import { excludedWords, rulesOf } from '../../scripts/check-words.ts';

const glossary = readFileSync(new URL('../../docs/glossary.md', import.meta.url), 'utf8');
const rules = rulesOf(`## Words that are not used

Public names keep theirs: \`longestDay\` (an API).

| not | where | write |
|---|---|---|
| \`desk\` | everywhere | admission |
| \`place\`, \`places\` | names | slot or position |
| \`spentAlone\` | names | unreported usage |
| \`most\`, \`longest\` | start of names | \`max\` |
| \`told\` | identifiers | reported |
| \`caller\` | identifiers in Lua | replica |
| \`untold\` | prose | not stated |
`);
const found = (text: string, language: Language = 'prose') =>
  excludedWords(text, rules, language).map(({ line, name, word }) => `${line} ${name} ${word}`);

describe('the check of words', () => {
  test.each([
    ['a word in a sentence', '// The desk decides.', '1 desk desk'],
    ['a word at the start of a sentence', 'Desk tests', '1 Desk desk'],
    ['a part of a camel-case name', 'const nextPlaceMs = 3;', '1 nextPlaceMs place'],
    ['a part of a snake-case name', 'local next_places = 3', '1 next_places places'],
    ['a compound word in a name', 'import { noteSpentAlone }', '1 noteSpentAlone spentAlone'],
    ['the start of a name', 'export const longestWaitMs = 5;', '1 longestWaitMs longest'],
    ['a word in a later line', 'one\ntwo\nmostPerPump', '3 mostPerPump most'],
  ])('finds %s', (_, text, expected) => {
    expect(found(text)).toEqual([expected]);
  });

  test.each([
    [
      'a word of plain English that is ruled out in names only',
      '// The place where it is decided, at most once.',
    ],
    ['a longer word that contains it', 'replaceAll(desktop)'],
    ['the word later in a name than the rule says', 'const atMostOnce = almost;'],
    [
      'a line that says why it keeps the word',
      "const field = 'desk'; // words:keep, the name of a public API's field",
    ],
  ])('leaves %s alone', (_, text) => {
    expect(found(text)).toEqual([]);
  });

  test.each([
    ['an identifier of one word', 'script', 'const told = 3;', ['1 told told']],
    ['a part of a private field', 'script', 'this.#toldMs', ['1 toldMs told']],
    ['an expression in a template', 'script', 'x(`told ${`${told} told`} told`)', ['1 told told']],
    ['code behind a comment', 'script', '/* told\n told */ told()', ['2 told told']],
    ['code behind a regular expression', 'script', "x(/'/.test(told))", ['1 told told']],
    ['an identifier in Lua', 'lua', "local told = 'told' -- told", ['1 told told']],
    ['a word that only Lua may not use', 'lua', 'local caller = 3', ['1 caller caller']],
  ] as const)('finds %s', (_, language, text, expected) => {
    expect(found(text, language)).toEqual(expected);
  });

  test.each([
    ['a comment', 'script', '// told'],
    ['a string', 'script', "const a = 'told \\' told';"],
    ['the text of a template', 'script', '`told ${a} told`'],
    ['a document', 'prose', 'He told `told`.'],
    ['a comment in Lua', 'lua', '--[[ told\n told ]] -- told'],
    ['a word in TypeScript that only Lua may not use', 'script', 'const caller = 3;'],
  ] as const)('lets %s say a word that identifiers may not', (_, language, text) => {
    expect(found(text, language)).toEqual([]);
  });

  test.each([
    ['a comment', 'script', 'let a; // untold', 1],
    ['a later line of a comment', 'script', '/**\n * It is untold.\n */', 1],
    ['a comment in Lua', 'lua', 'local a = 1 -- untold', 1],
    ['a comment behind a template', 'script', '`${a} untold` // untold', 1],
    ['a string', 'script', "const a = '// untold';", 0],
    ['a regular expression', 'script', 'const a = /\\/untold/;', 0],
    ['an identifier', 'script', 'const untold = 1;', 0],
    ['a word quoted as code', 'script', '// `untold` is a public name', 0],
    ['a document', 'prose', 'It is untold.', 1],
    ['a word that a document quotes as code', 'prose', '`untold` is a public name.', 0],
  ] as const)(
    'refuses a word of prose in comments and documents only, looking at %s',
    (_, language, text, count) => expect(excludedWords(text, rules, language)).toHaveLength(count),
  );

  test('names the word to write instead', () => {
    expect(excludedWords('the desk', rules)).toEqual([
      { line: 1, name: 'desk', word: 'desk', write: 'admission' },
    ]);
  });

  test('says which row of the table cannot be read', () => {
    expect(() => rulesOf('## Words that are not used\n| `a` | somewhere | b |')).toThrow(
      '"somewhere" is none of',
    );
  });

  test.each([
    ['mostPerPump', 'max'],
    ['largestGrowth', 'max'],
    ['longestWait', 'max'],
    ['leastRoomMs', 'min'],
    ['shortestGap', 'min'],
    ['nextPlaceMs', 'slot'],
    ['deskOf', 'admission queue'],
    ['takeOffAt', 'start'],
    ['upstreamAnswer', 'response'],
    ['answersPerWindow', 'response'],
    ['answer', 'response'],
  ])('refuses %s by the glossary of this repository, and names %s', (name, write) => {
    const [first] = excludedWords(`const ${name} = 3;`, rulesOf(glossary), 'script');
    expect(first).toMatchObject({ name, write: expect.stringContaining(write) });
  });

  test.each(['answeredAt', 'isAnswered', 'unansweredMemoryMs', 'answeringShare'])(
    'leaves %s alone: to answer is a verb, and its participles may stand in names',
    (name) => {
      expect(excludedWords(`const ${name} = 3;`, rulesOf(glossary), 'script')).toEqual([]);
    },
  );

  test('reads the glossary of this repository: each row rules out a word and names another', () => {
    const rows = rulesOf(glossary).ruledOut;
    expect(rows.length).toBeGreaterThan(1);
    for (const { words, write } of rows) {
      expect(words.length).toBeGreaterThan(0);
      expect(write).not.toBe('');
    }
  });
});
