/** Which fields of recorded responses state a quota, and in which units. Pure. */
import type { RecordedResponse } from './har.ts';

type Role = 'limit' | 'remaining' | 'used' | 'reset';

const roles: Readonly<Record<string, Role>> = {
  limit: 'limit',
  quota: 'limit',
  max: 'limit',
  remaining: 'remaining',
  left: 'remaining',
  available: 'remaining',
  used: 'used',
  observed: 'used',
  reset: 'reset',
  resets: 'reset',
};

export interface FoundFields {
  readonly limit?: string;
  readonly remaining?: string;
  readonly used?: string;
  readonly reset?: { readonly name: string; readonly as: string };
}

type Named = Pick<RecordedResponse, 'at' | 'fields'>;

/** One set of fields for each family of names; those with a limit or a rest only. */
export function findFields(responses: readonly Named[]): readonly FoundFields[] {
  const families = new Map<string, Map<Role, string>>();
  for (const name of new Set(responses.flatMap(({ fields }) => [...fields.keys()]))) {
    const found = roleOf(name);
    if (found === null || !responses.some(({ fields }) => isNumeric(fields.get(name)))) continue;
    const family = families.get(found.family) ?? new Map<Role, string>();
    family.set(found.role, family.get(found.role) ?? name);
    families.set(found.family, family);
  }
  return [...families.values()]
    .filter((family) => family.has('remaining') || (family.has('limit') && family.has('used')))
    .map((family) => fieldsOf(family, responses));
}

/** The last word of a name that has a meaning, and the others as the family. */
function roleOf(name: string): { readonly role: Role; readonly family: string } | null {
  const words = name.split(/[-_]/);
  const at = words.findLastIndex((word) => Object.hasOwn(roles, word));
  const role = roles[words[at] ?? ''];
  if (role === undefined || name === 'retry-after') return null;
  return { role, family: words.toSpliced(at, 1).join('-') };
}

const isNumeric = (value: string | undefined): boolean => value !== undefined && /\d/.test(value);

function fieldsOf(family: ReadonlyMap<Role, string>, responses: readonly Named[]): FoundFields {
  const reset = family.get('reset');
  const named = Object.fromEntries([...family].filter(([role]) => role !== 'reset')) as FoundFields;
  return reset === undefined ? named : { ...named, reset: { name: reset, as: unitOf(reset, responses) } };
}

/** The unit of a small number: the one with which the computed end of the window stays the same while time passes. */
function unitOf(name: string, responses: readonly Named[]): string {
  const values = responses.flatMap(({ at, fields }) => {
    const value = fields.get(name)?.trim();
    return value === undefined ? [] : [{ at, value }];
  });
  const [first] = values;
  if (first === undefined) return 'seconds';
  if (!/^\d+(\.\d+)?$/.test(first.value))
    return /^[\d.]+(d|h|m|s|ms|us|µs|ns)/.test(first.value) ? 'duration' : 'date';
  const largest = Math.max(...values.map(({ value }) => Number(value)));
  if (largest >= 1e12) return 'epoch-milliseconds';
  if (largest >= 1e9) return 'epoch-seconds';
  const falls = values.slice(1).flatMap(({ at, value }, index) => {
    const before = values[index];
    const fall = before === undefined ? 0 : Number(before.value) - Number(value);
    return before !== undefined && fall > 0 && at > before.at ? [fall / ((at - before.at) / 1000)] : [];
  });
  const typical = falls.toSorted((a, b) => a - b)[Math.floor(falls.length / 2)];
  return (typical ?? (largest > 86_400 ? 1000 : 1)) > 30 ? 'milliseconds' : 'seconds';
}
