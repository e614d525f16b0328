/**
 * From text to plain values that still know their lines: YAML, `${ENV}` references, positions. Knows nothing of what the
 * keys mean. Invariant: a reference is replaced inside one value only, after parsing, so that no variable can add keys.
 */
import {
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  parseDocument,
  visit,
  type Document,
  type Node,
  type Pair,
  type YAMLMap,
} from 'yaml';
import type { Finding, Path, Problem } from './problem.ts';

/** Environment as the configuration sees it. */
export type Env = Readonly<Record<string, string | undefined>>;

/** A parsed file. */
export interface ConfigDocument {
  /** Plain values: records, lists, texts, numbers, truth values, `null`. */
  readonly tree: unknown;
  /** Syntax faults, with their lines; the tree is not usable when there are any. */
  readonly faults: readonly Pick<Problem, 'line' | 'reason' | 'fix'>[];
  /** References to variables that are not set. */
  readonly missing: readonly Finding[];
  /** Values that were one whole reference: a variable can only hold text, but may stand for a number. */
  readonly referenced: readonly Path[];
  /** Line of the deepest key of the path that exists in the file. */
  readonly lineOf: (path: Path) => number;
}

const indent =
  'put the same number of blanks, no tabs, before keys of one section; a text with a colon belongs in quotes';

/** By the parser's code, where more can be said than that the YAML is to be corrected. */
const syntaxFixes: Readonly<Record<string, string>> = {
  BAD_INDENT: `${indent}; [ and { need their ends`,
  BLOCK_AS_IMPLICIT_KEY: indent,
  MULTILINE_IMPLICIT_KEY: indent,
  TAB_AS_INDENT: 'use blanks instead',
  MISSING_CHAR: 'write the missing character: a quote, bracket or brace at the end',
};

/** Parses the text and fills in `${NAME}` from `env`; `$${` stands for a literal `${`. */
export function readDocument(text: string, env: Env): ConfigDocument {
  const lines = new LineCounter();
  // The parser's own search for repeated keys compares each key with each: over half of its time for 10,000 workspaces.
  const document = parseDocument(text, {
    lineCounter: lines,
    merge: true,
    prettyErrors: false,
    uniqueKeys: false,
  });
  const faults = [...document.errors, ...document.warnings].map((error) => ({
    line: lines.linePos(error.pos[0]).line,
    // The parser's own words up to the colon: what follows may be a piece of the file.
    reason: error.message.split(/[:\n]/)[0] ?? '',
    fix:
      syntaxFixes[error.code] ??
      'correct the YAML; texts with special characters belong in quotes, also ${NAME} within { }',
  }));
  const missing: Finding[] = [];
  const referenced: Path[] = [];
  visit(document, {
    Map(_, map) {
      for (const offset of repeatedKeys(map)) {
        const { line } = lines.linePos(offset);
        faults.push({
          line,
          reason: 'Map keys must be unique',
          fix: 'remove one of the two, or join what stands below them',
        });
      }
    },
    Scalar(key, node, ancestors) {
      if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return;
      const path = pathOf(key, ancestors);
      const filled = interpolate(node.value, env);
      if (/^\$\{[^}]*\}$/.test(node.value)) referenced.push(path);
      if (filled.kind === 'text') node.value = filled.text;
      else missing.push({ path, reason: filled.reason, fix: filled.fix });
    },
  });
  faults.sort((a, b) => a.line - b.line);
  // What follows a fault in its line follows from it.
  const first = faults.filter(({ line }, at) => line !== faults[at - 1]?.line);
  let tree: unknown = null;
  try {
    if (faults.length === 0) tree = document.toJS();
  } catch {
    const reason = 'An alias (*name) has no anchor before it, or aliases multiply too far';
    first.push({ line: 1, reason, fix: 'put the anchor (&name) at the first use, or write the value out' });
  }
  const lineOf = (path: Path): number => lines.linePos(offsetOf(document, path)).line;
  return { tree, faults: first, missing, referenced, lineOf };
}

/** Offsets of keys that stand in the map a second time: YAML leaves open which of two values would count. */
function repeatedKeys({ items }: YAMLMap): number[] {
  const seen = new Set<unknown>();
  return items.flatMap(({ key }) => {
    if (!isScalar(key)) return [];
    if (seen.has(key.value)) return [key.range?.[0] ?? 0];
    seen.add(key.value);
    return [];
  });
}

type Filled =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'missing'; readonly reason: string; readonly fix: string };

/** Replaces every reference of one value. Variables are not read again for references of their own. */
function interpolate(text: string, env: Env): Filled {
  let reason: string | null = null;
  let fix = '';
  const filled = text.replace(/\$?\$\{([^}]*)(\}?)/g, (whole: string, name: string, end: string) => {
    if (whole.startsWith('$$')) return whole.slice(1);
    if (end === '' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
      reason ??= 'has a ${…} that is not a variable name in braces';
      fix ||= 'write ${NAME}, or $${ for a literal ${';
      return '';
    }
    const value = Object.hasOwn(env, name) ? env[name] : undefined;
    if (value === undefined || value === '') {
      reason ??= `needs the environment variable ${name}, which is ${value === '' ? 'empty' : 'not set'}`;
      fix ||= `set ${name} before starting, or write $\${${name}} if the text itself is meant`;
    }
    return value ?? '';
  });
  return reason === null ? { kind: 'text', text: filled } : { kind: 'missing', reason, fix };
}

/** Keys from the root to a node that `visit` stands on. */
function pathOf(
  key: number | string | null,
  ancestors: readonly (Document | Node | Pair)[],
): (string | number)[] {
  const path: (string | number)[] = [];
  ancestors.forEach((ancestor, depth) => {
    const child = ancestors[depth + 1];
    if (isNode(ancestor) && isSeq(ancestor)) {
      path.push(child === undefined ? Number(key) : ancestor.items.indexOf(child));
    } else if ('key' in ancestor) path.push(keyText(ancestor.key));
  });
  return path;
}

const keyText = (key: unknown): string => String(isScalar(key) ? key.value : key);

/** Character offset of the deepest existing key of the path. */
function offsetOf(document: Document, path: Path): number {
  let node: unknown = document.contents;
  let offset = 0;
  for (const key of path) {
    if (isAlias(node)) node = node.resolve(document);
    if (isMap(node)) {
      const pair = node.items.find((item) => keyText(item.key) === String(key));
      if (pair === undefined) break;
      if (isNode(pair.key) && pair.key.range) offset = pair.key.range[0];
      node = pair.value;
    } else if (isSeq(node)) {
      const item: unknown = node.items[Number(key)];
      if (!isNode(item)) break;
      if (item.range) offset = item.range[0];
      node = item;
    } else break;
  }
  return offset;
}
