/**
 * `speaks` of an upstream: how it counts, reports and refuses, as a preset's name or as its parts, and the {@link Dialect} that these come
 * to. Each part is read into the form in which responses are read with it; field names and texts are lower case there.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { checkText } from './check-text.ts';
import * as is from './values.ts';

/** Presets: how widely used APIs count, report and refuse, a file each, which the build puts beside the compiled sources. */
const folder = new URL('../../presets/', import.meta.url);
const ending = '.yaml';

/** Names of the presets, in the order of the alphabet. */
export const presetNames: readonly string[] = readdirSync(folder)
  .filter((file) => file.endsWith(ending))
  .map((file) => file.slice(0, -ending.length))
  .toSorted();

/** Path of the file of a preset. */
export const presetPath = (name: string): string => fileURLToPath(new URL(`${name}${ending}`, folder));

const daySeconds = 86_400;
/** A window of this length or more counts beside a shorter one as the hourly one. */
const hourlySeconds = 1_800;

// What texts of a dialect say.

/** The segments of a path pattern; `null`: it is none. */
function readSegments(pattern: string): readonly string[] | null {
  if (!/^\/[^\s?#]+$/.test(pattern) || pattern.length > 256) return null;
  const segments = pattern.slice(1).split('/');
  return segments.every((segment) => /^(?:\{\*?\}|[^{}]+)$/.test(segment)) ? segments : null;
}

function readCallPattern(text: string) {
  const [, method = null, path = null] = /^([A-Z]{1,16})?(?:(?:^| )(\/.*))?$/.exec(text) ?? [];
  const segments = path === null ? null : readSegments(path);
  const isOne = path === null ? method !== null : segments !== null;
  return isOne ? { text, method, segments } : null;
}

/** Calls of a method (`null` = any) whose whole path has these segments (`null` = any path); `{*}` and `{}` as in a {@link Separator}. */
export interface CallPattern extends is.Frozen<NonNullable<ReturnType<typeof readCallPattern>>> {}

/** The names of a JSON Pointer (RFC 6901), unescaped; `null`: it is none, or names the whole document. */
function readPointer(text: string): readonly string[] | null {
  if (!/^(?:\/(?:[^/~]|~[01])+)+$/.test(text) || text.length > 256) return null;
  const names = text.slice(1).split('/');
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
}

const headerName = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/;

/** The part of a call that distinguishes its quota from others of the upstream. */
export type Separator =
  | { readonly kind: 'method' }
  /** The path up to these segments; `{*}` = any one, `{}` = any one that does not separate. */
  | { readonly kind: 'path'; readonly segments: readonly string[] }
  | { readonly kind: 'header'; readonly name: string }
  /** A text field of a form. */
  | { readonly kind: 'form'; readonly name: string }
  | { readonly kind: 'body'; readonly pointer: readonly string[] };

/** A field of responses in which they name the quota that their call counted against. */
interface NamingField {
  readonly kind: 'answer';
  readonly name: string;
}

/** Reads one word of `bucketBy`; `null`: none of the forms. */
export function readSeparator(text: string): Separator | NamingField | 'credential' | 'host' | null {
  if (text === 'credential' || text === 'host') return text;
  if (text === 'method') return { kind: text };
  const [, kind, name = ''] = /^(path|header|answer|form|body):(.*)$/s.exec(text) ?? [];
  const [segments, pointer] = [readSegments(name), readPointer(name)];
  if (kind === 'path' && segments !== null) return { kind, segments };
  if (kind === 'body' && pointer !== null) return { kind, pointer };
  if (kind === 'form' && /^[^\s&=]{1,100}$/.test(name)) return { kind, name };
  const isNamed = (kind === 'header' || kind === 'answer') && headerName.test(name);
  return isNamed ? { kind, name: name.toLowerCase() } : null;
}

/**
 * Reads `body` of `waitIn`: a JSON Pointer, or the source of a regular expression whose one group is the time (case does not matter);
 * `null`: neither.
 */
function readWaitText(text: string) {
  const pointer = readPointer(text);
  if (pointer !== null) return { kind: 'member', pointer } as const;
  if (text.startsWith('/') || text.length > 256) return null;
  try {
    // A pattern that may also be empty matches the empty text, and shows its groups.
    const isOne = new RegExp(`${text}|`, 'i').exec('')?.length === 2;
    return isOne ? ({ kind: 'sentence', pattern: text } as const) : null;
  } catch {
    return null;
  }
}

// The parts as they are written.

const callPattern = is.readText(
  { reason: 'names no calls', fix: 'write a method, a path or both: "POST /crm/{}/objects/{}/search"' },
  readCallPattern,
);

const window = is.section(
  {
    requests: is.count,
    seconds: is.seconds.min(1),
    kind: z.enum(['rolling', 'fixed', 'leaky']).default('rolling'),
    calls: z.union([callPattern.transform((one) => [one]), z.array(callPattern).min(1)]).optional(),
  },
  {
    requests: 'Calls that one window takes.',
    seconds: 'Length of the window, from 1 s to a day.',
    kind: 'rolling: every window of this length; fixed: windows aligned to the clock (UTC); leaky: the window’s calls at once, then they drain evenly.',
    calls:
      'Calls that alone count in the window, and in no other: a method, a path or both, or a list of them. {}: any segment; {*}: any, each value with a quota of its own. Of several that match the first counts. Default: calls that no other window names.',
  },
);

type WrittenWindow = z.output<typeof window>;

/** Units of a time, as contract and presets name them; `inferred`, where the file has none: by the form of the value. */
const unit = z
  .enum(['seconds', 'milliseconds', 'epoch-seconds', 'epoch-milliseconds', 'date', 'duration'])
  .optional()
  .describe('Unit of the time. date: HTTP-date or RFC 3339; duration: 1m30s.');

export type TimeUnit = NonNullable<z.output<typeof unit>> | 'inferred';

const fieldName = is
  .formed(headerName, 'is not a field name', 'write the name alone, such as x-ratelimit-remaining')
  .toLowerCase();
const member = is
  .orNull(
    z
      .string()
      .regex(/^[\w.-]{1,64}$/)
      .toLowerCase(),
  )
  .describe('Part of a value such as "total=100; remaining=99": the number behind this name.');
const place = { name: fieldName.describe('Name of the field.'), member };

const counted = is.orNull(
  z.union([fieldName.transform((name) => ({ name, member: null })), is.section(place)]),
);

/** @param unstated unit of a time whose field is given without one */
const timed = (unstated: TimeUnit) =>
  z.union([
    fieldName.transform((name) => ({ name, member: null, as: unstated })),
    is.section({ ...place, as: unit.transform((as) => as ?? unstated) }),
  ]);

const fields = is.section(
  {
    limit: counted,
    used: counted,
    remaining: counted,
    reset: is.orNull(
      timed('inferred').describe(
        'Field with the end of the window, or the time until then; as: its unit. Default: told from the value.',
      ),
    ),
    window: is.orNull(
      z.union([
        is.seconds.min(1).transform((long) => long * 1000),
        timed('seconds').describe('Field with the length of the window.'),
      ]),
    ),
    rate: counted,
  },
  {
    limit: 'Field with the calls of a window. Default: what windows states.',
    used: 'Field with the calls that are used.',
    remaining: 'Field with the calls that are left.',
    window: 'Which of windows the fields tell of, in seconds, or a field with its length.',
    rate: 'Field with the calls per second instead of a limit.',
  },
);

/** Fields that report one quota; `null` = not reported. `window`: milliseconds, or the field with it; `rate`: calls per second. */
export interface DialectFields extends is.Frozen<z.output<typeof fields>> {}
/** Where a number stands: a field, and the name before it in a value of several. */
export type CountField = NonNullable<DialectFields['limit']>;
export type TimeField = NonNullable<DialectFields['reset']>;

const status = z.int().min(100).max(599);
const bodyText = is
  .text('give 3 to 256 characters that only such a body has', (text) =>
    text.trim().length >= 3 && text.length <= 256 ? null : 'is no text to look for',
  )
  .toLowerCase();

const conditionParts = is.section(
  {
    status: z.union([status.transform((one) => [one]), z.array(status).min(1)]),
    field: is.orNull(fieldName),
    equals: is.orNull(z.string()),
    body: z.union([bodyText.transform((text) => [text]), z.array(bodyText).min(1).max(8)]).default([]),
  },
  {
    status: 'Status of the response, or a list of them.',
    field: 'Field that the response must have.',
    equals: 'Value that the field must have. Default: any.',
    body: 'Text that the start of the body must hold, or a list of texts that it must; case does not matter.',
  },
);

const checkCondition = is.rule<z.output<typeof conditionParts>>(({ status, field, equals, body }, refuse) => {
  if (equals !== null && field === null)
    refuse('belongs to no field', 'name the field that has this value', 'equals');
  else if (field === null && body.length === 0 && status.some((one) => one < 400))
    refuse('holds for every response of a success', 'add field or body to it');
});

const condition = conditionParts
  .superRefine(checkCondition)
  .transform(({ status: statuses, ...parts }) => ({ statuses, ...parts }));

const refusalCondition = is
  .section(
    {
      ...conditionParts.shape,
      waitSeconds: is.seconds.optional(),
      scope: z.enum(['call', 'bucket', 'credential']).exactOptional(),
    },
    {
      waitSeconds: 'Wait where the response names none.',
      scope:
        'Which calls must not be sent meanwhile: this one alone, those of its bucket, or all with its credential. Default: bucket in throttledBy, credential in permanentBy.',
    },
  )
  .superRefine(checkCondition)
  .transform(({ status: statuses, waitSeconds, ...parts }) => ({
    statuses,
    ...parts,
    waitMs: is.msOf(waitSeconds),
  }));

/** A response that means something beside its status. All parts must hold; `null` = anything will do. */
export interface ResponseCondition extends is.Frozen<z.output<typeof condition>> {}
/** A refusal that a condition tells, with a wait for where it names none (`null` = none is known), and whom it concerns. */
export interface RefusalCondition extends is.Frozen<z.output<typeof refusalCondition>> {}

const waitPlace = is
  .section(
    {
      field: fieldName.optional(),
      member,
      body: is
        .readText(
          {
            reason: 'is neither a JSON Pointer nor a pattern with one group',
            fix: 'write /parameters/retry_after, or a pattern such as "try again in (\\d+) s"',
          },
          readWaitText,
        )
        .optional(),
      as: unit.transform((as): TimeUnit => as ?? 'inferred'),
    },
    {
      field: 'Field with the wait.',
      body: 'JSON Pointer to the wait in the body, or a pattern whose one group it is.',
    },
  )
  .superRefine(
    is.rule(({ field, member, body }, refuse) => {
      if ((field === undefined) === (body === undefined))
        refuse('names not one place', 'give it either field or body');
      else if (field === undefined && member !== null)
        refuse('belongs to no field', 'name it in the pointer or pattern of body', 'member');
    }),
  )
  .transform(({ field: name = '', member, body, as }) =>
    body === undefined ? { kind: 'field' as const, field: { name, member, as } } : { ...body, as },
  );

/** Where a refusal states its wait. */
export type WaitPlace = is.Frozen<z.output<typeof waitPlace>>;

const bucketPart = is.readText(
  {
    reason: 'tells no quotas apart',
    fix: 'write credential, host, method, "path:/v1/{*}", "header:x-org", "form:channel", "body:/model" or "answer:x-ratelimit-resource"',
  },
  readSeparator,
);

const dialect = is.section(
  {
    windows: z.array(window).min(1).max(200).optional(),
    fields: z.union([fields, z.array(fields).min(1)]).optional(),
    throttledBy: z.array(refusalCondition).min(1).optional(),
    permanentBy: z.array(refusalCondition).min(1).optional(),
    expiredBy: z.array(condition).min(1).optional(),
    bucketBy: z.array(bucketPart).min(1).optional(),
    maxInFlight: is.count.optional(),
    waitIn: z.array(waitPlace).min(1).optional(),
    hintlessSeconds: is.seconds.optional(),
    penaltySeconds: is.seconds.optional(),
  },
  {
    windows: 'Windows of calls. Those of the same calls hold at once, 1 to 4 of them.',
    fields: 'Fields of responses that tell the quota. Default: RateLimit, X-RateLimit-* and their kin.',
    throttledBy:
      'Responses that refuse for want of quota, beside 429. Of two conditions that hold the one with more parts counts. All parts of a condition must hold.',
    permanentBy: 'Refusals that waiting does not cure. All parts of a condition must hold.',
    expiredBy: 'Refusals of an expired credential. Default: 401. All parts of a condition must hold.',
    bucketBy:
      'What tells quotas apart: credential, host, method, "path:/v1/{*}/{}" ({*}: a segment that does, {}: one that does not), "header:x-org", "form:channel", "body:/model", "answer:x-ratelimit-resource" (a field in which responses name the quota). Default: [credential].',
    maxInFlight: 'Calls in flight per workspace and bucket. Default: any number.',
    waitIn: 'Where a refusal states its wait, beside the usual places. The first that does counts.',
    hintlessSeconds: 'Wait after a refusal that states none. Default: 1, 2, 4 … 30.',
    penaltySeconds: 'Least time for which the upstream stays closed after it refused for want of quota.',
  },
);

type DialectParts = z.output<typeof dialect>;

/** Windows by the calls that count in them; those of calls that no other window names by the empty text. */
const byCalls = <W extends Pick<WrittenWindow, 'calls'>>(
  windows: readonly W[] = [],
): ReadonlyMap<string, W[]> =>
  Map.groupBy(windows, ({ calls = [] }) => calls.map(({ text }) => text).join('\n'));

/** Refuses buckets that credentials would share. */
export function checkBucketBy(bucketBy: readonly unknown[] | undefined, refuse: is.Refuse): void {
  if (bucketBy?.includes('credential') === false)
    refuse('leaves credential out', 'add credential: two credentials never share a quota', 'bucketBy');
}

/** Refuses windows of the same calls for which there are no meters, and parts of `bucketBy` that name no quota. */
function checkParts({ windows = [], bucketBy }: DialectParts, refuse: is.Refuse): void {
  for (const alike of byCalls(windows).values()) {
    const fix = 'keep the smaller one: both count the same calls';
    for (const [index, window] of alike.entries())
      if (alike.findIndex(({ seconds }) => seconds === window.seconds) !== index)
        refuse('is as long as another window', fix, 'windows', windows.indexOf(window));
    const kept = 'keep the three that hold calls most, and one of a day';
    if (alike.filter(({ seconds }) => seconds < daySeconds).length > 3)
      refuse('has more than three windows below a day', kept, 'windows');
  }
  checkBucketBy(bucketBy, refuse);
  const answers = bucketBy?.filter((one) => typeof one === 'object' && one.kind === 'answer') ?? [];
  const fix = 'keep the one that has another value for each quota';
  if (answers.length > 1) refuse('has several fields of responses', fix, 'bucketBy');
}

/** Parts that any kind of upstream may have: they say what refusals mean, beside what is known of the kind. */
export const refusalParts: readonly string[] = ['throttledBy', 'permanentBy', 'waitIn', 'hintlessSeconds'];

/**
 * Refuses fields that are meant to pace calls and tell no limit: what is left of an unknown whole says nothing of how fast it comes back.
 * A reset alone is of use where the upstream refuses.
 */
function checkPace({ windows = [], fields = [] }: DialectParts, refuse: is.Refuse): void {
  if (windows.some(({ calls }) => calls === undefined)) return;
  const reason = 'tells no limit, so that no call can be paced by it';
  const fix = 'add limit, rate or used, or describe windows; without any of them only refusals are obeyed';
  [fields].flat().forEach(({ limit, used, remaining, rate }, index) => {
    const isPart = limit === null && rate === null && (used === null) !== (remaining === null);
    if (isPart) refuse(reason, fix, 'fields', ...(Array.isArray(fields) ? [index] : []));
  });
}

const parts = is
  .section({
    preset: z.enum(presetNames).optional().describe('Preset that these parts replace parts of.'),
    ...dialect.shape,
  })
  .superRefine(is.rule(checkParts))
  .superRefine(is.rule((written, refuse) => checkPace(partsOf(written), refuse)));

/** A preset’s name, or the parts of a dialect. */
export const speaks = z
  .union([z.enum(presetNames), parts])
  .describe(
    'The dialect of a generic upstream: a preset’s name, or its parts, all optional. Of other kinds what some refusals mean: throttledBy, permanentBy, waitIn, hintlessSeconds.',
  );

/** Parts of a dialect that have been read. */
type SpeaksParts = z.output<typeof parts>;
/** What may stand in the file. */
export type SpeaksInput = z.input<typeof parts>;

/** A file of `presets/`. An operator could write its dialect, and both are held to the same rules. */
const preset = is.section({
  title: z.string(),
  source: z.url().describe('Page of the provider’s documentation from which the dialect is taken.'),
  counts: z.string().describe('What the API counts, in a sentence.'),
  missing: z.string().nullable().describe('Limits that no dialect can describe; null: none is known.'),
  speaks: dialect.superRefine(is.rule(checkParts)).superRefine(is.rule(checkPace)),
});

/** Reads the text of a preset; `path` only names it in messages. @throws ConfigError */
export const readPreset = (text: string, path: string): z.output<typeof preset> =>
  checkText(preset, text, { path, env: {} });

const presetsRead = new Map<string, ReturnType<typeof readPreset>>();

/** What is known of an API, and its dialect; the file of a preset is read once. @throws ConfigError */
export function presetOf(name: string): ReturnType<typeof readPreset> {
  const path = presetPath(name);
  const read = presetsRead.get(name) ?? readPreset(readFileSync(path, 'utf8'), path);
  presetsRead.set(name, read);
  return read;
}

/**
 * The parts, with those of the preset that they leave out; of its windows, those of other calls than the stated ones.
 * @throws ConfigError where the file of a preset cannot be used
 */
function partsOf(speaks: string | SpeaksParts): SpeaksParts {
  if (typeof speaks === 'string') return presetOf(speaks).speaks;
  if (speaks.preset === undefined) return speaks;
  const preset = presetOf(speaks.preset).speaks;
  const own = byCalls(speaks.windows);
  const others = [...byCalls(preset.windows)].filter(([calls]) => !own.has(calls));
  const windows = [...(speaks.windows ?? []), ...others.flatMap(([, alike]) => alike)];
  return { ...preset, ...is.stated(speaks), windows };
}

/** How an upstream of kind generic counts, reports and refuses. */
export interface Dialect extends is.Frozen<ReturnType<typeof buildDialect>['dialect']> {}

/**
 * The dialect as responses are read with it, and the keys of an upstream that it gives defaults for; `null`: not stated.
 * @throws ConfigError as `partsOf`
 */
export function buildDialect(speaks: string | SpeaksParts) {
  const parts = partsOf(speaks);
  const { throttledBy = [], permanentBy = [], waitIn = [], bucketBy } = parts;
  const expiredBy: readonly ResponseCondition[] = parts.expiredBy ?? [unauthorized];
  const separators = (bucketBy ?? []).filter((one) => typeof one === 'object');
  const { '': ofOthers = [], ...ofCalls } = Object.fromEntries(byCalls(parts.windows));
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
      penaltyMs: is.msOf(parts.penaltySeconds),
      /** Places beside the usual ones; they go before those. */
      waitIn,
      /** Wait after a refusal that names none; `null`: a growing back-off. */
      hintlessMs: is.msOf(parts.hintlessSeconds),
      /** Statuses below 400 whose bodies a condition or a wait reads. */
      bodyStatuses: reading.flatMap(({ statuses }) => statuses.filter((status) => status < 400)),
    },
    bucketBy: bucketBy?.filter((one) => typeof one === 'string') ?? null,
    maxInFlight: parts.maxInFlight ?? null,
  };
}

const unauthorized: ResponseCondition = { statuses: [401], field: null, equals: null, body: [] };

/** Which meter counts each of the windows below a day, from their lengths, the shortest first. */
function metersFor(lengths: readonly number[]) {
  if (lengths.length > 2) return ['requests_burst', 'requests', 'requests_hour'] as const;
  if (lengths.length < 2) return ['requests'] as const;
  return (lengths[1] ?? 0) >= hourlySeconds
    ? (['requests', 'requests_hour'] as const)
    : (['requests_burst', 'requests'] as const);
}

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
