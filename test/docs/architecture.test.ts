/** Holds the names of files and functions in ARCHITECTURE.md to the sources: who follows them finds what was promised. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

const root = new URL('../../', import.meta.url);
const text = readFileSync(new URL('ARCHITECTURE.md', root), 'utf8');
const sources = readdirSync(new URL('src', root), { recursive: true, encoding: 'utf8' });

/** The source that a name means: its path in `src/`, or the end of one where the text named the folder before. */
const sourceOf = (name: string): string | null =>
  sources.find((path) => path === name || path.endsWith(`/${name}`)) ?? null;

const files = [...text.matchAll(/`(?:src\/)?([\w./-]+\.(?:ts|lua))`/g)].map(([, name = '']) => name);
const functions = [...text.matchAll(/`(#?\w+)` (?:and `(#?\w+)` )?in `([\w./-]+\.(?:ts|lua))`/g)].flatMap(
  ([, first = '', second = '', file = '']) =>
    [first, second].filter((name) => name !== '').map((name) => ({ name, file })),
);

test('ARCHITECTURE.md names more than 60 files, which the next test looks up', () =>
  expect(files.length).toBeGreaterThan(60));

test.each([...new Set(files)])('ARCHITECTURE.md names a file that exists: %s', (name) => {
  const isAtRoot = existsSync(new URL(name, root));
  expect([name, isAtRoot || sourceOf(name) !== null]).toEqual([name, true]);
});

test.each(functions)('ARCHITECTURE.md names a function that $file declares: $name', ({ name, file }) => {
  const source = readFileSync(new URL(`src/${sourceOf(file) ?? file}`, root), 'utf8');
  expect(source).toMatch(new RegExp(`^ *((export|async|const|function|local) )*${name}(\\(|:| =)`, 'm'));
});

test('each question of somebody new to the code is answered by a function of a file', () => {
  const rows = ['how long a call may wait', 'which workspace is next', 'gives a slot of the ceiling back'];
  for (const row of rows)
    expect(text).toMatch(new RegExp(`^\\| [^|]*${row}[^|]* \\| [^|]*\`\\w+\` in \``, 'm'));
});

const path = readFileSync(new URL('docs/path-of-a-call.md', root), 'utf8');
const methods = [...path.matchAll(/\b([A-Z]\w+)\.(\w+)\b/g)].flatMap(([, owner = '', method = '']) =>
  method === 'md' ? [] : [{ owner, method }],
);

test.each(methods)(
  'docs/path-of-a-call.md names a method that exists: $owner.$method',
  ({ owner, method }) => {
    const declared = sources
      .filter((file) => file.endsWith('.ts'))
      .map((file) => readFileSync(new URL(`src/${file}`, root), 'utf8'))
      .filter((source) => source.includes(`class ${owner} `));
    expect(declared).not.toEqual([]);
    expect(declared.join('\n')).toMatch(new RegExp(`^  (async )?${method}\\(`, 'm'));
  },
);
