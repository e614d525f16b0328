/**
 * From the text of a configuration file, or of a preset, to checked plain values, or one {@link ConfigError} with every problem: YAML,
 * `${ENV}` references, positions, and words for what the schema found. Touches no file and fills in no keys that depend on others: it may
 * run in a thread of its own.
 * Invariants: a reference is replaced inside one value only, after parsing, so that no variable can add keys; no message shows a text of
 * the file, only numbers and kinds of values.
 */
import type { z } from 'zod';
import { isDurationKey, secondsOf } from '../duration.policy.ts';
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
import { didYouMean } from '../nearest.policy.ts';
import { ConfigError, pathText, type Finding, type Path, type Problem } from './problem.ts';

/** Where the configuration comes from. */
export interface ConfigSource {
  /** Path of the YAML file. */
  readonly path: string;
  readonly env: Env;
}

/** A configuration as it was read: `env` has the variables of the `.env` beside it too. */
export interface WrittenConfig extends ConfigSource {
  readonly text: string;
  /** Of the file and its `.env`; only equality means anything. */
  readonly digest: string;
}

/** Checks a text by the schema of its kind of file; `path` only names it in messages. @throws ConfigError */
export function checkText<Schema extends z.ZodType>(
  schema: Schema,
  text: string,
  { path, env }: ConfigSource,
): z.output<Schema> {
  const document = readDocument(text, env);
  if (document.faults.length > 0) throw new ConfigError(path, document.faults);
  const { result, findings } = check(schema, document);
  if (!result.success || findings.length > 0) throw configError(path, document, findings);
  return result.data;
}

function check<Schema extends z.ZodType>(
  schema: Schema,
  document: ConfigDocument,
): { readonly result: z.ZodSafeParseResult<z.output<Schema>>; readonly findings: readonly Finding[] } {
  const first = schema.safeParse(document.tree);
  const retyped = first.success
    ? 0
    : retypeTexts(
        document,
        first.error.issues.flatMap((i) => explain(i, null)),
      );
  const result = retyped === 0 ? first : schema.safeParse(document.tree);
  const found = result.success ? [] : result.error.issues.flatMap((issue) => explain(issue, document.tree));
  const unfilled = new Set(document.missing.map(({ path }) => pathText(path)));
  const others = found.filter(({ path }) => !unfilled.has(pathText(path)));
  return { result, findings: [...document.missing, ...others] };
}

/**
 * Where the schema refused a text, what the writer meant by it: a variable holds text only, and may spell a number or truth value
 * (`port: "${PORT}"`), and a duration may have a unit. Returns how many values were changed.
 */
function retypeTexts(document: ConfigDocument, refused: readonly Finding[]): number {
  const references = new Set(document.referenced.map(pathText));
  let changed = 0;
  for (const { path } of refused) {
    const parent = valueAt(document.tree, path.slice(0, -1));
    const key = path.at(-1);
    const text = valueAt(document.tree, path);
    if (key === undefined || typeof text !== 'string' || typeof parent !== 'object' || parent === null)
      continue;
    const seconds = isDurationKey(key) ? secondsOf(text) : null;
    const meant = seconds ?? (references.has(pathText(path)) ? spelled(text) : undefined);
    if (meant === undefined) continue;
    Reflect.set(parent, key, meant);
    changed += 1;
  }
  return changed;
}

const spelled = (text: string): number | boolean | undefined =>
  /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : ({ true: true, false: false } as const)[text];

function configError(path: string, document: ConfigDocument, findings: readonly Finding[]): ConfigError {
  const problems = findings.map((finding) => ({
    path: finding.path.length === 0 ? '' : pathText(finding.path),
    line: document.lineOf(finding.path),
    reason: finding.reason,
    fix: finding.fix,
  }));
  problems.sort((a, b) => a.line - b.line);
  return new ConfigError(path, problems);
}

/** Environment as the configuration sees it. */
export type Env = Readonly<Record<string, string | undefined>>;

type SyntaxFault = Problem & { readonly line: number };

/** A parsed file. */
interface ConfigDocument {
  /** Plain values: records, lists, texts, numbers, truth values, `null`. */
  readonly tree: unknown;
  /** Syntax faults, with their lines; the tree is not usable when there are any. */
  readonly faults: readonly SyntaxFault[];
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
  MULTIPLE_DOCS: 'remove the line --- and join what stands below it with the rest',
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
  const faults: SyntaxFault[] = [...document.errors, ...document.warnings].map((error) => ({
    path: '',
    line: lines.linePos(error.pos[0]).line,
    // The parser's own words up to the colon or semicolon: what follows may be a piece of the file, or advice to programmers.
    reason: error.message.split(/[:;\n]/)[0] ?? '',
    fix:
      syntaxFixes[error.code] ??
      'correct the YAML; texts with special characters belong in quotes, also ${NAME} within { }',
  }));
  const missing: Finding[] = [];
  const referenced: Path[] = [];
  visit(document, {
    Map(key, map, ancestors) {
      for (const { name, offset } of repeatedKeys(map)) {
        const { line } = lines.linePos(offset);
        faults.push({
          path: pathText([...pathOf(key, ancestors), name]),
          line,
          reason: 'is written twice in one section',
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
    first.push({
      path: '',
      line: 1,
      reason,
      fix: 'put the anchor (&name) at the first use, or write the value out',
    });
  }
  const lineOf = (path: Path): number => lines.linePos(offsetOf(document, path)).line;
  return { tree, faults: first, missing, referenced, lineOf };
}

/** Keys that stand in the map a second time: YAML leaves open which of two values would count. */
function repeatedKeys({ items }: YAMLMap): { readonly name: string; readonly offset: number }[] {
  const seen = new Set<unknown>();
  return items.flatMap(({ key }) => {
    if (!isScalar(key)) return [];
    if (seen.has(key.value)) return [{ name: keyText(key), offset: key.range?.[0] ?? 0 }];
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
      fix ||= `set ${name}, in the environment or in .env beside the file, or write $\${${name}} if the text itself is meant`;
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

type Issue = z.core.$ZodIssue;

/** The value at a path of a plain tree, or `undefined`. */
function valueAt(tree: unknown, path: Path): unknown {
  let value = tree;
  for (const key of path) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined;
    value = Reflect.get(value, key) as unknown;
  }
  return value;
}

/** All findings of one issue (an object with three unknown keys is three). */
function explain(issue: Issue, tree: unknown, base: Path = []): Finding[] {
  const path: Path = [...base, ...issue.path.map((key) => (typeof key === 'symbol' ? String(key) : key))];
  const one = (reason: string, fix: string): Finding[] => [{ path, reason, fix }];
  switch (issue.code) {
    case 'custom': {
      const fix: unknown = issue.params?.['fix'];
      return one(issue.message, typeof fix === 'string' ? fix : 'correct the value');
    }
    case 'unrecognized_keys':
      return issue.keys.map((key) => ({
        path: [...path, key],
        reason: 'is not a known key',
        fix: `${didYouMean(key, issue.message.split(', '))}known here: ${issue.message}`,
      }));
    case 'invalid_union':
      return explainUnion(issue, tree, path);
    case 'invalid_type': {
      const isDuration = isDurationKey(path.at(-1) ?? '');
      return one(...wrongType(isDuration ? 'duration' : issue.expected, valueAt(tree, path)));
    }
    case 'invalid_value': {
      const words = issue.values.map(String);
      const written = valueAt(tree, path);
      const meant = typeof written === 'string' ? didYouMean(written, words) : '';
      return one(
        `must be ${words.length === 1 ? '' : 'one of '}${words.join(', ')}`,
        `${meant}use one of the words given, or leave the key out for the default`,
      );
    }
    case 'too_small':
      if (issue.origin === 'array' || issue.origin === 'string') return one('is empty', 'give at least one');
      return one(
        `must be ${issue.inclusive ? 'at least' : 'more than'} ${issue.minimum}${given(tree, path)}`,
        numberFix,
      );
    case 'too_big':
      return one(`must be at most ${issue.maximum}${given(tree, path)}`, numberFix);
    case 'invalid_format':
    case 'not_multiple_of':
    case 'invalid_key':
    case 'invalid_element':
      return one('has a form that cannot be used', 'see the description of the key in the JSON Schema');
  }
}

const numberFix = 'write a number in that range, or leave the key out for the default';

function given(tree: unknown, path: Path): string {
  const value = valueAt(tree, path);
  return typeof value === 'number' ? `, not ${value}` : '';
}

const wanted: Readonly<Record<string, readonly [reason: string, fix: string]>> = {
  string: ['a text', 'write a text; put it in quotes if it looks like a number'],
  number: ['a number', 'write a plain number such as 30, without quotes or unit'],
  duration: ['a number of seconds', 'write seconds such as 90, or a duration such as 90s, 5m or 2h'],
  int: ['a whole number', 'write a whole number such as 500, without quotes or unit'],
  boolean: ['true or false', 'write true or false, without quotes'],
  array: ['a list', 'write a list: [ … ] or lines that start with "- "'],
  object: ['a section with keys', 'write keys below it, or leave it out'],
  record: ['a section with names as keys', 'write names as keys below it'],
};

function wrongType(expected: string, value: unknown): [string, string] {
  const [kind, fix] = wanted[expected] ?? [expected, 'correct the value'];
  if (value === undefined) return ['is missing', `add it: ${fix}`];
  return [`must be ${kind}, not ${kindOf(value)}`, fix];
}

function kindOf(value: unknown): string {
  if (value === null) return 'empty';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'number') return String(value);
  if (typeof value === 'boolean') return String(value);
  return typeof value === 'string' ? 'a text' : 'a section';
}

/** Of the forms a value may take, explains the one the writer seems to have meant: the form that got furthest, else the first, and names words that would do. */
function explainUnion(issue: Issue & { code: 'invalid_union' }, tree: unknown, path: Path): Finding[] {
  const rejectsWhole = (issues: readonly Issue[]): boolean =>
    issues.some((inner) => inner.path.length === 0 && /^invalid_(type|value)$/.test(inner.code));
  const meant = issue.errors.find((issues) => !rejectsWhole(issues));
  if (meant !== undefined) return meant.flatMap((inner) => explain(inner, tree, path));
  const [first = [], ...others] = issue.errors;
  const words = others.flat().flatMap((inner) => (inner.code === 'invalid_value' ? inner.values : []));
  return first
    .flatMap((inner) => explain(inner, tree, path))
    .map((found) =>
      words.length === 0 ? found : { ...found, fix: `${found.fix}, or ${words.join(' or ')}` },
    );
}
