/**
 * A reply of the right type that says nothing our scripts say: somebody else answered, or a script has a bug. It never
 * means "granted"; `health.ts` treats it like an absence of Redis.
 */
export class MalformedReply extends TypeError {
  constructor() {
    super('malformed reply of a limiter script');
    this.name = 'MalformedReply';
  }
}

/** Throws `MalformedReply`. */
export function malformed(): never {
  throw new MalformedReply();
}

/** The elements of a reply. */
export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : malformed();
}

export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : malformed();
}

/** An opaque name whose characters make it safe to send to Redis again. */
export function wordOf(value: unknown): string {
  return typeof value === 'string' && /^[\w.-]+$/.test(value) ? value : malformed();
}

/** A finite number, sent as text or as Redis' own integer. */
export function numberOf(value: unknown): number {
  const read =
    typeof value === 'number' ? value : typeof value === 'string' && value !== '' ? Number(value) : NaN;
  return Number.isFinite(read) ? read : malformed();
}

/** A count, a time or a duration: not below zero. */
export function amountOf(value: unknown): number {
  const read = numberOf(value);
  return read >= 0 ? read : malformed();
}
