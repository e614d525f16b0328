/**
 * What the schemas of all sections are made of: sections, texts, limits, secrets, and the two ways to refuse a value.
 * Invariants: no limit can be zero, negative, empty or not a number (a limit that parses as "nothing" switches the
 * protection off: CVE-2026-12590); no message shows the value it refuses.
 */
import { z } from 'zod';

/** Keys from the root of the file to the value at fault; list positions are numbers. */
export type Path = readonly (string | number)[];

/** What is wrong with a value, and what to write instead. */
export interface Fault {
  /** A clause without a full stop. */
  readonly reason: string;
  readonly fix: string;
}

/** Refuses a value: why, what to write instead, and where it is, from the value that is judged. */
export type Refuse = (reason: string, fix: string, ...path: Path) => void;

/** A rule for `superRefine`, which refuses in our own words; `check-text.ts` reads `fix` back. */
export const rule =
  <T>(judge: (value: T, refuse: Refuse) => void) =>
  (value: T, context: z.core.$RefinementCtx): void =>
    judge(value, (message, fix, ...path) =>
      context.addIssue({ code: 'custom', message, params: { fix }, path: [...path] }),
    );

/** A text that is refused for a reason. `reasonOf`: why it cannot be used, or `null`; a reason that has a fix of its own brings it. */
export const text = (fix: string, reasonOf: (text: string) => string | Fault | null) =>
  z.string().superRefine(
    rule((value, refuse) => {
      const reason = reasonOf(value);
      if (typeof reason === 'string') refuse(reason, fix);
      else if (reason !== null) refuse(reason.reason, reason.fix);
    }),
  );

/** A text of one form. */
export const formed = (form: RegExp, reason: string, fix: string) =>
  text(fix, (text) => (form.test(text) ? null : reason));

/** A text that is read into a value; `null` or a fault: it cannot be. No rule ever sees one that could not be read. */
export const readText = <T>(fault: Fault, read: (text: string) => T | Fault | null) =>
  z.string().transform((written, context): T => {
    const value = read(written) ?? fault;
    if (typeof value !== 'object' || !('reason' in value)) return value as T;
    rule<Fault>(({ reason, fix }, refuse) => refuse(reason, fix))(value, context);
    return z.NEVER;
  });

type Shape = Readonly<Record<string, z.ZodType>>;

/**
 * An object that knows its keys, with the words that the JSON Schema and the reference publish of them. The message about an unknown key
 * is the list of its keys, which `check-text.ts` words.
 */
export const section = <S extends Shape>(shape: S, words: { readonly [Key in keyof S]?: string } = {}) =>
  z.strictObject(
    Object.fromEntries(
      Object.entries(shape).map(([key, schema]) => [key, words[key] ? schema.describe(words[key]) : schema]),
    ) as S,
    { error: ({ code }) => (code === 'unrecognized_keys' ? Object.keys(shape).join(', ') : undefined) },
  );

const noName = { reason: 'is a word of JavaScript that cannot name anything', fix: 'use another name' };

/** An object with names as keys. zod leaves the name `__proto__` out without a word: it is refused before, as `fault` says. */
export const named = <Value extends z.ZodType>(value: Value, fault: Fault = noName) =>
  z.preprocess(
    (written, context) => {
      if (typeof written === 'object' && written !== null && Object.hasOwn(written, '__proto__'))
        rule((_, refuse) => refuse(fault.reason, fault.fix, '__proto__'))(written, context);
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

/** Also `$NAME`: a variable is written `${NAME}`. */
const placeholderSign = /…|^\.{3,}$|^[xX]{3,}$|^\*+$|^<.*>$|^\{\{.*\}\}$|^\$[A-Z][A-Z0-9_]*$/;
const placeholderWord =
  /^(change[-_ ]?(me|it|this)|replace[-_ ]?(me|this)|your[-_ ]|todo\b|fixme\b|placeholder)/i;

/** True for texts that stand in documentation where a secret belongs. */
export function isPlaceholder(text: string): boolean {
  const bare = text
    .trim()
    .replace(/^(bearer|basic)(\s+|$)/i, '')
    .replace(/^sha256:/i, '');
  return bare === '' || placeholderSign.test(bare) || placeholderWord.test(bare);
}

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

/** Why a text cannot be sent as a field value (Node refuses such values by throwing at send time). */
export function fieldValueFault(value: string): string | null {
  if (/\p{Cc}|[^ -\u00ff]/u.test(value))
    return 'holds a line break or a character that HTTP fields cannot carry';
  return value.trim() === value ? null : 'starts or ends with a blank';
}

/**
 * Why a workspace id cannot be used. `__proto__` is the one name that an object cannot have as a key of its own like any other: such a
 * workspace would vanish on its way.
 */
export const workspaceIdFault = (id: string): string | null =>
  id === '__proto__'
    ? noName.reason
    : /^(?!\s)[^\p{C}\p{Zl}\p{Zp}]{1,128}(?<!\s)$/u.test(id)
      ? null
      : 'has a blank at either end, or is not 1 to 128 printable characters';

/** Milliseconds since the epoch of `2027-01-01`, or of a date and time with `Z` or an offset; `null` for anything else. */
export function readInstant(text: string): number | null {
  const [, day] =
    /^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:\d{2}))?$/i.exec(text) ??
    [];
  const instant = Date.parse(text.replace(' ', 'T'));
  // `Date.parse` reads 31 February as 3 March.
  return day === undefined || Number.isNaN(instant) || !z.iso.date().safeParse(day).success ? null : instant;
}

/** Milliseconds of seconds; `null` = none are stated. */
export const msOf = (seconds: number | undefined): number | null =>
  seconds === undefined ? null : seconds * 1000;

/** The keys that are stated. */
export const stated = <T extends object>(of: T): Partial<T> =>
  Object.fromEntries(Object.entries(of).filter(([, value]) => value !== undefined)) as Partial<T>;

/** Those of the keys that `from` states. */
export const pick = <From extends object, Key extends keyof From>(from: From, keys: readonly Key[]) =>
  stated(Object.fromEntries(keys.map((key) => [key, from[key]]))) as Pick<From, Key>;

/** All but these keys. */
export const omit = <From extends object, Key extends keyof From>(from: From, keys: readonly Key[]) =>
  Object.fromEntries(Object.entries(from).filter(([key]) => !keys.includes(key as Key))) as Omit<From, Key>;

/** Settings as everybody sees them: nothing of them changes. */
export type Frozen<T> =
  T extends ReadonlyMap<infer Key, infer Value>
    ? ReadonlyMap<Key, Frozen<Value>>
    : T extends ReadonlySet<infer Value>
      ? ReadonlySet<Value>
      : T extends object
        ? { readonly [Key in keyof T]: Frozen<T[Key]> }
        : T;
