/**
 * What a GraphQL document selects, with its fragments inlined and its variables filled in.
 *
 * Owns: fragments, type conditions, `@skip` and `@include`, values of arguments. Does not own: what a field costs or
 * returns (`graphql-document.ts`). Invariant: bounded work, also for fragments that contain themselves.
 */
import {
  Kind,
  type DirectiveNode,
  type DocumentNode,
  type FieldNode,
  type FragmentDefinitionNode,
  type OperationDefinitionNode,
  type SelectionSetNode,
  type ValueNode,
} from 'graphql/language';
import type { Json } from '../json.ts';

/** Selections of a document that are visited before it counts as too complex; a fragment counts at each use. */
const maxVisits = 20_000;

/** Fields of one selection set: those that always count, and those of each type condition. */
export interface SelectedFields {
  readonly plain: FieldNode[];
  readonly byType: Map<string, FieldNode[]>;
  readonly all: FieldNode[];
}

export class Selections {
  readonly #fragments = new Map<string, FragmentDefinitionNode>();
  readonly #variables: Json;
  #visits = 0;

  constructor(document: DocumentNode, operation: OperationDefinitionNode, variables: Json) {
    for (const node of document.definitions) {
      if (node.kind === Kind.FRAGMENT_DEFINITION) this.#fragments.set(node.name.value, node);
    }
    const defaults: Record<string, unknown> = {};
    for (const { variable, defaultValue } of operation.variableDefinitions ?? []) {
      if (defaultValue !== undefined) defaults[variable.name.value] = this.#literal(defaultValue, {});
    }
    this.#variables = { ...defaults, ...variables };
  }

  /** The fields of a selection set with its fragments inlined: those of every type, and those of each type condition. */
  fields(set: SelectionSetNode): SelectedFields {
    const plain: FieldNode[] = [];
    const byType = new Map<string, FieldNode[]>();
    const visit = (inner: SelectionSetNode, type: string | null, trail: readonly string[]): void => {
      for (const node of inner.selections) {
        if ((this.#visits += 1) > maxVisits) throw new Error('Query is too complex');
        if (this.#skipped(node.directives ?? [])) continue;
        if (node.kind === Kind.FIELD) {
          if (type === null) plain.push(node);
          else byType.set(type, [...(byType.get(type) ?? []), node]);
        } else if (node.kind === Kind.INLINE_FRAGMENT) {
          visit(node.selectionSet, node.typeCondition?.name.value ?? type, trail);
        } else {
          const name = node.name.value;
          const fragment = this.#fragments.get(name);
          if (fragment === undefined) throw new Error(`Fragment ${name} was used, but not defined`);
          if (trail.includes(name)) throw new Error(`Fragment ${name} contains an infinite loop`);
          // The type of a named fragment is usually that of the field itself, so its fields are not counted as one of several
          // alternatives.
          visit(fragment.selectionSet, type, [...trail, name]);
        }
      }
    };
    visit(set, null, []);
    return { plain, byType, all: [...plain, ...[...byType.values()].flat()] };
  }

  #skipped(directives: readonly DirectiveNode[]): boolean {
    return directives.some(({ name, arguments: given }) => {
      const condition = given?.find((argument) => argument.name.value === 'if')?.value;
      if (condition === undefined) return false;
      const value = this.#literal(condition, this.#variables);
      return name.value === 'skip' ? value === true : name.value === 'include' && value === false;
    });
  }

  /** `first` or `last` of a field; `null` = it has neither. */
  pageSize(field: FieldNode): number | null {
    for (const { name, value } of field.arguments ?? []) {
      if (name.value !== 'first' && name.value !== 'last') continue;
      const size = Number(this.#literal(value, this.#variables));
      if (Number.isFinite(size) && size >= 0) return size;
    }
    return null;
  }

  /** Key of an `@idempotent(key:)` directive among these. */
  idempotencyKey(directives: readonly DirectiveNode[]): string | null {
    const found = directives.find(({ name }) => name.value === 'idempotent');
    const argument = found?.arguments?.find(({ name }) => name.value === 'key');
    const key = argument === undefined ? undefined : this.#literal(argument.value, this.#variables);
    return typeof key === 'string' ? key : null;
  }

  #literal(value: ValueNode, variables: Json): unknown {
    switch (value.kind) {
      case Kind.VARIABLE:
        return variables[value.name.value];
      case Kind.INT:
      case Kind.FLOAT:
        return Number(value.value);
      case Kind.STRING:
      case Kind.BOOLEAN:
      case Kind.ENUM:
        return value.value;
      case Kind.NULL:
      case Kind.LIST:
      case Kind.OBJECT:
        return null;
    }
  }
}
