/**
 * Other methods that a request asks for beside that of its request line: frameworks run a GET with `X-HTTP-Method-Override: POST`
 * as a POST. Whether the upstream's does is not known, so that such a request counts as both.
 */

const overrideNames = new Set([
  'x-http-method-override',
  'x-http-method',
  'x-method-override',
  'x-override-method',
  'http-method-override',
  '_method',
]);

/** Facebook's Graph API runs a GET with `?method=post` as a POST. Elsewhere `method` means much else, so that its value decides. */
const namesMethod = (name: string, value: string): boolean =>
  name.toLowerCase() === 'method' && /^(?:post|patch|put|delete)$/i.test(value);

/** Longer forms (bytes) are not searched: a request that has one and is idempotent by its method alone hardly exists. */
const maxForm = 65_536;

export interface OverridableRequest {
  /** Raw path and query. */
  readonly path: string;
  /** Field lines, name and value alternating. */
  readonly rawFields: readonly string[];
  readonly contentType: string | null;
  readonly body: Buffer;
}

/** Methods that its fields, query or form name, in upper case. */
export function methodOverrides({ path, rawFields, contentType, body }: OverridableRequest): string[] {
  const methods: string[] = [];
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at] ?? '';
    if (/method/i.test(name) && isOverride(name)) methods.push(...methodsIn(rawFields[at + 1] ?? ''));
  }
  const query = path.indexOf('?');
  if (query >= 0) methods.push(...methodsOf(path.slice(query + 1)));
  if (body.length <= maxForm && /^application\/x-www-form-urlencoded\b/i.test(contentType ?? ''))
    methods.push(...methodsOf(body.toString('latin1')));
  return methods;
}

function isOverride(name: string): boolean {
  const lower = name.toLowerCase();
  return overrideNames.has(lower) || overrideNames.has(lower.replaceAll('_', '-'));
}

/** A list counts for each of its members: which one a server takes is not known. */
const methodsIn = (value: string): string[] => value.split(',').map((method) => method.trim().toUpperCase());

function methodsOf(form: string): string[] {
  // A name may be percent-encoded; most queries need no parsing.
  if (!/method|%/i.test(form)) return [];
  // Some servers split at semicolons, too.
  return [...new URLSearchParams(form.replaceAll(';', '&'))].flatMap(([name, value]) =>
    isOverride(name) || namesMethod(name, value) ? methodsIn(value) : [],
  );
}
