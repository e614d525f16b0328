/**
 * The parts of a call by which its upstream separates quotas, as the upstream's dialect says (`bucketBy`). A part that a call does
 * not have is an empty text: calls without it share a quota. Pure; nothing is read for an upstream whose dialect separates nothing.
 */
import type { Separator } from '../config/settings.ts';
import { parseJson, valueAt } from '../dispatch/feedback/json.policy.ts';
import type { CallRequest } from '../dispatch/estimate.policy.ts';
import { decodedBody, formFields, maxParsedBody } from '../dispatch/request-body.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

const nothing: readonly string[] = [];

/** One text for each separator, in their order. */
export function separatorsOf(separators: readonly Separator[], call: CallRequest): readonly string[] {
  if (separators.length === 0) return nothing;
  const read = new ReadParts(call);
  return separators.map((separator) => {
    switch (separator.kind) {
      case 'method':
        return call.method;
      case 'path':
        return shapeOf(separator.segments, read.segments);
      case 'header':
        return valuesOf(call.rawFields, separator.name).join(', ');
      case 'form':
        return read.form.get(separator.name) ?? '';
      case 'body':
        return memberOf(read, separator.pointer);
    }
  });
}

/** A member of the document. Some APIs take the same as a form, whose fields are members of one level. */
function memberOf(read: ReadParts, pointer: readonly string[]): string {
  const value = valueAt(read.json, pointer);
  if (typeof value === 'string' || typeof value === 'number') return String(value);
  const [name = '', ...deeper] = pointer;
  return deeper.length === 0 ? (read.form.get(name) ?? '') : '';
}

/** What several separators ask of a call is read once, and only where one asks. */
class ReadParts {
  readonly #call: CallRequest;
  #segments: readonly string[] | null = null;
  #json: { readonly value: unknown } | null = null;
  #form: ReadonlyMap<string, string> | null = null;

  constructor(call: CallRequest) {
    this.#call = call;
  }

  get segments(): readonly string[] {
    return (this.#segments ??= segmentsOf(this.#call.path));
  }

  get json(): unknown {
    const { body } = this.#call;
    this.#json ??= { value: body.length === 0 ? undefined : parseJson(this.#decoded(), maxParsedBody) };
    return this.#json.value;
  }

  get form(): ReadonlyMap<string, string> {
    const { contentType, rawFields, body } = this.#call;
    return (this.#form ??= formFields(contentType, decodedBody(rawFields, body)));
  }

  #decoded(): string {
    const { rawFields, body } = this.#call;
    return decodedBody(rawFields, body).toString('utf8');
  }
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
