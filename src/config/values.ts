/**
 * What the schemas of all sections are made of: sections, texts, limits, secrets, and the two ways to refuse a value.
 * Invariants: no limit can be zero, negative, empty or not a number (a limit that parses as "nothing" switches the
 * protection off: CVE-2026-12590); no message shows the value it refuses.
 */
import { z } from 'zod';
import { isPlaceholder } from './names.ts';
import type { Fault, Path } from './problem.ts';

/** What zod gives to a rule, to report mistakes with. */
export type RuleContext = z.core.$RefinementCtx;

/** Refuses a value in our own words; `check-text.ts` reads `fix` back. `path`: from the value that is judged to the one at fault. */
export function refuse(context: RuleContext, { reason, fix }: Fault, path: Path = []): void {
  context.addIssue({ code: 'custom', message: reason, params: { fix }, path: [...path] });
}

/** A text that is refused for a reason. `reasonOf`: why it cannot be used, or `null`; a reason that has a fix of its own brings it. */
export const text = (fix: string, reasonOf: (text: string) => string | Fault | null) =>
  z.string().superRefine((value, context) => {
    const reason = reasonOf(value);
    if (reason !== null) refuse(context, typeof reason === 'string' ? { reason, fix } : reason);
  });

/** A text of one form. */
export const formed = (form: RegExp, reason: string, fix: string) =>
  text(fix, (text) => (form.test(text) ? null : reason));

/** A text that is read into a value; `null` or a fault: it cannot be. No rule ever sees one that could not be read. */
export const readText = <T>(fault: Fault, read: (text: string) => T | Fault | null) =>
  z.string().transform((written, context): T => {
    const value = read(written) ?? fault;
    if (typeof value !== 'object' || !('reason' in value)) return value as T;
    refuse(context, value);
    return z.NEVER;
  });

type Shape = Readonly<Record<string, z.ZodType>>;

/** Keys with their descriptions, which the JSON Schema and the reference publish. */
export const described = <S extends Shape>(shape: S, words: { readonly [Key in keyof S]?: string }): S =>
  mapped(shape, (schema, key) => (words[key] === undefined ? schema : schema.describe(words[key])));

/** Marks keys whose new value takes effect at the next start only; `restartKeys` of `schema.ts` reads the mark. */
export const atRestart = <S extends Shape>(shape: S): S =>
  mapped(shape, (schema) => schema.meta({ restart: true }));

const mapped = <S extends Shape>(shape: S, change: (schema: z.ZodType, key: keyof S) => z.ZodType): S =>
  Object.fromEntries(Object.entries(shape).map(([key, schema]) => [key, change(schema, key)])) as S;

/** An object that knows its keys; the message about an unknown key is the list of them, which `check-text.ts` words. */
export const section = <S extends Shape>(shape: S) =>
  z.strictObject(shape, {
    error: (issue) => (issue.code === 'unrecognized_keys' ? Object.keys(shape).join(', ') : undefined),
  });

const noName = { reason: 'is a word of JavaScript that cannot name anything', fix: 'use another name' };

/** An object with names as keys. zod leaves the name `__proto__` out without a word: it is refused before, as `fault` says. */
export const named = <Value extends z.ZodType>(value: Value, fault: Fault = noName) =>
  z.preprocess(
    (written, context) => {
      if (typeof written === 'object' && written !== null && Object.hasOwn(written, '__proto__'))
        refuse(context, fault, ['__proto__']);
      return written;
    },
    z.record(z.string(), value),
  );

/** A key that may be absent, `null` then. */
export const orNull = <Value extends z.ZodType>(value: Value) =>
  value.optional().transform((written) => written ?? null);

/** A whole number from 1. */
export const count = z.int().min(1).max(1_000_000_000_000);
/** A number above 0, fractions allowed. */
export const rate = z.number().positive().max(1_000_000_000);
/** A duration above 0, at most a day. */
export const seconds = z.number().positive().max(86_400);
/** A path of a file. */
export const filePath = z.string().min(1);
/** A number, or the word that says there is none: `null`. */
export const countOrNone = z.union([count, z.literal('none').transform(() => null)]);

/** What is wrong with a value that must be kept from others: never printed, never empty, never a text copied from documentation. */
export function secretFault(text: string): Fault | null {
  if (text.trim() === '')
    return { reason: 'is empty', fix: 'give the secret, best as ${NAME} of an environment variable' };
  return isPlaceholder(text)
    ? { reason: 'is a placeholder, not a secret', fix: 'put the real secret in its place' }
    : null;
}

export const secret = text('', secretFault);

/** A secret of a form. */
export const secretLike = (form: RegExp, reason: string) =>
  text(
    'use a random secret, for instance of: openssl rand -hex 32',
    (text) => secretFault(text) ?? (form.test(text) ? null : reason),
  );

/** Those of the keys that `from` states. */
export const pick = <From extends object, Key extends keyof From>(from: From, keys: readonly Key[]) =>
  Object.fromEntries(keys.filter((key) => from[key] !== undefined).map((key) => [key, from[key]])) as Pick<
    From,
    Key
  >;

/** Settings as everybody sees them: nothing of them changes. */
export type Frozen<T> =
  T extends ReadonlyMap<infer Key, infer Value>
    ? ReadonlyMap<Key, Frozen<Value>>
    : T extends ReadonlySet<infer Value>
      ? ReadonlySet<Value>
      : T extends object
        ? { readonly [Key in keyof T]: Frozen<T[Key]> }
        : T;

/** Freezes objects, lists and what maps hold; maps themselves are read-only by type. */
export function freeze<T>(value: T): Frozen<T> {
  const frozen = value as Frozen<T>;
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return frozen;
  const items = value instanceof Map ? value.values() : Object.values(value);
  for (const item of items) freeze(item);
  Object.freeze(value);
  return frozen;
}
