/**
 * What the schemas of all sections are made of: texts, limits, names, secrets, dates, and the two ways to refuse a value.
 * Invariants: no limit can be zero, negative, empty or not a number (a limit that parses as "nothing" switches the
 * protection off: CVE-2026-12590); no message shows the value it refuses.
 */
import { z } from 'zod';
import { isRange } from '../target/address.policy.ts';
import { carrierWordFault } from '../credential-carriers.policy.ts';
import { credentialFieldFault, fieldValueFault, isPlaceholder, readInstant } from './names.ts';
import type { Fault, Path } from './problem.ts';

/** What zod gives to a rule, to report mistakes with. */
export type RuleContext = z.core.$RefinementCtx;

/** Refuses a value in our own words; `check-text.ts` reads `fix` back. `path`: from the value that is judged to the one at fault. */
export function refuse(context: RuleContext, { reason, fix }: Fault, path: Path = []): void {
  context.addIssue({ code: 'custom', message: reason, params: { fix }, path: [...path] });
}

/** A text that is refused where `faultOf` finds a fault. */
export const text = (faultOf: (text: string) => Fault | null) =>
  z.string().superRefine((value, context) => {
    const fault = faultOf(value);
    if (fault !== null) refuse(context, fault);
  });

/** A text that is read into a value. No rule ever sees one that could not be read. */
export const readText = <T>(read: (text: string) => { readonly value: T } | Fault) =>
  z.string().transform((written, context): T => {
    const reading = read(written);
    if ('value' in reading) return reading.value;
    refuse(context, reading);
    return z.NEVER;
  });

/** Faults with one remedy. `reasonOf`: why a text cannot be used, or `null`. */
const mendedBy =
  (fix: string, reasonOf: (text: string) => string | null) =>
  (text: string): Fault | null => {
    const reason = reasonOf(text);
    return reason === null ? null : { reason, fix };
  };

/** A text of one form. */
export const formed = (form: RegExp, reason: string, fix: string) =>
  text(mendedBy(fix, (text) => (form.test(text) ? null : reason)));

/** An object that knows its keys; the message about an unknown key is the list of them, which `check-text.ts` words. */
export const section = <Shape extends z.ZodRawShape>(shape: Shape) =>
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

/** Marks keys whose new value takes effect at the next start only; `restartKeys` of `schema.ts` reads the mark. */
export const atRestart = <Shape extends Readonly<Record<string, z.ZodType>>>(shape: Shape): Shape =>
  Object.fromEntries(
    Object.entries(shape).map(([key, schema]) => [key, schema.meta({ restart: true })]),
  ) as unknown as Shape;

/** A key that may be absent, `null` then. */
export const orNull = <Value extends z.ZodType>(value: Value) =>
  value.optional().transform((written) => written ?? null);

/** A whole number from 1. */
export const count = z.int().min(1).max(1_000_000_000_000);
/** A number above 0, fractions allowed. */
export const rate = z.number().positive().max(1_000_000_000);
/** A duration above 0, at most a day. */
export const seconds = z.number().positive().max(86_400);
/** A TCP port; 0 lets the system choose. */
export const port = z.int().min(0).max(65_535);
/** A path of a file. */
export const filePath = z.string().min(1);

/** A number, or the word that says there is none: `null`. */
export const countOrNone = z.union([count, z.literal('none').transform(() => null)]);

/** A limit. Absence means the default of the kind, never "no limit". */
export const limit = (text: string) => z.exactOptional(countOrNone).describe(`${text} "none" = no limit.`);

/** What is wrong with a value that must be kept from others: never printed, never empty, never a text copied from documentation. */
export function secretFault(text: string): Fault | null {
  if (text.trim() === '')
    return { reason: 'is empty', fix: 'give the secret, best as ${NAME} of an environment variable' };
  return isPlaceholder(text)
    ? { reason: 'is a placeholder, not a secret', fix: 'put the real secret in its place' }
    : null;
}

export const secret = text(secretFault);

/** A secret of a form. */
export const secretLike = (form: RegExp, reason: string) =>
  text(
    (text) =>
      secretFault(text) ??
      (form.test(text)
        ? null
        : { reason, fix: 'use a random secret, for instance of: openssl rand -hex 32' }),
  );

const valueFault = mendedBy(
  'give the value on one line, without blanks around it (often a line end of the secret’s file)',
  fieldValueFault,
);

/** A secret that can be sent as an HTTP field value. */
export const fieldValue = text((text) => secretFault(text) ?? valueFault(text));

/** What stands before a credential in its field, such as `Bearer` and a blank. */
export const valuePrefix = text(
  mendedBy('write what stands before the value: "Bearer "', (text) => {
    if (text === '') return null;
    return text.startsWith(' ') ? 'starts with a blank' : fieldValueFault(text.trimEnd());
  }),
);

/** A field that may carry an upstream credential. */
export const fieldName = text(
  mendedBy('name a field such as authorization or x-api-key', credentialFieldFault),
).toLowerCase();

/** A request field that says something about a call. */
export const requestField = formed(
  /^[\w!#$%&'*+.^`|~-]{1,128}$/,
  'is not a field name',
  'name a field such as x-shopify-webhook-id',
).toLowerCase();

/** A request field or query member that carries a credential, or does not. */
export const carrierWord = text(
  mendedBy('write x-acme-key, query:acme_key, or -query:key for what is none here', carrierWordFault),
);

/** A field of a response. */
export const plainFieldName = formed(
  /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/,
  'is not a field name',
  'write the name alone, such as x-ratelimit-remaining',
);

/** A piece of a body that a condition looks for. */
export const bodyText = text(
  mendedBy('give 3 to 256 characters that only such a body has', (text) =>
    text.trim().length >= 3 && text.length <= 256 ? null : 'is no text to look for',
  ),
);

/** Name of a quota: words of the operator, shown nowhere. */
export const accountName = text(
  mendedBy('use 1 to 128 printable characters, such as acme-shop', (name) => {
    if (isPlaceholder(name)) return 'is a placeholder, not a name';
    return /^[^\p{C}\p{Z}](?:[^\p{C}]{0,126}[^\p{C}\p{Z}])?$/u.test(name) ? null : 'is not a usable name';
  }),
);

const hashOfNothing = 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

/** Digest of an API key, lower case. */
export const hash = text(
  mendedBy('make a key with "sluice keys create --workspace NAME" and copy the hash it prints', (text) => {
    if (isPlaceholder(text)) return 'is a placeholder, not a hash';
    if (text.trim().startsWith('slc_')) return 'is the key itself; only its hash belongs here';
    if (!/^sha256:[0-9a-f]{64}$/i.test(text)) return 'is not "sha256:" and 64 hexadecimal digits';
    return text.toLowerCase() === hashOfNothing ? 'is the hash of an empty key' : null;
  }),
)
  .toLowerCase()
  .describe('sha256:<hex> of the whole key.');

/** The middle part of `slc_<id>_<secret>`, which may be shown. */
export const keyId = z
  .string()
  .regex(/^[A-Za-z0-9-]{1,64}$/)
  .describe('Id of the key, the middle part of slc_<id>_…: shown by `sluice labels` and `sluice keys list`.');

/** End of an API key, milliseconds since the epoch. */
export const expires = readText((text) => {
  const value = readInstant(text);
  return value === null
    ? { reason: 'is not a date', fix: 'write 2027-01-01T00:00:00Z or 2027-01-01' }
    : { value };
}).describe('Instant from which the key is refused: ISO 8601 with an offset, or a date (UTC).');

/** `allowPrivateAddresses`: the private addresses that an upstream may have. */
export const addressRange = text(
  mendedBy('write one such as 10.0.0.0/8, fd00::/8 or 10.1.2.3', (text) =>
    isRange(text) ? null : 'is not a range of addresses',
  ),
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
  if (value instanceof Map) for (const item of value.values()) freeze(item);
  for (const item of Object.values(value)) freeze(item);
  Object.freeze(value);
  return frozen;
}
