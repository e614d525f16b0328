/**
 * The parts of a call by which its upstream separates quotas, as the upstream's dialect says (`bucketBy`). A part that a call does
 * not have is an empty text: calls without it share a quota. Pure; nothing is read for an upstream whose dialect separates nothing.
 */
import type { Separator } from '../config/settings.ts';
import { parseJson, valueAt } from '../dispatch/feedback/json.policy.ts';
import type { CallRequest } from '../dispatch/estimate.policy.ts';
import { decodedBody, formFields, maxParsedBody } from '../dispatch/request-body.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

/** One text for each separator, in their order. */
export function separatorsOf(separators: readonly Separator[], call: CallRequest): readonly string[] {
  if (separators.length === 0) return [];
  const segments = segmentsOf(call.path);
  const { json, form } = readBody(call);
  return separators.map((separator) => {
    switch (separator.kind) {
      case 'method':
        return call.method;
      case 'path':
        return shapeOf(separator.segments, segments);
      case 'header':
        return valuesOf(call.rawFields, separator.name).join(', ');
      case 'form':
        return form().get(separator.name) ?? '';
      case 'body': {
        const value = valueAt(json(), separator.pointer);
        if (typeof value === 'string' || typeof value === 'number') return String(value);
        // Some APIs take the same as a form, whose fields are members of one level.
        const [name = '', ...deeper] = separator.pointer;
        return deeper.length === 0 ? (form().get(name) ?? '') : '';
      }
    }
  });
}

/** The body as a document and as a form, each read once, and only where a separator asks. */
function readBody({ contentType, rawFields, body }: CallRequest): {
  readonly json: () => unknown;
  readonly form: () => ReadonlyMap<string, string>;
} {
  let json: { readonly value: unknown } | null = null;
  let form: ReadonlyMap<string, string> | null = null;
  const decoded = (): Buffer => decodedBody(rawFields, body);
  return {
    json: () => (json ??= { value: parseJson(decoded().toString('utf8'), maxParsedBody) }).value,
    form: () => (form ??= formFields(contentType, decoded())),
  };
}

const segmentsOf = (pathAndQuery: string): readonly string[] =>
  (pathAndQuery.split(/[?#]/, 1)[0] ?? '').split('/').slice(1);

/**
 * The path up to the last segment of the pattern, where that matches from the start. A segment that does not separate stands as in the
 * pattern.
 */
function shapeOf(segments: readonly string[], given: readonly string[]): string {
  let shape = '';
  for (const [at, segment] of segments.entries()) {
    const own = given[at] ?? '';
    const isAny = segment === '{*}' || segment === '{}';
    if (isAny ? own === '' : own !== segment) return '';
    shape += `/${segment === '{*}' ? own : segment}`;
  }
  return shape;
}

/** Numbers, UUIDs, digests and other long words: what names one of many things. */
const name = /^(?:\d+|[\da-f]{8}-?[\da-f-]{8,}|.{33,})$/i;
const maxForm = 256;

/** Method and path of a call without what names single things: calls of one form do the same. At most 256 characters. */
export const callFormOf = ({ method, path }: Pick<CallRequest, 'method' | 'path'>): string =>
  [method, ...segmentsOf(path).map((segment) => (name.test(segment) ? '{}' : segment))]
    .join('/')
    .slice(0, maxForm);
