/**
 * `speaks` of an upstream: how it counts, reports and refuses, as a preset's name or as its parts, and the {@link Dialect} that these come
 * to. Each part is read into the form in which responses are read with it; field names and texts are lower case there.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { checkText } from './check-text.ts';
import type { Path } from './problem.ts';
import {
  bodyText,
  count,
  orNull,
  plainFieldName,
  readText,
  refuse,
  seconds,
  section,
  type Frozen,
  type RuleContext,
} from './values.ts';

/** Presets: how widely used APIs count, report and refuse, a file each, which the build puts beside the compiled sources. */
const folder = new URL('../../presets/', import.meta.url);
const ending = '.yaml';

/** Names of the presets, in the order of the alphabet. */
export const presetNames: readonly string[] = readdirSync(folder)
  .filter((file) => file.endsWith(ending))
  .map((file) => file.slice(0, -ending.length))
  .toSorted((a, b) => (a < b ? -1 : 1));

/** Path of the file of a preset. */
export const presetPath = (name: string): string => fileURLToPath(new URL(`${name}${ending}`, folder));

const daySeconds = 86_400;

const callPattern = readText((written) => {
  const value = readCallPattern(written);
  const fix = 'write a method, a path or both: "POST /crm/{}/objects/{}/search"';
  return value === null ? { reason: 'names no calls', fix } : { value };
});

const window = section({
  requests: count.describe('Calls that one window takes.'),
  seconds: seconds.min(1).describe('Length of the window, from 1 s to a day.'),
  kind: z
    .enum(['rolling', 'fixed', 'leaky'])
    .default('rolling')
    .describe(
      'rolling: every window of this length; fixed: windows aligned to the clock (UTC); leaky: the window’s calls at once, then they drain evenly.',
    ),
  calls: z
    .union([callPattern.transform((one) => [one]), z.array(callPattern).min(1)])
    .optional()
    .describe(
      'Calls that alone count in the window, and in no other: a method, a path or both, or a list of them. {}: any segment; {*}: any, each value with a quota of its own. Of several that match the first counts. Default: calls that no other window names.',
    ),
});

type WrittenWindow = z.output<typeof window>;

/** Units of a time, as contract and presets name them; `inferred`, where the file has none: by the form of the value. */
const unit = z
  .enum(['seconds', 'milliseconds', 'epoch-seconds', 'epoch-milliseconds', 'date', 'duration'])
  .optional()
  .describe('Unit of the time. date: HTTP-date or RFC 3339; duration: 1m30s.');

export type TimeUnit = NonNullable<z.output<typeof unit>> | 'inferred';

const fieldName = plainFieldName.toLowerCase();
const named = fieldName.describe('Name of the field.');

const member = orNull(
  z
    .string()
    .regex(/^[\w.-]{1,64}$/)
    .toLowerCase(),
).describe('Part of a value such as "total=100; remaining=99": the number behind this name.');

const counted = (description: string) =>
  orNull(
    z.union([fieldName.transform((name) => ({ name, member: null })), section({ name: named, member })]),
  ).describe(description);

/** @param unstated unit of a time whose field is given without one */
const timed = (description: string, unstated: TimeUnit) =>
  z
    .union([
      fieldName.transform((name) => ({ name, member: null, as: unstated })),
      section({ name: named, member, as: unit.transform((as) => as ?? unstated) }),
    ])
    .describe(description);

const fields = section({
  limit: counted('Field with the calls of a window. Default: what windows states.'),
  used: counted('Field with the calls that are used.'),
  remaining: counted('Field with the calls that are left.'),
  reset: orNull(
    timed(
      'Field with the end of the window, or the time until then; as: its unit. Default: told from the value.',
      'inferred',
    ),
  ),
  window: orNull(
    z.union([
      seconds.min(1).transform((long) => long * 1000),
      timed('Field with the length of the window.', 'seconds'),
    ]),
  ).describe('Which of windows the fields tell of, in seconds, or a field with its length.'),
  rate: counted('Field with the calls per second instead of a limit.'),
});

/** Fields that report one quota; `null` = not reported. `window`: milliseconds, or the field with it; `rate`: calls per second. */
export interface DialectFields extends Frozen<z.output<typeof fields>> {}
/** Where a number stands: a field, and the name before it in a value of several. */
export type CountField = NonNullable<DialectFields['limit']>;
export type TimeField = NonNullable<DialectFields['reset']>;

const conditionShape = {
  status: z
    .union([z.int().min(100).max(599), z.array(z.int().min(100).max(599)).min(1)])
    .describe('Status of the response, or a list of them.'),
  field: orNull(fieldName).describe('Field that the response must have.'),
  equals: orNull(z.string()).describe('Value that the field must have. Default: any.'),
  body: z
    .union([
      bodyText.toLowerCase().transform((text) => [text]),
      z.array(bodyText.toLowerCase()).min(1).max(8),
    ])
    .default([])
    .describe(
      'Text that the start of the body must hold, or a list of texts that it must; case does not matter.',
    ),
};

type WrittenCondition = z.output<z.ZodObject<typeof conditionShape>>;

function checkCondition({ status, field, equals, body }: WrittenCondition, context: RuleContext): void {
  if (equals !== null && field === null)
    refuse(context, { reason: 'belongs to no field', fix: 'name the field that has this value' }, ['equals']);
  else if (field === null && body.length === 0 && [status].flat().some((one) => one < 400))
    refuse(context, { reason: 'holds for every response of a success', fix: 'add field or body to it' });
}

const condition = section(conditionShape)
  .superRefine(checkCondition)
  .transform(({ status, ...parts }) => ({ statuses: [status].flat(), ...parts }));

const refusalCondition = section({
  ...conditionShape,
  waitSeconds: seconds.optional().describe('Wait where the response names none.'),
  scope: z
    .enum(['call', 'bucket', 'credential'])
    .optional()
    .describe(
      'Which calls must not be sent meanwhile: this one alone, those of its bucket, or all with its credential. Default: bucket in throttledBy, credential in permanentBy.',
    ),
})
  .superRefine(checkCondition)
  .transform(({ status, waitSeconds, scope, ...parts }) => ({
    statuses: [status].flat(),
    ...parts,
    waitMs: waitSeconds === undefined ? null : waitSeconds * 1000,
    ...(scope === undefined ? {} : { scope }),
  }));

/** A response that means something beside its status. All parts must hold; `null` = anything will do. */
export interface ResponseCondition extends Frozen<z.output<typeof condition>> {}
/** A refusal that a condition tells, with a wait for where it names none (`null` = none is known), and whom it concerns. */
export interface RefusalCondition extends Frozen<z.output<typeof refusalCondition>> {}

const conditions = <Condition extends z.ZodType>(one: Condition, description: string) =>
  z.array(one).min(1).optional().describe(`${description} All parts of a condition must hold.`);

/** A word of `bucketBy`. */
const bucketPart = readText((written) => {
  const value = readSeparator(written);
  const fix =
    'write credential, host, method, "path:/v1/{*}", "header:x-org", "form:channel", "body:/model" or "answer:x-ratelimit-resource"';
  return value === null ? { reason: 'tells no quotas apart', fix } : { value };
});

const waitPlace = section({
  field: fieldName.optional().describe('Field with the wait.'),
  member,
  body: readText((written) => {
    const value = readWaitText(written);
    const reason = 'is neither a JSON Pointer nor a pattern with one group';
    const fix = 'write /parameters/retry_after, or a pattern such as "try again in (\\d+) s"';
    return value === null ? { reason, fix } : { value };
  })
    .optional()
    .describe('JSON Pointer to the wait in the body, or a pattern whose one group it is.'),
  as: unit.transform((as): TimeUnit => as ?? 'inferred'),
})
  .superRefine(({ field, member, body }, context) => {
    if ((field === undefined) === (body === undefined))
      refuse(context, { reason: 'names not one place', fix: 'give it either field or body' });
    else if (field === undefined && member !== null)
      refuse(context, { reason: 'belongs to no field', fix: 'name it in the pointer or pattern of body' }, [
        'member',
      ]);
  })
  .transform(({ field: name, member, body, as }): WaitPlace =>
    name !== undefined || body === undefined
      ? { kind: 'field', field: { name: name ?? '', member, as } }
      : { ...body, as },
  );

/** Where a refusal states its wait. */
export type WaitPlace =
  { readonly kind: 'field'; readonly field: TimeField } | (WaitText & { readonly as: TimeUnit });

const dialectShape = {
  windows: z
    .array(window)
    .min(1)
    .max(200)
    .optional()
    .describe('Windows of calls. Those of the same calls hold at once, 1 to 4 of them.'),
  fields: z
    .union([fields, z.array(fields).min(1)])
    .optional()
    .describe('Fields of responses that tell the quota. Default: RateLimit, X-RateLimit-* and their kin.'),
  throttledBy: conditions(
    refusalCondition,
    'Responses that refuse for want of quota, beside 429. Of two conditions that hold the one with more parts counts.',
  ),
  permanentBy: conditions(refusalCondition, 'Refusals that waiting does not cure.'),
  expiredBy: conditions(condition, 'Refusals of an expired credential. Default: 401.'),
  bucketBy: z
    .array(bucketPart)
    .min(1)
    .optional()
    .describe(
      'What tells quotas apart: credential, host, method, "path:/v1/{*}/{}" ({*}: a segment that does, {}: one that does not), "header:x-org", "form:channel", "body:/model", "answer:x-ratelimit-resource" (a field in which responses name the quota). Default: [credential].',
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
  for (const alike of byCalls(windows).values()) checkWindows(alike, windows, context);
  if (bucketBy === undefined) return;
  checkBucketBy(bucketBy, { context, path: ['bucketBy'] });
  if (bucketBy.filter((one) => typeof one === 'object' && one.kind === 'answer').length > 1) {
    const fix = 'keep the one that has another value for each quota';
    refuse(context, { reason: 'has several fields of responses', fix }, ['bucketBy']);
  }
}

/** Windows that hold at once, by the calls that they count; `''` = those that no other window names. */
const byCalls = (windows: readonly WrittenWindow[]): ReadonlyMap<string, readonly WrittenWindow[]> =>
  Map.groupBy(windows, ({ calls = [] }) => calls.map(({ text }) => text).join(', '));

/** Refuses windows of the same calls for which there are no meters. */
function checkWindows(alike: readonly WrittenWindow[], all: readonly WrittenWindow[], context: RuleContext) {
  alike.forEach((window, index) => {
    if (alike.findIndex(({ seconds }) => seconds === window.seconds) === index) return;
    const fix = 'keep the smaller one: both count the same calls';
    refuse(context, { reason: 'is as long as another window', fix }, ['windows', all.indexOf(window)]);
  });
  if (alike.filter(({ seconds }) => seconds < daySeconds).length > 3) {
    const fix = 'keep the three that hold calls most, and one of a day';
    refuse(context, { reason: 'has more than three windows below a day', fix }, ['windows']);
  }
}

/** Parts that any kind of upstream may have: they say what refusals mean, beside what is known of the kind. */
export const refusalParts: readonly string[] = ['throttledBy', 'permanentBy', 'waitIn', 'hintlessSeconds'];

/**
 * Refuses fields that are meant to pace calls and tell no limit: what is left of an unknown whole says nothing of how fast it comes back.
 * A reset alone is of use where the upstream refuses.
 */
function checkPace({ windows = [], fields = [] }: DialectParts, context: RuleContext): void {
  if (windows.some(({ calls }) => calls === undefined)) return;
  [fields].flat().forEach(({ limit, used, remaining, rate }, index) => {
    const hasLimit = limit !== null || rate !== null || (used !== null && remaining !== null);
    if (hasLimit || (used === null && remaining === null)) return;
    const fix = 'add limit, rate or used, or describe windows; without any of them only refusals are obeyed';
    const path = Array.isArray(fields) ? ['fields', index] : ['fields'];
    refuse(context, { reason: 'tells no limit, so that no call can be paced by it', fix }, path);
  });
}

const parts = section({
  preset: z.enum(presetNames).optional().describe('Preset that these parts replace parts of.'),
  ...dialectShape,
})
  .superRefine(checkParts)
  .superRefine((written, context) => checkPace(partsOf(written), context));

/** A preset’s name, or the parts of a dialect. */
export const speaks = z
  .union([z.enum(presetNames), parts])
  .describe(
    'The dialect of a generic upstream: a preset’s name, or its parts, all optional. Of other kinds what some refusals mean: throttledBy, permanentBy, waitIn, hintlessSeconds.',
  );

/** Refuses buckets that credentials would share. */
export function checkBucketBy(
  bucketBy: readonly unknown[],
  { context, path }: { readonly context: RuleContext; readonly path: Path },
): void {
  if (bucketBy.includes('credential')) return;
  const fix = 'add credential: two credentials never share a quota';
  refuse(context, { reason: 'leaves credential out', fix }, path);
}

/** Parts of a dialect that have been read. */
export type SpeaksParts = z.output<typeof parts>;
/** What may stand in the file. */
export type SpeaksInput = z.input<typeof parts>;

/** A file of `presets/`. An operator could write its dialect, and both are held to the same rules. */
const presetSchema = section({
  title: z.string(),
  source: z.url().describe('Page of the provider’s documentation from which the dialect is taken.'),
  counts: z.string().describe('What the API counts, in a sentence.'),
  missing: z.string().nullable().describe('Limits that no dialect can describe; null: none is known.'),
  speaks: section(dialectShape).superRefine(checkParts).superRefine(checkPace),
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

/** A window of this length or more counts beside a shorter one as the hourly one. */
const hourlySeconds = 1_800;

/**
 * The parts, with those of the preset that they leave out; of its windows, those of other calls than the stated ones.
 * @throws ConfigError where the file of a preset cannot be used
 */
function partsOf(speaks: string | SpeaksParts): SpeaksParts {
  if (typeof speaks === 'string') return presetOf(speaks).speaks;
  if (speaks.preset === undefined) return speaks;
  const preset = presetOf(speaks.preset).speaks;
  const stated = Object.entries(speaks).filter(([, value]) => value !== undefined);
  const own = byCalls(speaks.windows ?? []);
  const others = [...byCalls(preset.windows ?? [])].filter(([calls]) => !own.has(calls));
  const windows = [...(speaks.windows ?? []), ...others.flatMap(([, alike]) => alike)];
  return { ...preset, ...Object.fromEntries(stated), windows };
}

/** A dialect, and the keys of an upstream that it gives defaults for; `null`: not stated. */
export type BuiltDialect = ReturnType<typeof buildDialect>;
/** How an upstream of kind generic counts, reports and refuses. */
export interface Dialect extends Frozen<BuiltDialect['dialect']> {}

/** The dialect of what may stand in a file. @throws ConfigError, ZodError */
export const dialectOf = (written: string | SpeaksInput): BuiltDialect => buildDialect(speaks.parse(written));

/** The dialect as responses are read with it. @throws ConfigError as `partsOf` */
export function buildDialect(speaks: string | SpeaksParts) {
  const parts = partsOf(speaks);
  const { throttledBy = [], permanentBy = [], waitIn = [], bucketBy = null } = parts;
  const expiredBy: readonly ResponseCondition[] = parts.expiredBy ?? [unauthorized];
  const separators = (bucketBy ?? []).filter((one) => typeof one === 'object');
  const { '': ofOthers = [], ...ofCalls } = Object.fromEntries(byCalls(parts.windows ?? []));
  const isWaitInBody = waitIn.some(({ kind }) => kind !== 'field');
  const reading = [
    ...throttledBy.filter(({ body }) => isWaitInBody || body.length > 0),
    ...[...permanentBy, ...expiredBy].filter(({ body }) => body.length > 0),
  ];
  return {
    dialect: {
      /** Shortest first. */
      windows: buildWindows(ofOthers),
      /** Calls with windows of their own. */
      operations: Object.values(ofCalls).map((windows) => ({
        calls: windows[0]?.calls ?? [],
        windows: buildWindows(windows),
      })),
      /** The calls that the windows are for, as they are written; none = those of no operation. */
      operation: [] as readonly string[],
      /** `null`: the fields that no provider owns. */
      fields: parts.fields === undefined ? null : [parts.fields].flat(),
      throttledBy,
      permanentBy,
      expiredBy,
      separators: separators.filter((one) => one.kind !== 'answer'),
      /** Field of responses that names the quota of their call; `null` = they do not. */
      namedIn: separators.find((one) => one.kind === 'answer')?.name ?? null,
      penaltyMs: parts.penaltySeconds === undefined ? null : parts.penaltySeconds * 1000,
      /** Places beside the usual ones; they go before those. */
      waitIn,
      /** Wait after a refusal that names none; `null`: a growing back-off. */
      hintlessMs: parts.hintlessSeconds === undefined ? null : parts.hintlessSeconds * 1000,
      /** Statuses below 400 whose bodies a condition or a wait reads. */
      bodyStatuses: reading.flatMap(({ statuses }) => statuses.filter((status) => status < 400)),
    },
    bucketBy: bucketBy?.filter((one) => typeof one === 'string') ?? null,
    maxInFlight: parts.maxInFlight ?? null,
  };
}

const unauthorized: ResponseCondition = { statuses: [401], field: null, equals: null, body: [] };

/** Which meter counts a window. */
export type WindowMeter = 'requests_burst' | 'requests' | 'requests_hour' | 'requests_day';

/** Each window with its meter. The longest of a day is the day's; there is one meter for each of three shorter ones. */
export function buildWindows(windows: readonly Omit<WrittenWindow, 'calls'>[]) {
  const sorted = windows.toSorted((a, b) => a.seconds - b.seconds);
  const meters = metersFor(sorted.map(({ seconds }) => seconds).filter((seconds) => seconds < daySeconds));
  return sorted.map(({ requests, seconds, kind }, index) => ({
    meter: meters[index] ?? ('requests_day' as const),
    requests,
    windowMs: seconds * 1000,
    kind,
  }));
}

export type DialectWindow = Dialect['windows'][number];

function metersFor(lengths: readonly number[]): WindowMeter[] {
  if (lengths.length > 2) return ['requests_burst', 'requests', 'requests_hour'];
  if (lengths.length < 2) return ['requests'];
  return (lengths[1] ?? 0) >= hourlySeconds ? ['requests', 'requests_hour'] : ['requests_burst', 'requests'];
}

/** The part of a call that distinguishes its quota from others of the upstream. */
export type Separator =
  | { readonly kind: 'method' }
  /** The path up to these segments; `{*}` = any one, `{}` = any one that does not separate. */
  | { readonly kind: 'path'; readonly segments: readonly string[] }
  | { readonly kind: 'header'; readonly name: string }
  /** A text field of a form. */
  | { readonly kind: 'form'; readonly name: string }
  /** A JSON Pointer (RFC 6901), unescaped. */
  | { readonly kind: 'body'; readonly pointer: readonly string[] };

const headerName = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/;

/** A field of responses in which they name the quota that their call counted against. */
interface NamingField {
  readonly kind: 'answer';
  readonly name: string;
}

/** Reads one word of `bucketBy`; `null`: none of the forms. */
export function readSeparator(text: string): Separator | NamingField | 'credential' | 'host' | null {
  if (text === 'credential' || text === 'host') return text;
  if (text === 'method') return { kind: 'method' };
  const colon = text.indexOf(':');
  const value = text.slice(colon + 1);
  switch (text.slice(0, Math.max(0, colon))) {
    case 'path':
      return pathSeparator(value);
    case 'header':
      return headerName.test(value) ? { kind: 'header', name: value.toLowerCase() } : null;
    case 'answer':
      return headerName.test(value) ? { kind: 'answer', name: value.toLowerCase() } : null;
    case 'form':
      return /^[^\s&=]{1,100}$/.test(value) ? { kind: 'form', name: value } : null;
    case 'body':
      return withPointer(value, 'body');
    default:
      return null;
  }
}

function pathSeparator(pattern: string): Separator | null {
  const segments = readSegments(pattern);
  return segments === null ? null : { kind: 'path', segments };
}

/** The segments of a path pattern; `null`: it is none. */
function readSegments(pattern: string): readonly string[] | null {
  if (!/^\/[^\s?#]+$/.test(pattern) || pattern.length > 256) return null;
  const segments = pattern.slice(1).split('/');
  const isBroken = (segment: string): boolean =>
    segment === '' || /[{}]/.test(segment.replace(/^\{\*?\}$/, ''));
  return segments.some(isBroken) ? null : segments;
}

/** Calls of a method (`null` = any) whose whole path has these segments (`null` = any path); `{*}` and `{}` as in a {@link Separator}. */
export interface CallPattern {
  readonly text: string;
  readonly method: string | null;
  readonly segments: readonly string[] | null;
}

function readCallPattern(text: string): CallPattern | null {
  const [, method = null, path = null] = /^([A-Z]{1,16})?(?:(?:^| )(\/.*))?$/.exec(text) ?? [];
  const segments = path === null ? null : readSegments(path);
  const isOne = path === null ? method !== null : segments !== null;
  return isOne ? { text, method, segments } : null;
}

function withPointer<Kind extends string>(text: string, kind: Kind) {
  const pointer = readPointer(text);
  return pointer === null ? null : { kind, pointer };
}

/** The names of a JSON Pointer, unescaped; `null`: it is none, or names the whole document. */
function readPointer(text: string): readonly string[] | null {
  if (!/^(?:\/(?:[^/~]|~[01])+)+$/.test(text) || text.length > 256) return null;
  const names = text.slice(1).split('/');
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** A JSON Pointer, unescaped, or the source of a regular expression whose one group is the time; case does not matter. */
type WaitText =
  | { readonly kind: 'member'; readonly pointer: readonly string[] }
  | { readonly kind: 'sentence'; readonly pattern: string };

/** Reads `body` of `waitIn`; `null`: it is neither a JSON Pointer nor a pattern with one group. */
function readWaitText(text: string): WaitText | null {
  if (!text.startsWith('/')) return groupsIn(text) === 1 ? { kind: 'sentence', pattern: text } : null;
  return withPointer(text, 'member');
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
