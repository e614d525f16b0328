/**
 * Reading upstream JSON that nobody promised to be well-formed.
 *
 * Owns: bounded, never-throwing access to untyped data. Does not own: what any member means. Invariant: linear time,
 * whatever the text.
 */

export type JsonRecord = Readonly<Record<string, unknown>>;

/** Text beyond this many characters is not parsed as a whole (about 1 ms of work). */
const maxParsed = 262_144;
/** Characters at the end of a longer text in which trailing members are looked for. */
const tailLength = 8192;
const maxTries = 4;

export function isRecord(value: unknown): value is JsonRecord {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** An object without the members that are `undefined`. */
export const given = <T extends object>(members: T): { [K in keyof T]?: Exclude<T[K], undefined> } =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as never;

/** Member `name` when it is an object, else `null`. */
export function recordAt(parent: unknown, name: string): JsonRecord | null {
  const value = isRecord(parent) ? parent[name] : undefined;
  return isRecord(value) ? value : null;
}

/** Member `name` when it is a string, else `null`. */
export function stringAt(parent: unknown, name: string): string | null {
  const value = isRecord(parent) ? parent[name] : undefined;
  return typeof value === 'string' ? value : null;
}

/** Member `name` when it is a finite number, else `null`. */
export function numberAt(parent: unknown, name: string): number | null {
  const value = isRecord(parent) ? parent[name] : undefined;
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/** The same when it is not negative. */
export function countAt(parent: unknown, name: string): number | null {
  const number = numberAt(parent, name);
  return number === null || number < 0 ? null : number;
}

/** What a JSON Pointer, unescaped, points at; `undefined` = nothing. */
export function valueAt(parent: unknown, pointer: readonly string[]): unknown {
  let value = parent;
  for (const name of pointer) {
    if (Array.isArray(value)) value = value[Number(name)] as unknown;
    else value = isRecord(value) && Object.hasOwn(value, name) ? value[name] : undefined;
  }
  return value;
}

/** Parsed text, or `undefined` when it is no JSON or longer than `maxLength` characters. */
export function parseJson(text: string, maxLength = maxParsed): unknown {
  if (text.length > maxLength) return undefined;
  try {
    // Some servers begin with a byte-order mark, which clients pass over.
    const value: unknown = JSON.parse(text.startsWith('\uFEFF') ? text.slice(1) : text);
    return value;
  } catch {
    return undefined; // an HTML page, a cut body: it says nothing
  }
}

/**
 * The last object in the final {@link tailLength} characters that is the value of `key` and passes `accept`; works on
 * a cut text, where `JSON.parse` cannot. Quotes inside JSON strings are escaped, so a quoted key followed by a colon
 * cannot come from a string value.
 */
export function lastObject(
  text: string,
  key: string,
  accept: (value: JsonRecord) => boolean,
): JsonRecord | null {
  const tail = text.slice(-tailLength);
  const keys = [...tail.matchAll(new RegExp(`"${key}"\\s*:\\s*(?=\\{)`, 'g'))];
  for (const { 0: before, index } of keys.slice(-maxTries).toReversed()) {
    const found = objectAt(tail, index + before.length);
    if (found !== null && accept(found.value)) return found.value;
  }
  return null;
}

/** The object whose brace stands at `start`, and where it ends; `null`: it is not whole, or none. */
export function objectAt(text: string, start: number) {
  const end = endOfObject(text, start);
  const value = end < 0 ? undefined : parseJson(text.slice(start, end));
  return isRecord(value) ? { value, end } : null;
}

function endOfObject(text: string, start: number): number {
  let depth = 0;
  let inString = false;
  for (let at = start; at < text.length; at++) {
    const character = text[at];
    if (inString) {
      if (character === '\\') at++;
      else if (character === '"') inString = false;
    } else if (character === '"') inString = true;
    else if (character === '{') depth++;
    else if (character === '}' && --depth === 0) return at + 1;
  }
  return -1;
}
