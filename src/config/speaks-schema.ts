/**
 * How a dialect is written: `speaks` of an upstream, a preset's name or its parts. What the parts must be together is judged in
 * `speaks-checks.ts`; what they come to is built in `speaks-build.ts`.
 */
import { z } from 'zod';
import { presetNames, presets, type PresetName } from './presets.ts';
import { bodyText, bucketPart, count, plainFieldName, seconds, section } from './values.ts';

const window = section({
  requests: count().describe('Calls that one window takes.'),
  seconds: seconds().min(1).describe('Length of the window, from 1 s to a day.'),
  kind: z
    .enum(['rolling', 'fixed', 'leaky'])
    .default('rolling')
    .describe(
      'rolling: every window of this length; fixed: windows aligned to the clock (UTC); leaky: the window’s calls at once, then they drain evenly.',
    ),
});

/** Units of a time, as contract and presets name them. */
const unit = z
  .enum(['seconds', 'milliseconds', 'epoch-seconds', 'epoch-milliseconds', 'date', 'duration'])
  .optional()
  .describe('Unit of the time. date: HTTP-date or RFC 3339; duration: 1m30s.');

const named = plainFieldName().describe('Name of the field.');

const member = z
  .string()
  .regex(/^[\w.-]{1,64}$/)
  .optional()
  .describe('Part of a value such as "total=100; remaining=99": the number behind this name.');

const counted = (text: string) =>
  z
    .union([plainFieldName(), section({ name: named, member })])
    .optional()
    .describe(text);

const timed = (text: string) =>
  z.union([plainFieldName(), section({ name: named, member, as: unit })]).describe(text);

const fields = section({
  limit: counted('Field with the calls of a window. Default: what windows states.'),
  used: counted('Field with the calls that are used.'),
  remaining: counted('Field with the calls that are left.'),
  reset: timed(
    'Field with the end of the window, or the time until then; as: its unit. Default: told from the value.',
  ).optional(),
  window: z
    .union([seconds().min(1), timed('Field with the length of the window.')])
    .optional()
    .describe('Which of windows the fields tell of, in seconds, or a field with its length.'),
  rate: counted('Field with the calls per second instead of a limit.'),
});

const condition = {
  status: z
    .union([z.int().min(100).max(599), z.array(z.int().min(100).max(599)).min(1)])
    .describe('Status of the response, or a list of them.'),
  field: plainFieldName().optional().describe('Field that the response must have.'),
  equals: z.string().optional().describe('Value that the field must have. Default: any.'),
  body: bodyText().optional().describe('Text that the start of the body must hold; case does not matter.'),
};

const conditions = (text: string) =>
  z.array(section(condition)).min(1).optional().describe(`${text} All parts of a condition must hold.`);

const parts = section({
  preset: z.enum(presetNames).optional().describe('Preset that these parts replace parts of.'),
  windows: z.array(window).min(1).max(4).optional().describe('Windows of calls that hold at once, 1 to 4.'),
  fields: z
    .union([fields, z.array(fields).min(1)])
    .optional()
    .describe('Fields of responses that tell the quota. Default: RateLimit, X-RateLimit-* and their kin.'),
  throttledBy: z
    .array(
      section({
        ...condition,
        waitSeconds: seconds().optional().describe('Wait where the response names none.'),
      }),
    )
    .min(1)
    .optional()
    .describe('Responses that refuse for want of quota, beside 429. All parts of a condition must hold.'),
  permanentBy: conditions('Refusals that waiting does not cure.'),
  expiredBy: conditions('Refusals of an expired credential. Default: 401.'),
  bucketBy: z
    .array(bucketPart())
    .min(1)
    .optional()
    .describe(
      'What tells quotas apart: credential, host, "path:/v1/{*}", "header:x-org", "body:/model". Default: [credential].',
    ),
  maxInFlight: count().optional().describe('Calls in flight per workspace and bucket. Default: any number.'),
  penaltySeconds: seconds()
    .optional()
    .describe('Least time for which the upstream stays closed after it refused for want of quota.'),
});

/** A preset’s name, or the parts of a dialect. */
export const speaks = z
  .union([z.enum(presetNames), parts])
  .describe('The dialect of a generic upstream: a preset’s name, or its parts, all optional.');

/** Parts of a dialect as the file has them. */
export type SpeaksInput = z.output<typeof parts>;

/** The parts that a preset states, with their defaults. */
export function presetParts(name: PresetName): SpeaksInput {
  const { speaks }: { readonly speaks: DeepReadonly<z.input<typeof parts>> } = presets[name];
  return parts.parse(speaks);
}

type DeepReadonly<T> = { readonly [Key in keyof T]: DeepReadonly<T[Key]> };
