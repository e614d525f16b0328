/**
 * The rest of `npm run lint`: one form for functions, for factories and classes, and for the parameters of parts, where no rule
 * of the linter says it (docs/style.md, "Shape").
 */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  listOf,
  nameOf,
  nodeOf,
  nodesIn,
  parameterName,
  parameterType,
  treeOf,
  type Node,
} from './syntax.ts';

/** How the name of an exported function begins that returns an object of operations. */
const factoryName = /^(?:create|start|connect|watch)[A-Z]/;

/** Functions that stand as the value of a member. */
const functions = new Set<unknown>(['ArrowFunctionExpression', 'FunctionExpression']);

/** Other words for `…Parts` and `…Options`. */
const otherNames = /(?:Deps|Dependencies|Ports|Params|Args|Props|Opts|Collaborators)$/;

/** What of a source has another form than the rules ask for. The product keeps to all rules, other code to those of any file. */
export function badForms(source: string, isProduct = true): readonly string[] {
  const tree = treeOf(source);
  const items = listOf(tree['body']).map((item) => ({
    isExported: item['type'] === 'ExportDeclaration',
    declaration: nodeOf(item['declaration']) ?? item,
  }));
  return [
    ...items.flatMap(({ declaration }) => longArrows(declaration)),
    ...items.flatMap(({ declaration }) => badTypeName(declaration)),
    ...(isProduct ? items.flatMap(({ declaration, isExported }) => badFactory(declaration, isExported)) : []),
    ...(isProduct ? [...nodesIn(tree)].flatMap(badParameters) : []),
  ];
}

/** Functions of a file that have statements, and are no declarations. An arrow may take its parameters from a named type. */
function longArrows(declaration: Node): readonly string[] {
  return listOf(declaration['declarations']).flatMap((one) => {
    const value = nodeOf(one['init']);
    const hasStatements = listOf(nodeOf(value?.['body'])?.['stmts']).length > 0;
    const isOfNamedType = nodeOf(nodeOf(one['id'])?.['typeAnnotation']) !== null;
    return value?.['type'] === 'ArrowFunctionExpression' && hasStatements && !isOfNamedType
      ? [`${nameOf(one)}: a function with statements is a declaration (\`function\`)`]
      : [];
  });
}

function badFactory(declaration: Node, isExported: boolean): readonly string[] {
  const [variable] = listOf(declaration['declarations']);
  const name = nameOf(variable ?? declaration);
  const [result, statements] = resultOf(declaration);
  if (!isExported || result === null || !hasOperations(result)) return [];
  const keepsState = statements.some((one) => one['type'] === 'VariableDeclaration' && one['kind'] === 'let');
  return [
    ...(factoryName.test(name)
      ? []
      : [`${name}: a function that returns an object of operations is \`create…\``]),
    ...(keepsState ? [`${name}: an object whose state changes is a class, no \`let\``] : []),
  ];
}

/** The object that a function returns, and the statements of its body. */
function resultOf(declaration: Node): readonly [Node | null, readonly Node[]] {
  const [variable] = listOf(declaration['declarations']);
  const value = nodeOf(variable?.['init']) ?? declaration;
  const body = nodeOf(value['body']);
  const isFunction =
    value['type'] === 'ArrowFunctionExpression' || declaration['type'] === 'FunctionDeclaration';
  if (!isFunction || body === null) return [null, []];
  const statements = listOf(body['stmts']);
  const returned = statements.findLast((one) => one['type'] === 'ReturnStatement')?.['argument'];
  const result = statements.length > 0 ? nodeOf(returned) : (nodeOf(body['expression']) ?? body);
  return [result?.['type'] === 'ObjectExpression' ? result : null, statements];
}

/** A literal with functions of its own. One that begins as a copy of another object is that object, changed. */
function hasOperations(literal: Node): boolean {
  const members = listOf(literal['properties']);
  if (members[0]?.['type'] === 'SpreadElement' || members[0]?.['spread'] !== undefined) return false;
  return members.some(
    (one) => one['type'] === 'MethodProperty' || functions.has(nodeOf(one['value'])?.['type']),
  );
}

function badTypeName(declaration: Node): readonly string[] {
  const isType = /^Ts(?:Interface|TypeAlias)Declaration$/.test(String(declaration['type']));
  const name = nameOf(declaration);
  return isType && otherNames.test(name)
    ? [`${name}: what something is built of is called \`…Parts\`, what may be adjusted \`…Options\``]
    : [];
}

/** Parameters of constructors and factories that are called otherwise than their type. */
function badParameters(node: Node): readonly string[] {
  if (node['type'] !== 'Constructor' && !factoryName.test(nameOf(node))) return [];
  return listOf(node['params']).flatMap((parameter) => {
    const name = parameterName(parameter);
    const [, kind = ''] = /(Parts|Options)$/.exec(parameterType(parameter)) ?? [];
    return kind === '' || name === '' || name.toLowerCase().endsWith(kind.toLowerCase())
      ? []
      : [`${name}: a parameter of a type \`…${kind}\` is called \`${kind.toLowerCase()}\``];
  });
}

/** Prints each bad form; the exit code is 1 when there is one. */
function main(): void {
  const root = fileURLToPath(new URL('..', import.meta.url));
  const files = globSync('{src,test,scripts,bench}/**/*.{ts,mjs}', { cwd: root }).toSorted();
  let count = 0;
  const say = (what: string): void => {
    console.error(`${what} (docs/style.md)`);
    count += 1;
  };
  for (const file of files) {
    const source = readFileSync(join(root, file), 'utf8');
    for (const what of badForms(source, file.startsWith('src/'))) say(`${file}: ${what}`);
  }
  if (count > 0) process.exitCode = 1;
  else console.log(`${files.length} files keep to the forms of docs/style.md`);
}

if (import.meta.main) main();
