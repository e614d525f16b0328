/**
 * The schemas of single values of the file: limits, names, secrets, origins, hashes, dates. `schema.ts` puts them together.
 * Invariants: no limit can be zero, negative, empty or not a number (a limit that parses as "nothing" switches the
 * protection off: CVE-2026-12590); no message shows the value it refuses.
 */
import { z } from 'zod';
import { rangeFault } from '../target/address.policy.ts';
import { carrierWordFault } from '../credential-carriers.policy.ts';
import { readSeparator } from './bucket-parts.ts';
import { readInstant } from './instant.ts';
import { credentialFieldFault, fieldValueFault, isPlaceholder } from './names.ts';
import { readOrigin } from './origins.ts';

const hashOfNothing = 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

/** Adds a problem of our own wording to a zod check; `explain.ts` reads `fix` back. */
const refuse = (reason: string, fix: string) => ({
  code: 'custom' as const,
  message: reason,
  params: { fix },
});

/** An object that knows its keys; the message of an unknown key lists them. */
export const section = <Shape extends z.ZodRawShape>(shape: Shape) =>
  z.strictObject(shape, {
    error: (issue) =>
      issue.code === 'unrecognized_keys' ? `known here: ${Object.keys(shape).join(', ')}` : undefined,
  });

/** A whole number from 1. */
export const count = () => z.int().min(1).max(1_000_000_000_000);
/** A number above 0, fractions allowed. */
export const rate = () => z.number().positive().max(1_000_000_000);
/** A duration above 0, at most a day. */
export const seconds = () => z.number().positive().max(86_400);
/** A TCP port; 0 lets the system choose. */
export const port = () => z.int().min(0).max(65_535);

/** A limit, or the word that says there is none. Absence means the default of the kind, never "no limit". */
export const limit = (text: string) =>
  z
    .union([count(), z.literal('none')])
    .optional()
    .describe(`${text} "none" = no limit.`);

/** A value that must be kept from others: never printed, never empty, never a text copied from documentation. */
export const secret = () =>
  z.string().superRefine((value, context) => {
    if (value.trim() === '') {
      context.addIssue(refuse('is empty', 'give the secret, best as ${NAME} of an environment variable'));
    } else if (isPlaceholder(value)) {
      context.addIssue(refuse('is a placeholder, not a secret', 'put the real secret in its place'));
    }
  });

/** A secret that can be sent as an HTTP field value. */
export const fieldValue = () =>
  secret().superRefine((value, context) => {
    const reason = value.trim() === '' ? null : fieldValueFault(value);
    if (reason === null) return;
    context.addIssue(
      refuse(
        reason,
        'give the value on one line, without blanks around it (often a line end of the secret’s file)',
      ),
    );
  });

/** What stands before a credential in its field, such as `Bearer` and a blank. */
export const valuePrefix = () =>
  z.string().superRefine((text, context) => {
    if (text === '') return;
    const reason = text.startsWith(' ') ? 'starts with a blank' : fieldValueFault(text.trimEnd());
    if (reason !== null) context.addIssue(refuse(reason, 'write what stands before the value: "Bearer "'));
  });

/** A field that may carry an upstream credential. */
export const fieldName = () =>
  z.string().superRefine((name, context) => {
    const reason = credentialFieldFault(name);
    if (reason !== null) context.addIssue(refuse(reason, 'name a field such as authorization or x-api-key'));
  });

/** A request field that says something about a call. */
export const requestField = () =>
  z.string().superRefine((name, context) => {
    if (/^[\w!#$%&'*+.^`|~-]{1,128}$/.test(name)) return;
    context.addIssue(refuse('is not a field name', 'name a field such as x-shopify-webhook-id'));
  });

/** A request field or query member that carries a credential, or does not. */
export const carrierWord = () =>
  z.string().superRefine((word, context) => {
    const reason = carrierWordFault(word);
    if (reason === null) return;
    context.addIssue(refuse(reason, 'write x-acme-key, query:acme_key, or -query:key for what is none here'));
  });

/** A field of a response. */
export const plainFieldName = () =>
  z.string().superRefine((name, context) => {
    if (/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/.test(name)) return;
    context.addIssue(refuse('is not a field name', 'write the name alone, such as x-ratelimit-remaining'));
  });

/** A piece of a body that a condition looks for. */
export const bodyText = () =>
  z.string().superRefine((text, context) => {
    if (text.trim().length >= 3 && text.length <= 256) return;
    context.addIssue(refuse('is no text to look for', 'give 3 to 256 characters that only such a body has'));
  });

/** A word of a dialect's `bucketBy`. */
export const bucketPart = () =>
  z.string().superRefine((text, context) => {
    if (readSeparator(text) !== null) return;
    const fix = 'write credential, host, "path:/v1/{*}", "header:x-org" or "body:/model"';
    context.addIssue(refuse('tells no quotas apart', fix));
  });

/** Name of a quota: words of the operator, shown nowhere. */
export const accountName = () =>
  z.string().superRefine((name, context) => {
    const fix = 'use 1 to 128 printable characters, such as acme-shop';
    if (isPlaceholder(name)) context.addIssue(refuse('is a placeholder, not a name', fix));
    else if (!/^[^\p{C}\p{Z}](?:[^\p{C}]{0,126}[^\p{C}\p{Z}])?$/u.test(name))
      context.addIssue(refuse('is not a usable name', fix));
  });

/** Digest of an API key. */
export const hash = z
  .string()
  .superRefine((text, context) => {
    const fix = 'make a key with "sluice keys create --workspace NAME" and copy the hash it prints';
    if (isPlaceholder(text)) context.addIssue(refuse('is a placeholder, not a hash', fix));
    else if (text.trim().startsWith('slc_'))
      context.addIssue(refuse('is the key itself; only its hash belongs here', fix));
    else if (!/^sha256:[0-9a-f]{64}$/i.test(text)) {
      context.addIssue(refuse('is not "sha256:" and 64 hexadecimal digits', fix));
    } else if (text.toLowerCase() === hashOfNothing)
      context.addIssue(refuse('is the hash of an empty key', fix));
  })
  .describe('sha256:<hex> of the whole key.');

/** The middle part of `slc_<id>_<secret>`, which may be shown. */
export const keyId = z
  .string()
  .regex(/^[A-Za-z0-9-]{1,64}$/)
  .describe('Id of the key, the middle part of slc_<id>_…: shown by `sluice labels` and `sluice keys list`.');

/** End of an API key. */
export const expires = z
  .string()
  .superRefine((text, context) => {
    if (readInstant(text) === null) {
      context.addIssue(refuse('is not a date', 'write 2027-01-01T00:00:00Z or 2027-01-01'));
    }
  })
  .describe('Instant from which the key is refused: ISO 8601 with an offset, or a date (UTC).');

const rangeWords = {
  form: {
    reason: 'is not a range of addresses',
    fix: 'write one such as 10.0.0.0/8, fd00::/8 or 10.1.2.3',
  },
  host_bits: {
    reason: 'has bits set behind its prefix',
    fix: 'write the first address of the range, such as 10.0.0.0/8',
  },
  not_inside: {
    reason: 'is not a private range',
    fix: 'leave it out: public addresses need no entry, and link-local and metadata addresses are never allowed',
  },
} as const;

/** `allowPrivateAddresses`: the private addresses that an upstream may have. */
export const addressRange = z.string().superRefine((text, context) => {
  const fault = rangeFault(text);
  if (fault === null) return;
  const { reason, fix } = rangeWords[fault];
  context.addIssue(refuse(reason, fix));
});

/** An origin to which calls of an upstream may go. */
export const origin = z
  .string()
  .superRefine((text, context) => {
    const reading = readOrigin(text);
    if (reading.kind === 'fault') context.addIssue(refuse(reading.reason, reading.fix));
  })
  .describe('scheme://host[:port]; one leading "*." stands for exactly one label.');
