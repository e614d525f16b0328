/**
 * Words for what the schema found: zod's issues become findings with a reason and a fix. Never shows a text of the file,
 * only numbers and kinds of values.
 */
import type { z } from 'zod';
import { isDurationKey } from '../duration.policy.ts';
import { didYouMean } from '../nearest.policy.ts';
import type { Finding, Path } from './problem.ts';

type Issue = z.core.$ZodIssue;

/** The value at a path of a plain tree, or `undefined`. */
export function valueAt(tree: unknown, path: Path): unknown {
  let value = tree;
  for (const key of path) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined;
    value = Reflect.get(value, key) as unknown;
  }
  return value;
}

/** All findings of one issue (an object with three unknown keys is three). */
export function explain(issue: Issue, tree: unknown, base: Path = []): Finding[] {
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

/** Of the forms a value may take, explains the one the writer seems to have meant: the form that got furthest. */
function explainUnion(issue: Issue & { code: 'invalid_union' }, tree: unknown, path: Path): Finding[] {
  const rejectsWhole = (issues: readonly Issue[]): boolean =>
    issues.some((inner) => inner.path.length === 0 && /^invalid_(type|value)$/.test(inner.code));
  const meant = issue.errors.find((issues) => !rejectsWhole(issues)) ?? issue.errors[0] ?? [];
  return meant.flatMap((inner) => explain(inner, tree, path));
}
