/**
 * Reading what clients send, without trusting any of it.
 *
 * Owns: narrowing of parsed JSON. Invariant: nothing here throws.
 */

export type Json = Readonly<Record<string, unknown>>;

/** The parsed text, or undefined when it is not JSON. */
export function parseJson(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return value;
  } catch {
    return undefined;
  }
}

/** The value when it is a JSON object, else undefined. */
export function objectOf(value: unknown): Json | undefined {
  return isObject(value) ? value : undefined;
}

export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function textOf(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** A finite number, else undefined; numeric strings count (multipart fields are strings). */
export function numberOf(value: unknown): number | undefined {
  const number = typeof value === 'string' && value.trim() !== '' ? Number(value) : value;
  return typeof number === 'number' && Number.isFinite(number) ? number : undefined;
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
