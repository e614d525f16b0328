/**
 * Reads a GraphQL document without a schema: which operation, what it costs, what it could return.
 *
 * Owns: the cost rule and made-up data. Rule: leaf 0; `nodes edges node pageInfo userErrors` cost nothing of their
 * own; a field with first/last n costs `2 + n * (1 + children)`; any other object `1 + children`; a mutation's root
 * field `10 + children`; of several type conditions the most expensive counts. `customers(first: 10) { edges { node { id } } }`
 * costs 12, as recorded (Shopify/shopify-api-js#602).
 * Invariant: any text gives a result or a syntax message, in bounded work.
 */
import {
  Kind,
  parse,
  type DocumentNode,
  type FieldNode,
  type OperationDefinitionNode,
  type SelectionSetNode,
} from 'graphql/language';
import type { Json } from '../json.ts';
import { Selections } from './graphql-selections.ts';

export interface Plan {
  readonly operation: 'query' | 'mutation' | 'subscription';
  readonly requested: number;
  readonly actual: number;
  readonly data: Json;
  /** Names of the root fields, aliases not counted. */
  readonly rootFields: readonly string[];
  /** Key of an `@idempotent(key:)` directive. */
  readonly idempotencyKey: string | null;
  readonly fields: readonly FieldCost[];
  /** `# sim: ms=300` in the document. */
  readonly ms: number | null;
}

export interface FieldCost {
  readonly path: readonly string[];
  readonly definedCost: number;
  readonly requestedTotalCost: number;
  readonly requestedChildrenCost: number;
}

export type Reading = { readonly plan: Plan } | { readonly message: string };

/** @param rows what a connection really returns, at most. */
export function readDocument(
  query: string,
  variables: Json,
  operationName: string | undefined,
  rows: number,
): Reading {
  try {
    const document = parse(query, { maxTokens: 20_000, noLocation: true });
    const operation = pick(document, operationName);
    if (operation === undefined) return { message: 'No operation named as asked for' };
    return { plan: new Reader(document, operation, variables, rows).plan(query) };
  } catch (error) {
    return { message: error instanceof Error ? error.message : 'Unreadable document' };
  }
}

function pick(document: DocumentNode, name: string | undefined): OperationDefinitionNode | undefined {
  const operations = document.definitions.filter((node) => node.kind === Kind.OPERATION_DEFINITION);
  if (name !== undefined) return operations.find((node) => node.name?.value === name);
  return operations.length === 1 ? operations[0] : undefined;
}

const transparent: ReadonlySet<string> = new Set(['nodes', 'edges', 'node', 'pageInfo', 'userErrors']);

class Reader {
  readonly #selections: Selections;
  readonly #operation: OperationDefinitionNode;
  readonly #rows: number;
  readonly #fieldCosts: FieldCost[] = [];

  constructor(document: DocumentNode, operation: OperationDefinitionNode, variables: Json, rows: number) {
    this.#selections = new Selections(document, operation, variables);
    this.#operation = operation;
    this.#rows = rows;
  }

  plan(query: string): Plan {
    const { selectionSet, operation } = this.#operation;
    const given = override(query);
    const roots = this.#selections.fields(selectionSet).all;
    const requested = this.#cost(selectionSet, [], false, operation === 'mutation');
    const actual = this.#cost(selectionSet, [], true, operation === 'mutation');
    return {
      operation,
      requested: given.requested ?? requested,
      actual: given.actual ?? Math.min(actual, given.requested ?? requested),
      ms: given.ms ?? null,
      data: this.#data(selectionSet, 0, null),
      rootFields: roots.map((field) => field.name.value),
      idempotencyKey: this.#selections.idempotencyKey([
        ...(this.#operation.directives ?? []),
        ...roots.flatMap((field) => field.directives ?? []),
      ]),
      fields: this.#fieldCosts,
    };
  }

  #cost(set: SelectionSetNode, path: readonly string[], actual: boolean, roots: boolean): number {
    const { plain, byType } = this.#selections.fields(set);
    const sum = (fields: readonly FieldNode[]): number =>
      fields.reduce((total, field) => total + this.#fieldCost(field, path, actual, roots), 0);
    return sum(plain) + Math.max(0, ...[...byType.values()].map(sum));
  }

  #fieldCost(field: FieldNode, path: readonly string[], actual: boolean, root: boolean): number {
    const name = field.name.value;
    const own = [...path, field.alias?.value ?? name];
    if (field.selectionSet === undefined) return root ? 10 : 0;
    const children = this.#cost(field.selectionSet, own, actual, false);
    const asked = this.#selections.pageSize(field);
    let total = 1 + children;
    if (root) total = 10 + children;
    else if (transparent.has(name)) total = children;
    else if (asked !== null) {
      const count = actual ? Math.max(1, Math.min(asked, this.#rows)) : asked;
      total = 2 + count * (1 + children);
    }
    if (!actual) {
      const costs = {
        definedCost: total - children,
        requestedTotalCost: total,
        requestedChildrenCost: children,
      };
      this.#fieldCosts.push({ path: own, ...costs });
    }
    return total;
  }

  /** @param rows length of `nodes` and `edges` below a connection. */
  #data(set: SelectionSetNode, row: number, rows: number | null): Json {
    const data: Record<string, unknown> = {};
    const { plain, byType } = this.#selections.fields(set);
    const [type, first = []] = [...byType][0] ?? [];
    for (const field of [...plain, ...first]) {
      data[field.alias?.value ?? field.name.value] =
        field.name.value === '__typename' ? (type ?? 'Object') : this.#value(field, row, rows);
    }
    return data;
  }

  #value(field: FieldNode, row: number, rows: number | null): unknown {
    const { name, selectionSet } = field;
    if (selectionSet === undefined) return leaf(name.value, row);
    if (name.value === 'userErrors') return [];
    if (name.value === 'nodes' || name.value === 'edges') {
      return Array.from({ length: rows ?? this.#rows }, (_, index) => this.#data(selectionSet, index, null));
    }
    const asked = this.#selections.pageSize(field);
    return this.#data(selectionSet, row, asked === null ? null : Math.min(asked, this.#rows));
  }
}

/** `# sim: requested=500 actual=20 ms=300` on a line of its own. */
function override(query: string): { requested?: number; actual?: number; ms?: number } {
  const line = /^\s*#\s*sim:(.*)$/m.exec(query)?.[1] ?? '';
  return Object.fromEntries(
    [...line.matchAll(/(requested|actual|ms)=(\d+(?:\.\d+)?)/g)].map(([, name, value]) => [
      name,
      Number(value),
    ]),
  );
}

function leaf(name: string, row: number): unknown {
  if (name === 'id') return `gid://shopify/Thing/${9_007_199_254_740_993n + BigInt(row)}`;
  if (/^(has|is)[A-Z]/.test(name)) return false;
  if (/cursor$/i.test(name)) return `cursor-${row}`;
  if (/(count|quantity|total)$/i.test(name)) return row + 1;
  if (/(amount|price)$/i.test(name)) return '19.00';
  if (name.endsWith('At')) return '2026-01-01T00:00:00Z';
  return `${name} ${row + 1}`;
}
