/**
 * `speaks` of an upstream: how it counts, reports and refuses, as a preset's name or as its parts, and the {@link Dialect} that these come
 * to.
 */
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { checkText } from './check-text.ts';
import type { ResponseCondition, CountField, Dialect, DialectFields, DialectWindow } from './dialect.ts';
import type { Separator, TimeField, TimeUnit, WaitPlace, WindowMeter } from './dialect.ts';
import { presetNames, presetPath } from './presets.ts';
import type { Path } from './problem.ts';
import {
  bodyText,
  count,
  plainFieldName,
  refuse,
  seconds,
  section,
  text,
  type RuleContext,
} from './values.ts';

const daySeconds = 86_400;

const window = section({
  requests: count.describe('Calls that one window takes.'),
  seconds: seconds.min(1).describe('Length of the window, from 1 s to a day.'),
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

const named = plainFieldName.describe('Name of the field.');

const member = z
  .string()
  .regex(/^[\w.-]{1,64}$/)
  .optional()
  .describe('Part of a value such as "total=100; remaining=99": the number behind this name.');

const counted = (description: string) =>
  z
    .union([plainFieldName, section({ name: named, member })])
    .optional()
    .describe(description);

const timed = (description: string) =>
  z.union([plainFieldName, section({ name: named, member, as: unit })]).describe(description);

const fields = section({
  limit: counted('Field with the calls of a window. Default: what windows states.'),
  used: counted('Field with the calls that are used.'),
  remaining: counted('Field with the calls that are left.'),
  reset: timed(
    'Field with the end of the window, or the time until then; as: its unit. Default: told from the value.',
  ).optional(),
  window: z
    .union([seconds.min(1), timed('Field with the length of the window.')])
    .optional()
    .describe('Which of windows the fields tell of, in seconds, or a field with its length.'),
  rate: counted('Field with the calls per second instead of a limit.'),
});

const condition = {
  status: z
    .union([z.int().min(100).max(599), z.array(z.int().min(100).max(599)).min(1)])
    .describe('Status of the response, or a list of them.'),
  field: plainFieldName.optional().describe('Field that the response must have.'),
  equals: z.string().optional().describe('Value that the field must have. Default: any.'),
  body: bodyText.optional().describe('Text that the start of the body must hold; case does not matter.'),
};

type Condition = z.output<z.ZodObject<typeof condition>>;

function checkCondition({ status, field, equals, body }: Condition, context: RuleContext): void {
  if (equals !== undefined && field === undefined)
    refuse(context, { reason: 'belongs to no field', fix: 'name the field that has this value' }, ['equals']);
  else if (field === undefined && body === undefined && [status].flat().some((one) => one < 400))
    refuse(context, { reason: 'holds for every response of a success', fix: 'add field or body to it' });
}

const conditions = (description: string) =>
  z
    .array(section(condition).superRefine(checkCondition))
    .min(1)
    .optional()
    .describe(`${description} All parts of a condition must hold.`);

/** A word of `bucketBy`. */
const bucketPart = text((written) =>
  readSeparator(written) === null
    ? {
        reason: 'tells no quotas apart',
        fix: 'write credential, host, "path:/v1/{*}", "header:x-org" or "body:/model"',
      }
    : null,
);

const waitPlace = section({
  field: plainFieldName.optional().describe('Field with the wait.'),
  member,
  body: text((written) =>
    readWaitText(written) === null
      ? {
          reason: 'is neither a JSON Pointer nor a pattern with one group',
          fix: 'write /parameters/retry_after, or a pattern such as "try again in (\\d+) s"',
        }
      : null,
  )
    .optional()
    .describe('JSON Pointer to the wait in the body, or a pattern whose one group it is.'),
  as: unit,
}).superRefine(({ field, member, body }, context) => {
  if ((field === undefined) === (body === undefined))
    refuse(context, { reason: 'names not one place', fix: 'give it either field or body' });
  else if (field === undefined && member !== undefined)
    refuse(context, { reason: 'belongs to no field', fix: 'name it in the pointer or pattern of body' }, [
      'member',
    ]);
});

const dialectShape = {
  windows: z.array(window).min(1).max(4).optional().describe('Windows of calls that hold at once, 1 to 4.'),
  fields: z
    .union([fields, z.array(fields).min(1)])
    .optional()
    .describe('Fields of responses that tell the quota. Default: RateLimit, X-RateLimit-* and their kin.'),
  throttledBy: z
    .array(
      section({
        ...condition,
        waitSeconds: seconds.optional().describe('Wait where the response names none.'),
      }).superRefine(checkCondition),
    )
    .min(1)
    .optional()
    .describe('Responses that refuse for want of quota, beside 429. All parts of a condition must hold.'),
  permanentBy: conditions('Refusals that waiting does not cure.'),
  expiredBy: conditions('Refusals of an expired credential. Default: 401.'),
  bucketBy: z
    .array(bucketPart)
    .min(1)
    .optional()
    .describe(
      'What tells quotas apart: credential, host, "path:/v1/{*}", "header:x-org", "body:/model". Default: [credential].',
    ),
  maxInFlight: count.optional().describe('Calls in flight per workspace and bucket. Default: any number.'),
  waitIn: z
    .array(waitPlace)
    .min(1)
    .optional()
    .describe('Where a refusal states its wait, beside the usual places. The first that does counts.'),
  hintlessSeconds: seconds
    .optional()
    .describe('Wait after a refusal that states none. Default: 1, 2, 4 … 30.'),
  penaltySeconds: seconds
    .optional()
    .describe('Least time for which the upstream stays closed after it refused for want of quota.'),
};

type DialectParts = z.output<z.ZodObject<typeof dialectShape>>;

function checkParts({ windows = [], bucketBy }: DialectParts, context: RuleContext): void {
  windows.forEach(({ seconds }, index) => {
    if (windows.findIndex((other) => other.seconds === seconds) === index) return;
    const fix = 'keep the smaller one: both count the same calls';
    refuse(context, { reason: 'is as long as another window', fix }, ['windows', index]);
  });
  if (windows.filter(({ seconds }) => seconds < daySeconds).length > 3) {
    const fix = 'keep the three that hold calls most, and one of a day';
    refuse(context, { reason: 'has more than three windows below a day', fix }, ['windows']);
  }
  if (bucketBy !== undefined) checkBucketBy(bucketBy, { context, path: ['bucketBy'] });
}

const parts = section({
  preset: z.enum(presetNames).optional().describe('Preset that these parts replace parts of.'),
  ...dialectShape,
}).superRefine(checkParts);

/** A preset’s name, or the parts of a dialect. */
export const speaks = z
  .union([z.enum(presetNames), parts])
  .describe('The dialect of a generic upstream: a preset’s name, or its parts, all optional.');

/** Refuses buckets that credentials would share. */
export function checkBucketBy(
  bucketBy: readonly string[],
  { context, path }: { readonly context: RuleContext; readonly path: Path },
): void {
  if (bucketBy.includes('credential')) return;
  const fix = 'add credential: two credentials never share a quota';
  refuse(context, { reason: 'leaves credential out', fix }, path);
}

/** Parts of a dialect as the file has them. */
export type SpeaksInput = z.output<typeof parts>;

/** A file of `presets/`. An operator could write its dialect, and both are held to the same rules. */
const presetSchema = section({
  title: z.string(),
  source: z.url().describe('Page of the provider’s documentation from which the dialect is taken.'),
  counts: z.string().describe('What the API counts, in a sentence.'),
  missing: z.string().nullable().describe('Limits that no dialect can describe; null: none is known.'),
  speaks: section(dialectShape).superRefine(checkParts),
});

/** What is known of an API, and its dialect with the defaults. */
export type Preset = z.output<typeof presetSchema>;

/** Reads the text of a preset; `path` only names it in messages. @throws ConfigError */
export const readPreset = (text: string, path: string): Preset =>
  checkText(presetSchema, text, { path, env: {} });

const presetsRead = new Map<string, Preset>();

/** The preset of a name, whose file is read once. @throws ConfigError */
export function presetOf(name: string): Preset {
  let preset = presetsRead.get(name);
  if (preset === undefined) {
    const path = presetPath(name);
    preset = readPreset(readFileSync(path, 'utf8'), path);
    presetsRead.set(name, preset);
  }
  return preset;
}

/** A dialect, and the keys of an upstream that it gives defaults for. */
export interface BuiltDialect {
  readonly dialect: Dialect;
  /** `null`: not stated. */
  readonly bucketBy: readonly ('credential' | 'host')[] | null;
  readonly maxInFlight: number | null;
}

/** A window of this length or more counts beside a shorter one as the hourly one. */
const hourlySeconds = 1_800;

/** The parts, with those of the preset that they leave out. @throws ConfigError where the file of a preset cannot be used */
export function partsOf(speaks: string | SpeaksInput): SpeaksInput {
  if (typeof speaks === 'string') return presetOf(speaks).speaks;
  if (speaks.preset === undefined) return speaks;
  const stated = Object.entries(speaks).filter(([, value]) => value !== undefined);
  return { ...presetOf(speaks.preset).speaks, ...Object.fromEntries(stated) };
}

/** The dialect as responses are read with it. @throws ConfigError as `partsOf` */
export function buildDialect(speaks: string | SpeaksInput): BuiltDialect {
  const parts = partsOf(speaks);
  const throttledBy = (parts.throttledBy ?? []).map(conditionOf);
  const permanentBy = (parts.permanentBy ?? []).map(conditionOf);
  const expiredBy = (parts.expiredBy ?? [{ status: 401 }]).map(conditionOf);
  const by = parts.bucketBy ?? null;
  const waitIn = (parts.waitIn ?? []).flatMap(waitPlaceOf);
  const isWaitInBody = waitIn.some(({ kind }) => kind !== 'field');
  const reading = [
    ...throttledBy.filter(({ body }) => isWaitInBody || body !== null),
    ...[...permanentBy, ...expiredBy].filter(({ body }) => body !== null),
  ];
  return {
    dialect: {
      windows: buildWindows(parts.windows ?? []),
      fields: parts.fields === undefined ? null : [parts.fields].flat().map(fieldsOf),
      throttledBy,
      permanentBy,
      expiredBy,
      separators: (by ?? []).map(readSeparator).filter((one): one is Separator => typeof one === 'object'),
      penaltyMs: parts.penaltySeconds === undefined ? null : parts.penaltySeconds * 1000,
      waitIn,
      hintlessMs: parts.hintlessSeconds === undefined ? null : parts.hintlessSeconds * 1000,
      bodyStatuses: reading.flatMap(({ statuses }) => statuses.filter((status) => status < 400)),
    },
    bucketBy:
      by === null
        ? null
        : by.map(readSeparator).filter((one): one is 'credential' | 'host' => typeof one === 'string'),
    maxInFlight: parts.maxInFlight ?? null,
  };
}

/** Each window with its meter. The longest of a day is the day's; there is one meter for each of three shorter ones. */
export function buildWindows(windows: NonNullable<SpeaksInput['windows']>): DialectWindow[] {
  const sorted = windows.toSorted((a, b) => a.seconds - b.seconds);
  const meters = metersFor(sorted.map(({ seconds }) => seconds).filter((seconds) => seconds < daySeconds));
  return sorted.map(({ requests, seconds, kind }, index) => ({
    meter: meters[index] ?? 'requests_day',
    requests,
    windowMs: seconds * 1000,
    kind,
  }));
}

function metersFor(lengths: readonly number[]): WindowMeter[] {
  const longest = lengths.at(-1) ?? 0;
  switch (lengths.length) {
    case 0:
      return [];
    case 1:
      return ['requests'];
    case 2:
      return longest >= hourlySeconds ? ['requests', 'requests_hour'] : ['requests_burst', 'requests'];
    default:
      return ['requests_burst', 'requests', 'requests_hour'];
  }
}

type InputFields = Extract<NonNullable<SpeaksInput['fields']>, readonly unknown[]>[number];
type InputField = InputFields['limit'] | InputFields['reset'];

function fieldsOf({ limit, used, remaining, reset, window, rate }: InputFields): DialectFields {
  return {
    limit: countField(limit),
    used: countField(used),
    remaining: countField(remaining),
    reset: timeField(reset, 'inferred'),
    window: typeof window === 'number' ? window * 1000 : timeField(window, 'seconds'),
    rate: countField(rate),
  };
}

function countField(field: InputField): CountField | null {
  if (field === undefined) return null;
  if (typeof field === 'string') return { name: field.toLowerCase(), member: null };
  return { name: field.name.toLowerCase(), member: field.member?.toLowerCase() ?? null };
}

function timeField(field: InputField, unstated: TimeUnit): TimeField | null {
  const counted = countField(field);
  if (counted === null) return null;
  const as = typeof field === 'object' && 'as' in field ? field.as : undefined;
  return { ...counted, as: as ?? unstated };
}

type InputWait = NonNullable<SpeaksInput['waitIn']>[number];

function waitPlaceOf({ field, member, body, as: unit }: InputWait): WaitPlace[] {
  const as = unit ?? 'inferred';
  const name = field?.toLowerCase();
  if (name !== undefined)
    return [{ kind: 'field', field: { name, member: member?.toLowerCase() ?? null, as } }];
  const place = readWaitText(body ?? '');
  return place === null ? [] : [{ ...place, as }];
}

type InputCondition = NonNullable<SpeaksInput['throttledBy']>[number];

const conditionOf = ({ status, field, equals, body, waitSeconds }: InputCondition): ResponseCondition => ({
  statuses: [status].flat(),
  field: field?.toLowerCase() ?? null,
  equals: equals ?? null,
  body: body?.toLowerCase() ?? null,
  waitMs: waitSeconds === undefined ? null : waitSeconds * 1000,
});

const headerName = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/;

/** Reads one word of `bucketBy`: `credential`, `host`, `path:/v1/{*}`, `header:x-org`, `body:/model`; `null`: none of the forms. */
function readSeparator(text: string): Separator | 'credential' | 'host' | null {
  if (text === 'credential' || text === 'host') return text;
  const colon = text.indexOf(':');
  const value = text.slice(colon + 1);
  switch (text.slice(0, Math.max(0, colon))) {
    case 'path':
      return pathSeparator(value);
    case 'header':
      return headerName.test(value) ? { kind: 'header', name: value.toLowerCase() } : null;
    case 'body':
      return bodySeparator(value);
    default:
      return null;
  }
}

function pathSeparator(pattern: string): Separator | null {
  if (!/^\/[^\s?#]+$/.test(pattern) || pattern.length > 256) return null;
  const segments = pattern.slice(1).split('/');
  if (segments.some((segment) => segment === '' || (/[{}]/.test(segment) && segment !== '{*}'))) return null;
  return { kind: 'path', segments: segments.map((segment) => (segment === '{*}' ? null : segment)) };
}

function bodySeparator(text: string): Separator | null {
  const pointer = readPointer(text);
  return pointer === null ? null : { kind: 'body', pointer };
}

/** The names of a JSON Pointer, unescaped; `null`: it is none, or names the whole document. */
function readPointer(text: string): readonly string[] | null {
  if (!/^(?:\/(?:[^/~]|~[01])+)+$/.test(text) || text.length > 256) return null;
  const names = text.slice(1).split('/');
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
}

type WaitText =
  | { readonly kind: 'member'; readonly pointer: readonly string[] }
  | { readonly kind: 'sentence'; readonly pattern: string };

/** Reads `body` of `waitIn`; `null`: it is neither a JSON Pointer nor a pattern with one group. */
function readWaitText(text: string): WaitText | null {
  if (!text.startsWith('/')) return groupsIn(text) === 1 ? { kind: 'sentence', pattern: text } : null;
  const pointer = readPointer(text);
  return pointer === null ? null : { kind: 'member', pointer };
}

/** How many groups a pattern has; `null`: it is none, or too long. One that may also be empty matches the empty text, and shows them. */
function groupsIn(pattern: string): number | null {
  if (pattern.length > 256) return null;
  try {
    return (new RegExp(`${pattern}|`, 'i').exec('')?.length ?? 1) - 1;
  } catch {
    return null;
  }
}
