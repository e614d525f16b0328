/** Rules between the parts of a dialect, and between it and the upstream that speaks it. */
import type { Finding, Path } from './problem.ts';
import { list, section } from './tree.ts';
import type { Section } from './tree.ts';

const daySeconds = 86_400;

/** Everything that is wrong with an upstream's `speaks` beside its single values. */
export function checkSpeaks(path: Path, upstream: Section): Finding[] {
  const { speaks, kind } = upstream;
  if (speaks === undefined) return [];
  const at: Path = [...path, 'speaks'];
  const found: Finding[] = [];
  if (kind !== undefined && kind !== 'generic') {
    const fix = 'leave kind out, or speaks: the other kinds have dialects of their own';
    found.push({ path: at, reason: 'belongs to the kind generic', fix });
  }
  const parts = section(speaks);
  if (upstream['bucketBy'] !== undefined && parts['bucketBy'] !== undefined)
    found.push({
      path: [...path, 'bucketBy'],
      reason: 'is also given in speaks',
      fix: 'keep one of the two',
    });
  return [...found, ...checkWindows(at, parts), ...checkBucketBy(at, parts), ...checkConditions(at, parts)];
}

function checkWindows(at: Path, parts: Section): Finding[] {
  const lengths = list(parts['windows']).map((window) => section(window)['seconds']);
  const found = lengths.flatMap((seconds, index): Finding[] => {
    if (typeof seconds !== 'number' || lengths.indexOf(seconds) === index) return [];
    const fix = 'keep the smaller one: both count the same calls';
    return [{ path: [...at, 'windows', index], reason: 'is as long as another window', fix }];
  });
  if (lengths.filter((seconds) => typeof seconds === 'number' && seconds < daySeconds).length <= 3)
    return found;
  const fix = 'keep the three that hold calls most, and one of a day';
  return [...found, { path: [...at, 'windows'], reason: 'has more than three windows below a day', fix }];
}

function checkBucketBy(at: Path, parts: Section): Finding[] {
  const by = parts['bucketBy'];
  if (!Array.isArray(by) || by.length === 0 || by.includes('credential')) return [];
  const fix = 'add credential: two credentials never share a quota';
  return [{ path: [...at, 'bucketBy'], reason: 'leaves credential out', fix }];
}

function checkConditions(at: Path, parts: Section): Finding[] {
  return ['throttledBy', 'permanentBy', 'expiredBy'].flatMap((key) =>
    list(parts[key]).flatMap((one, index): Finding[] => {
      const condition = section(one);
      const path: Path = [...at, key, index];
      if (condition['equals'] !== undefined && condition['field'] === undefined) {
        const fix = 'name the field that has this value';
        return [{ path: [...path, 'equals'], reason: 'belongs to no field', fix }];
      }
      return isSuccess(condition)
        ? [{ path, reason: 'holds for every response of a success', fix: 'add field or body to it' }]
        : [];
    }),
  );
}

function isSuccess({ status, field, body }: Section): boolean {
  const statuses = [status].flat().filter((one) => typeof one === 'number');
  return field === undefined && body === undefined && statuses.some((one) => one < 400);
}
