/**
 * The parts of a call by which its upstream separates quotas, as the upstream's dialect says (`bucketBy`). A part that a call does
 * not have is an empty text: calls without it share a quota. Pure; nothing is read for an upstream whose dialect separates nothing.
 */
import type { Separator } from '../config/settings.ts';
import { parseJson, valueAt } from '../dispatch/feedback/json.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

export interface SeparatedCall {
  /** Raw path with query. */
  readonly pathAndQuery: string;
  /** Name and value alternating. */
  readonly rawFields: readonly string[];
  readonly body: Buffer;
}

const nothing: readonly string[] = [];

/** One text for each separator, in their order. */
export function separatorsOf(separators: readonly Separator[], call: SeparatedCall): readonly string[] {
  if (separators.length === 0) return nothing;
  return separators.map((separator) => {
    switch (separator.kind) {
      case 'path':
        return pathOf(separator.segments, call.pathAndQuery);
      case 'header':
        return valuesOf(call.rawFields, separator.name).join(', ');
      case 'body':
        return memberOf(separator.pointer, call.body);
    }
  });
}

/** The path up to the last segment of the pattern, where it matches from the start. */
function pathOf(segments: readonly (string | null)[], pathAndQuery: string): string {
  const path = pathAndQuery.split(/[?#]/, 1)[0] ?? '';
  const given = path.split('/').slice(1, segments.length + 1);
  const isSame = segments.every((segment, at) =>
    segment === null ? (given[at] ?? '') !== '' : given[at] === segment,
  );
  return isSame ? `/${given.join('/')}` : '';
}

function memberOf(pointer: readonly string[], body: Buffer): string {
  if (body.length === 0) return '';
  const value = valueAt(parseJson(body.toString('utf8')), pointer);
  return typeof value === 'string' || typeof value === 'number' ? String(value) : '';
}
