/**
 * From the text of a configuration file, or of a preset, to checked plain values, or one {@link ConfigError} with every problem: YAML,
 * `${ENV}` references, positions, and words for what the schema found. Touches no file and fills in no keys that depend on others: it may
 * run in a thread of its own.
 * Invariants: a reference is replaced inside one value only, after parsing, so that no variable can add keys; no message shows a text of
 * the file, only names, numbers and kinds of values, because values may be secrets.
 */
import { isAlias, isMap, isNode, isScalar, isSeq, LineCounter, parseDocument, visit } from 'yaml';
import type { z } from 'zod';
import { isDurationKey, secondsOf } from '../duration.policy.ts';
import { didYouMean } from '../nearest.policy.ts';
import type { Fault, Path } from './values.ts';

/** Environment as the configuration sees it. */
export type Env = Readonly<Record<string, string | undefined>>;

/** Where the configuration comes from. */
export interface ConfigSource {
  /** Path of the YAML file. */
  readonly path: string;
  readonly env: Env;
}

/** One mistake. */
export interface Problem extends Fault {
  /** Dotted key path (`upstreams.openai.limits`), or `''` for the file as a whole. */
  readonly path: string;
  /** 1-based line, or `null` when the file could not be read. */
  readonly line: number | null;
}

/** The configuration cannot be used. Holds every problem of the file, in the order of its lines. */
export class ConfigError extends Error {
  readonly problems: readonly Problem[];

  constructor(file: string, problems: readonly Problem[]) {
    const lines = problems.map(({ path, line, reason, fix }) => {
      const position = [line === null ? '' : `line ${line}`, path].filter((part) => part !== '').join(', ');
      return `\n  ${position === '' ? '' : `${position}: `}${reason}\n    fix: ${fix}`;
    });
    super(`${file}: ${problems.length === 1 ? '1 problem' : `${problems.length} problems`}${lines.join('')}`);
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

/** `['keys', 0, 'hash']` → `keys[0].hash`; keys with unusual characters are quoted. */
export const pathText = (path: Path): string =>
  path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`;
    if (!/^[\w-]+$/.test(key)) return `${text}[${JSON.stringify(key)}]`;
    return text === '' ? key : `${text}.${key}`;
  }, '');

/** A problem before its path was turned into text and a line. */
interface Finding extends Fault {
  readonly path: Path;
}

/** Checks a text by the schema of its kind of file; `path` only names it in messages. @throws ConfigError */
export function checkText<Schema extends z.ZodType>(
  schema: Schema,
  text: string,
  { path: file, env }: ConfigSource,
): z.output<Schema> {
  const document = readDocument(text, env);
  const { tree, faults, missing } = document;
  if (faults.length > 0) throw new ConfigError(file, faults);
  let result = schema.safeParse(tree, { reportInput: true });
  if (retypeTexts(document, findingsOf(result))) result = schema.safeParse(tree, { reportInput: true });
  if (result.success && missing.length === 0) return result.data;
  const unfilled = new Set(missing.map(({ path }) => pathText(path)));
  const others = findingsOf(result).filter(({ path }) => !unfilled.has(pathText(path)));
  const problems = [...missing, ...others]
    .map(({ path, ...fault }) => ({ ...fault, path: pathText(path), line: document.lineOf(path) }))
    .toSorted((a, b) => a.line - b.line);
  throw new ConfigError(file, problems);
}

const findingsOf = ({ error }: z.ZodSafeParseResult<unknown>): Finding[] =>
  (error?.issues ?? []).flatMap((issue) => explain(issue));

/**
 * Where the schema refused a text, what the writer meant by it: a variable holds text only, and may spell a number or truth value
 * (`port: "${PORT}"`), and a duration may have a unit. Returns whether a value was changed.
 */
function retypeTexts({ tree, referenced }: ConfigDocument, refused: readonly Finding[]): boolean {
  let isChanged = false;
  for (const { path } of refused) {
    const key = path.at(-1) ?? '';
    const parent = path.slice(0, -1).reduce(memberOf, tree);
    const text = memberOf(parent, key);
    if (typeof text !== 'string' || typeof parent !== 'object' || parent === null) continue;
    const seconds = isDurationKey(key) ? secondsOf(text) : null;
    const meant = seconds ?? (referenced.has(pathText(path)) ? spelled(text) : undefined);
    if (meant !== undefined) isChanged = Reflect.set(parent, key, meant);
  }
  return isChanged;
}

const memberOf = (value: unknown, key: string | number): unknown =>
  typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    ? (Reflect.get(value, key) as unknown)
    : undefined;

const spelled = (text: string): number | boolean | undefined =>
  /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : ({ true: true, false: false } as const)[text];

/** A parsed file. */
type ConfigDocument = ReturnType<typeof readDocument>;

const syntaxFix =
  'correct the YAML: the same number of blanks, no tabs, before keys of one section, an end for each quote, [ and {; texts with special characters belong in quotes, also ${NAME} within { }';

/** Uses of one anchor, times what stands for aliases inside it: ten thousand workspaces may share a section, and no text grows without bound. */
const maxAliasCount = 100_000;

/** Parses the text and fills in `${NAME}` from `env`; `$${` stands for a literal `${`. */
export function readDocument(text: string, env: Env) {
  const lines = new LineCounter();
  const lineAt = (offset = 0): number => lines.linePos(offset).line;
  // The parser's own search for repeated keys compares each key with each: over half of its time for 10,000 workspaces.
  const options = { lineCounter: lines, merge: true, prettyErrors: false, uniqueKeys: false };
  const document = parseDocument(text, options);
  const found = [...document.errors, ...document.warnings].map(({ message, pos }) => ({
    path: '',
    line: lineAt(pos[0]),
    // The parser's own words up to the colon or semicolon: what follows may be a piece of the file, or advice to programmers.
    reason: message.split(/[:;\n]/)[0] ?? '',
    fix: syntaxFix,
  }));
  /** References to variables that are not set. */
  const missing: Finding[] = [];
  /** Values that were one whole reference: a variable can only hold text, but may stand for a number. */
  const referenced = new Set<string>();
  const walk = (node: unknown, path: Path): void => {
    if (isSeq(node)) node.items.forEach((item, index) => walk(item, [...path, index]));
    if (isMap(node)) {
      const seen = new Set<unknown>();
      for (const { key, value } of node.items) {
        const at = [...path, keyText(key)];
        if (isScalar(key) && seen.has(key.value))
          // YAML leaves open which of two values would count.
          found.push({
            path: pathText(at),
            line: lineAt(key.range?.[0]),
            reason: 'is written twice in one section',
            fix: 'remove one of the two, or join what stands below them',
          });
        if (isScalar(key)) seen.add(key.value);
        walk(value, at);
      }
    }
    if (!isScalar(node) || typeof node.value !== 'string' || !node.value.includes('${')) return;
    if (/^\$\{[^}]*\}$/.test(node.value)) referenced.add(pathText(path));
    const { filled, faults } = interpolate(node.value, env);
    node.value = filled;
    missing.push(...faults.slice(0, 1).map((fault) => ({ path, ...fault })));
  };
  walk(document.contents, []);
  found.sort((a, b) => a.line - b.line);
  // What follows a fault in its line follows from it.
  const faults = found.filter(({ line }, at) => line !== found[at - 1]?.line);
  let tree: unknown = null;
  try {
    if (faults.length === 0) tree = document.toJS({ maxAliasCount });
  } catch {
    const reason = 'An alias (*name) has no anchor before it, or aliases multiply too far';
    const fix =
      'put the anchor (&name) before it, write the value out, or put a text that begins with * into quotes';
    let offset = 0;
    visit(document, {
      Alias(_, alias) {
        if (alias.resolve(document) !== undefined) return undefined;
        offset = alias.range?.[0] ?? 0;
        return visit.BREAK;
      },
    });
    faults.push({ path: '', line: lineAt(offset), reason, fix });
  }
  /** Line of the deepest key of the path that exists in the file. */
  const lineOf = (path: Path): number => {
    let node: unknown = document.contents;
    let offset = 0;
    for (const key of path) {
      if (isAlias(node)) node = node.resolve(document);
      const pair = isMap(node) ? node.items.find((item) => keyText(item.key) === String(key)) : undefined;
      const item: unknown = isSeq(node) ? node.items[Number(key)] : pair?.key;
      if (!isNode(item)) break;
      offset = item.range?.[0] ?? offset;
      node = pair === undefined ? item : pair.value;
    }
    return lineAt(offset);
  };
  /** Syntax faults are in the order of their lines; the tree is not usable when there are any. */
  return { tree, faults, missing, referenced, lineOf };
}

const keyText = (key: unknown): string => String(isScalar(key) ? key.value : key);

/** Replaces every reference of one value. Variables are not read again for references of their own. */
function interpolate(text: string, env: Env) {
  const faults: Fault[] = [];
  const filled = text.replace(/\$?\$\{([^}]*)(\}?)/g, (whole: string, name: string, end: string) => {
    if (whole.startsWith('$$')) return whole.slice(1);
    const value = Object.hasOwn(env, name) ? env[name] : undefined;
    if (end === '' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
      const fix = 'write ${NAME}, or $${ for a literal ${';
      faults.push({ reason: 'has a ${…} that is not a variable name in braces', fix });
    } else if (value === undefined || value === '')
      faults.push({
        reason: `needs the environment variable ${name}, which is ${value === '' ? 'empty' : 'not set'}`,
        fix: `set ${name}, in the environment or in .env beside the file, or write $\${${name}} if the text itself is meant`,
      });
    return value ?? '';
  });
  return { filled, faults };
}

type Issue = z.core.$ZodIssue;

/** All findings of one issue (an object with three unknown keys is three). */
function explain(issue: Issue, base: Path = []): Finding[] {
  const path: Path = [...base, ...issue.path.map((key) => (typeof key === 'symbol' ? String(key) : key))];
  const { input } = issue;
  const one = (reason: string, fix: string): Finding[] => [{ path, reason, fix }];
  switch (issue.code) {
    case 'custom':
      return one(issue.message, String(issue.params?.['fix']));
    case 'unrecognized_keys': {
      const known = issue.message;
      return issue.keys.map((key) => {
        const fix = `${didYouMean(key, known.split(', '))}known here: ${known}`;
        return { path: [...path, key], reason: 'is not a known key', fix };
      });
    }
    case 'invalid_union':
      return explainUnion(issue, path);
    case 'invalid_type': {
      const expected = isDurationKey(path.at(-1) ?? '') ? 'duration' : issue.expected;
      const [kind, fix] = wanted[expected] ?? [expected, 'correct the value'];
      return input === undefined
        ? one('is missing', `add it: ${fix}`)
        : one(`must be ${kind}, not ${kindOf(input)}`, fix);
    }
    case 'invalid_value': {
      const words = issue.values.map(String);
      const meant = typeof input === 'string' ? didYouMean(input, words) : '';
      const fix = `${meant}use one of the words given, or leave the key out for the default`;
      return one(`must be ${words.length === 1 ? '' : 'one of '}${words.join(', ')}`, fix);
    }
    case 'too_small':
    case 'too_big': {
      if (issue.code === 'too_small' && (issue.origin === 'array' || issue.origin === 'string'))
        return one('is empty', 'give at least one');
      const least = issue.inclusive ? 'at least' : 'more than';
      const bound = issue.code === 'too_big' ? `at most ${issue.maximum}` : `${least} ${issue.minimum}`;
      const fix = 'write a number in that range, or leave the key out for the default';
      return one(`must be ${bound}${typeof input === 'number' ? `, not ${input}` : ''}`, fix);
    }
    case 'invalid_format': {
      const fix = `write a text that matches ${issue.pattern ?? issue.format}`;
      return one('has a form that cannot be used', fix);
    }
    case 'invalid_element':
    case 'invalid_key':
    case 'not_multiple_of':
      return one('has a form that cannot be used', 'see the description of the key in the JSON Schema');
  }
}

/** What a value must be, and what to write; by zod's word for it. */
const wanted: Readonly<Record<string, readonly [kind: string, fix: string]>> = {
  string: ['a text', 'write a text; put it in quotes if it looks like a number'],
  number: ['a number', 'write a plain number such as 30, without quotes or unit'],
  duration: ['a number of seconds', 'write seconds such as 90, or a duration such as 90s, 5m or 2h'],
  int: ['a whole number', 'write a whole number such as 500, without quotes or unit'],
  boolean: ['true or false', 'write true or false, without quotes'],
  array: ['a list', 'write a list: [ … ] or lines that start with "- "'],
  object: ['a section with keys', 'write keys below it, or leave it out'],
  record: ['a section with names as keys', 'write names as keys below it'],
};

function kindOf(value: unknown): string {
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  if (typeof value === 'string') return 'a text';
  return value === null ? 'empty' : Array.isArray(value) ? 'a list' : 'a section';
}

/** Of the forms a value may take, explains the one the writer seems to have meant: the form that got furthest, else the first, and names words that would do. */
function explainUnion({ errors }: Issue & { code: 'invalid_union' }, path: Path): Finding[] {
  const rejectsWhole = (issues: readonly Issue[]): boolean =>
    issues.some(({ path, code }) => path.length === 0 && /^invalid_(type|value)$/.test(code));
  const meant = errors.find((issues) => !rejectsWhole(issues));
  const others = meant === undefined ? errors.slice(1).flat() : [];
  const words = others.flatMap((issue) => {
    if (issue.code === 'invalid_type') return issue.expected === 'array' ? ['a list: [ … ]'] : [];
    return issue.code === 'invalid_value' ? issue.values : [];
  });
  const ending = words.length === 0 ? '' : `, or ${words.join(' or ')}`;
  return (meant ?? errors[0] ?? [])
    .flatMap((issue) => explain(issue, path))
    .map((found) => ({ ...found, fix: `${found.fix}${ending}` }));
}
