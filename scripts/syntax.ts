/**
 * The syntax tree of a source, for checks that no rule of the linter can say. Parsed by swc, whose types of nodes say less
 * than is asked here: a node is a record.
 */
import { createRequire } from 'node:module';

export type Node = Readonly<Record<string, unknown>>;
interface Parser {
  parseSync(source: string, options: { syntax: 'typescript' }): unknown;
}
const { parseSync } = createRequire(import.meta.url)('@swc/core') as Parser;

const isNode = (value: unknown): value is Node =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The node that `value` is; `null` = it is none. */
export const nodeOf = (value: unknown): Node | null => (isNode(value) ? value : null);

/** The nodes of a member that is a list of them. */
export const listOf = (value: unknown): readonly Node[] => (Array.isArray(value) ? value.filter(isNode) : []);

/** The tree of a whole source. */
export function treeOf(source: string): Node {
  const tree = parseSync(source, { syntax: 'typescript' });
  if (!isNode(tree)) throw new Error('swc gave no tree');
  return tree;
}

const partsOf = (node: Node): readonly Node[] =>
  Object.values(node).flatMap((value) => (isNode(value) ? [value] : listOf(value)));

/** Every node below this one, and itself. */
export function* nodesIn(node: Node): Generator<Node> {
  yield node;
  for (const part of partsOf(node)) yield* nodesIn(part);
}

const textOf = (name: unknown): string =>
  isNode(name) ? (typeof name['value'] === 'string' ? name['value'] : textOf(name['id'])) : '';

/** The name that a node declares, or empty. */
export const nameOf = (node: Node): string =>
  textOf(node['key']) || textOf(node['identifier']) || textOf(node['id']);

/** The name of a parameter; empty where it is taken apart. */
export const parameterName = (parameter: Node): string => textOf(nodeOf(parameter['pat']) ?? parameter);

/** The name of the type that a parameter is declared with, or empty. */
export function parameterType(parameter: Node): string {
  const pattern = nodeOf(parameter['pat']) ?? parameter;
  const declared = nodeOf(nodeOf(pattern['typeAnnotation'])?.['typeAnnotation']);
  return textOf(declared?.['typeName']);
}
