/**
 * `npm run words`: refuses the words that docs/glossary.md rules out, and names the word to write instead. The glossary's
 * second table is the only list. A line that must keep such a word (a public name, a quotation) says so with `words:keep`.
 */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { codeOnly, commentsOnly, type Language } from './code-only.ts';

/**
 * Where a word is refused: in all text, in any part of a compound name, as the first part of one, in any part of an identifier
 * (in code, so that prose and strings may say it), or of one in Lua, or as a word of prose: comments and documents, which may
 * quote it as code, between backticks.
 */
const scopes = [
  'everywhere',
  'names',
  'start of names',
  'identifiers',
  'identifiers in Lua',
  'prose',
] as const;
type Where = (typeof scopes)[number];

/** One row of the glossary's second table. */
export interface RuledOut {
  readonly words: readonly string[];
  readonly where: Where;
  readonly write: string;
}

/** What the glossary's second section says: the words, and the public names that keep one. */
export interface Rules {
  readonly ruledOut: readonly RuledOut[];
  readonly publicNames: readonly string[];
}

/** A word that stands where it may not, with its line (from 1). */
export interface Found {
  readonly line: number;
  readonly name: string;
  readonly word: string;
  readonly write: string;
}

/** The rules of the glossary's second section. Throws on a row that cannot be read. */
export function rulesOf(glossary: string): Rules {
  const [, section] = glossary.split('## Words that are not used');
  if (section === undefined) throw new Error('docs/glossary.md has no section "Words that are not used"');
  const lines = section.split('\n');
  const kept = lines.find((line) => line.startsWith('Public names keep theirs:')) ?? '';
  return {
    ruledOut: lines.filter((line) => line.startsWith('| `')).map(ruledOutBy),
    publicNames: namesIn(kept),
  };
}

function ruledOutBy(row: string): RuledOut {
  const cells = row.split('|').map((cell) => cell.trim());
  const [, words = '', where = '', write = ''] = cells;
  const known = scopes.find((scope) => scope === where);
  if (known === undefined) throw new Error(`docs/glossary.md: "${where}" is none of ${scopes.join(', ')}`);
  return { words: namesIn(words), where: known, write };
}

/** What stands in backticks. */
function namesIn(text: string): string[] {
  return [...text.matchAll(/`(\w+)`/g)].map(([, name = '']) => name);
}

/** What `text` says that the rules exclude. Only code has identifiers. */
export function excludedWords(
  text: string,
  { ruledOut, publicNames }: Rules,
  language: Language = 'prose',
): Found[] {
  const rows = ruledOut.filter(({ where }) => where !== 'identifiers in Lua' || language === 'lua');
  const code = codeOnly(text, language).split('\n');
  const prose = (language === 'prose' ? text : commentsOnly(text, language)).split('\n');
  return text.split('\n').flatMap((line, index) => {
    if (line.includes('words:keep')) return [];
    const identifiers = namesOf(code[index] ?? '', publicNames);
    const names = namesOf(line, publicNames);
    const spoken = namesOf((prose[index] ?? '').replaceAll(/`[^`]*`/g, ''), publicNames);
    const namesAt = (where: Where): readonly string[] => {
      if (where === 'prose') return spoken;
      return isOfCode(where) ? identifiers : names;
    };
    return rows.flatMap(({ words, where, write }) =>
      namesAt(where).flatMap((name) => {
        const word = words.find((one) => stands(one, name, where));
        return word === undefined ? [] : [{ line: index + 1, name, word, write }];
      }),
    );
  });
}

const namesOf = (line: string, publicNames: readonly string[]): readonly string[] =>
  (line.match(/[A-Za-z_][A-Za-z0-9_]*/g) ?? []).filter((name) => !publicNames.includes(name));

const isOfCode = (where: Where): boolean => where.startsWith('identifiers');

/** Is `word` one of the parts of `name`, or several of them in a row? */
function stands(word: string, name: string, where: Where): boolean {
  const inName = partsOf(name);
  const inWord = partsOf(word);
  const isCompound = inName.length > inWord.length;
  const isPart = ` ${inName.join(' ')} `.includes(` ${inWord.join(' ')} `);
  switch (where) {
    case 'everywhere':
    case 'identifiers':
    case 'identifiers in Lua':
      return isPart;
    case 'prose':
      return isPart && !isCompound;
    case 'names':
      return isPart && (isCompound || inWord.length > 1);
    case 'start of names':
      return isCompound && inWord.every((part, index) => inName[index] === part);
  }
}

/** `nextSlotMs` and `next_slot_ms` are next, slot, ms. */
function partsOf(name: string): string[] {
  return name
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1 $2')
    .toLowerCase()
    .split(/[ _]+/)
    .filter((part) => part !== '');
}

function languageOf(file: string): Language {
  if (file.endsWith('.md')) return 'prose';
  return file.endsWith('.lua') ? 'lua' : 'script';
}

/** Prints each excluded word of code and documents; the exit code is 1 when there is one. */
function main(): void {
  const root = fileURLToPath(new URL('..', import.meta.url));
  const rules = rulesOf(readFileSync(join(root, 'docs/glossary.md'), 'utf8'));
  const files = globSync(
    ['{src,test,scripts,bench}/**/*.{ts,mjs,lua}', '{docs,helm,k8s,.github}/**/*.md', '*.md'],
    { cwd: root },
  )
    .filter((file) => !['docs/glossary.md', 'test/docs/words.test.ts'].includes(file))
    .toSorted();
  let count = 0;
  for (const file of files) {
    const text = readFileSync(join(root, file), 'utf8');
    for (const { line, name, word, write } of excludedWords(text, rules, languageOf(file))) {
      console.error(`${file}:${line}: ${name}: not "${word}": ${write} (docs/glossary.md)`);
      count += 1;
    }
  }
  if (count > 0) process.exitCode = 1;
  else console.log(`${files.length} files keep to the words of docs/glossary.md`);
}

if (import.meta.main) main();
