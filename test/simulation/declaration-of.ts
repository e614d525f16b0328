/**
 * In which declaration a line of source stands: `pump`, `CeilingGate.onGrant`. Read from the indentation, which the formatter
 * keeps: declarations of a file stand at the margin, members of a class two spaces in.
 */

const ofFile =
  /^(?:export )?(?:abstract |async )*(?:class|function\*?|const|let|interface|type|local function) ([\w$]+)/;
const ofClass =
  /^ {2}(?:(?:protected|private|static|readonly|async|abstract|get|set) )*\*?(#?\w+)[?!]?[<(:= ]/;
const statements = new Set([
  'if',
  'for',
  'while',
  'switch',
  'return',
  'const',
  'let',
  'case',
  'throw',
  'await',
]);

/** The name of the declaration that holds the first line of `find`. Throws when there is none. */
export function declarationOf(source: string, find: string): string {
  const at = source.indexOf(find);
  if (at < 0) throw new Error(`there is no such line: ${find}`);
  const first = at + find.search(/\S/);
  const before = source.slice(0, source.indexOf('\n', first) + 1).trimEnd();
  const above = before.split('\n').toReversed();
  const top = above.findIndex((line) => ofFile.test(line));
  const name = top < 0 ? undefined : ofFile.exec(above[top] ?? '')?.[1];
  if (name === undefined) throw new Error(`this line stands in no declaration: ${find}`);
  if (!/\bclass /.test(above[top] ?? '')) return name;
  for (const line of above.slice(0, top)) {
    const member = ofClass.exec(line)?.[1];
    if (member !== undefined && !statements.has(member)) return `${name}.${member}`;
  }
  return name;
}
