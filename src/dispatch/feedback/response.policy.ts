/**
 * What a response says in any dialect: its plain facts, the fields in which providers state limits, and what those say about meters; how much
 * of what is found is believed; and what a call has spent in all. No stream, no socket, no configuration.
 */
import type { Costs, Feedback, MeterReport, MeterName } from '../../call.ts';
import {
  completedMs,
  maxRetryAfterMs,
  parsedWaitMs,
  retryAfterMs,
  sentenceWaitMs,
  type ResponseTime,
  singleValues,
  timeLeftMs,
} from '../stated-time.policy.ts';
import { parseJson } from './json.policy.ts';
import type { Dialect, TimeUnit } from '../../config/settings.ts';
import { secondMs, minuteMs, hourMs, dayMs } from '../../time-units.ts';
import { wordsOf } from '../../words.policy.ts';

export interface ResponseFacts {
  readonly status: number;
  /** Field values by lower-case name; repeated fields joined by `, `. */
  readonly fields: ReadonlyMap<string, string>;
  /** Decoded text of the body, or its last 8 KiB when it is larger; `null` when nobody read it. */
  readonly body: string | null;
  /** Which of an upstream's limits the call counts against: `rest`, `graphql` (commerce) or `default`. */
  readonly callClass: string;
  /** Wall clock at which the head arrived, milliseconds since the epoch. */
  readonly nowMs: number;
}

/** A response that taught nothing. */
export const nothingLearned: Feedback = { meters: [], throttle: null };

/** One response as the dialects read it: its body is parsed once at most, and only where a dialect asks for it. */
export type ResponseReader = ReturnType<typeof readerOf>;

export function readerOf(facts: ResponseFacts, dialect: Dialect) {
  const { fields, body, nowMs } = facts;
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  let parsed: { readonly value: unknown } | null = null;
  /** The body as JSON; `undefined`: it is none, or nobody has read it. */
  const json = (): unknown => (parsed ??= { value: body === null ? undefined : parseJson(body) }).value;
  /** The wait that the body states, 1 ms to a day; `null`: it names none, or nobody has read it. */
  const bodyMs = (): number | null => {
    if (body === null) return null;
    return json() === undefined ? sentenceWaitMs(body, at) : parsedWaitMs(json(), at);
  };
  /** The wait that `Retry-After` or a field like it states, milliseconds; `null`: none does. The body may complete it. */
  const statedMs = (): number | null => {
    const waitMs = retryAfterMs(fields, nowMs);
    return waitMs && completedMs(waitMs, bodyMs());
  };
  /** `dialect`: empty where nobody has described one. */
  return { ...facts, dialect, at, json, bodyMs, statedMs };
}

// Belief. A bucket is shared, and while it is held shut no further response comes that could set it right: one absurd number,
// wherever it stood, must not close it for years. So nothing that a single response says holds calls back for more than a
// day, and whatever it says about a level is undone by the next response within the window that it named itself.

/** Quotas are counted in whole units, and sums of more than this many are not exact any more. */
const maxLimit = 1e15;
/** The longest window of any known limiter. A bucket whose stated window is longer drains within a day all the same. Milliseconds. */
const maxWindowMs = dayMs;

/** The feedback with its reports and waits within the bounds of belief: finite, and without reports that cannot be a quota. */
export function believable(feedback: Feedback): Feedback {
  const { throttle, requestedCost, actualCost, requestedTokens } = feedback;
  if (feedback.meters.length === 0 && throttle === null && requestedTokens === undefined) return feedback;
  const meters = feedback.meters.filter(({ limit }) => limit >= 1 && limit <= maxLimit).map(bounded);
  const points = meters.find(({ meter }) => meter === 'cost')?.limit ?? maxLimit;
  return {
    ...feedback,
    meters,
    throttle: throttle && {
      ...throttle,
      waitMs: throttle.waitMs && Math.min(throttle.waitMs, maxRetryAfterMs),
    },
    // No document takes more than a full bucket.
    ...(requestedCost === undefined ? {} : { requestedCost: Math.min(requestedCost, points) }),
    ...(actualCost === undefined ? {} : { actualCost: Math.min(actualCost, points) }),
    ...(requestedTokens === undefined ? {} : { requestedTokens: Math.min(requestedTokens, maxLimit) }),
  };
}

/** A level is at most its limit, because the upstream refused, and did not count, what was beyond. */
const bounded = ({ windowMs, resetMs, level, ...report }: MeterReport): MeterReport => ({
  ...report,
  windowMs: windowMs === null ? null : Math.min(Math.max(windowMs, 1), maxWindowMs),
  ...(resetMs === undefined || resetMs === null ? {} : { resetMs: Math.min(resetMs, maxWindowMs) }),
  level: level && {
    lowest: Math.min(level.lowest, report.limit),
    highest: Math.min(level.highest, report.limit),
  },
});

// Spending

/** Costs of a call that was refused: it counts as a request, but it used no tokens and made no images. */
const nothingMade: Costs = { tokens: 0, tokens_day: 0, input_tokens: 0, output_tokens: 0, images: 0 };

/**
 * What a call has spent of the bucket's meters, known at the end of its response; what it had reserved was an estimate.
 *
 * `late`: what the rest of the response's body reported; `null` = nothing. Returns what each meter is charged in all; a meter that
 * is not named stays as reserved, and `null` = all do. A call that the upstream refused (4xx) made no tokens; often such a
 * response states no level, and what the call reserved would stay taken.
 */
export function spentOf(status: number, head: Feedback, late: Feedback | null): Costs | null {
  const cost = (late ?? head).actualCost;
  if (cost !== undefined) return { cost };
  if (status >= 400) return status < 500 ? nothingMade : null;
  const usage = late?.usage ?? head.usage;
  if (usage === undefined) return null;
  const { total, input, output } = usage;
  const spent = { tokens: total, tokens_day: total, input_tokens: input, output_tokens: output };
  const settled = Object.entries(spent).filter(
    ([name, units]) =>
      units !== null && !head.meters.some(({ meter, level }) => meter === name && level !== null),
  );
  return settled.length === 0 ? null : (Object.fromEntries(settled) as Costs);
}

// What the fields of a response say of limits, and what that says about meters: fields that no provider owns (`RateLimit` of
// draft-ietf-httpapi-ratelimit-headers, `X-RateLimit-Limit/-Remaining/-Reset` and their like), and those of the providers of language models.
//
// Tolerant, because real senders break the grammar (`"fixed window";"resolvers";q=3000`). Invariants: malformed members are ignored, never
// read as 0; only what the numbers prove: a window that does not fit exactly one known length is `null`, a level is an interval that
// contains the truth.

/** One limit as a response's fields spell it; `null` members were absent or unusable. */
export interface Reading {
  /** Meter it belongs to by name; the window may still make it the `_day` one. */
  readonly meter: 'requests' | 'tokens' | 'images' | 'input_tokens' | 'output_tokens' | null;
  readonly limit: number | null;
  readonly remaining: number | null;
  /** Milliseconds until all units are free again (`all_free`) or until the window ends (`window`). */
  readonly resetInMs: number | null;
  readonly resetMeans: 'all_free' | 'window';
  /** Rounding of the reset, milliseconds. */
  readonly resetGrainMs: number;
  /** Window the provider states; wins over any deduction. */
  readonly statedWindowMs: number | null;
}

/** Values by lower-case name. */
export type Fields = ReadonlyMap<string, string>;

/** A reading of requests whose reset is the end of their window, with what is stated of it. */
export const requestsReading = (stated: Partial<Reading>): Reading => ({
  meter: 'requests',
  limit: null,
  remaining: null,
  resetInMs: null,
  resetMeans: 'window',
  resetGrainMs: 0,
  statedWindowMs: null,
  ...stated,
});

/** A field that is longer states nothing. Characters. */
const maxField = 2_048;

/** A field that counts something: thousands commas stripped, repeats must agree, `-1` and garbage are `null`. */
export function count(value: string | undefined): number | null {
  if (value === undefined || value.length > 64) return null;
  const [first = '', ...others] = value.split(/,\s+/).map((part) => part.trim());
  if (others.some((part) => part !== first)) return null;
  const digits = /^\d{1,3}(,\d{3})+$/.test(first) ? first.replaceAll(',', '') : first;
  return /^\d+(\.\d+)?$/.test(digits) ? Number(digits) : null;
}

/**
 * A reset field with its rounding: a value with a unit is exact to the millisecond, all others to the second. Of several values the
 * latest counts. An instant in the past is 0: that reset has happened.
 */
export function reset(
  value: string | undefined,
  at: ResponseTime,
  as: TimeUnit = 'inferred',
): Pick<Reading, 'resetInMs' | 'resetGrainMs'> {
  if (value === undefined || value.length > maxField) return { resetInMs: null, resetGrainMs: 0 };
  const times = singleValues(value).flatMap((one) => timeLeftMs(one, as, at) ?? []);
  return {
    resetInMs: times.length === 0 ? null : Math.max(0, ...times),
    resetGrainMs: /\d[a-zµμ]+$/.test(value.trim()) ? 1 : 1000,
  };
}

/** True where some field may state a limit; most responses of most APIs state none. */
function mayState(fields: Fields): boolean {
  for (const name of fields.keys()) if (name.includes('limit')) return true;
  return false;
}

// Fields that no provider owns

interface Item {
  readonly names: readonly string[];
  readonly parameters: ReadonlyMap<string, string>;
}

const quoted = /"(?:[^"\\]|\\.)*"/g;
const items = /(?:"(?:[^"\\]|\\.)*"|[^",])+/g;
const parts = /(?:"(?:[^"\\]|\\.)*"|[^";])+/g;
const unquoted = (text: string): string => text.trim().replace(/^"(.*)"$/s, '$1');

function itemsOf(value: string | undefined): readonly Item[] {
  // With an unclosed quote there is no telling where an item ends.
  if (value === undefined || value.length > maxField || value.replaceAll(quoted, '').includes('"')) return [];
  return (value.match(items) ?? [])
    .map((text) => {
      const names: string[] = [];
      const parameters = new Map<string, string>();
      for (const part of text.match(parts) ?? []) {
        const [, key, value = ''] = /^([^"=]*)=(.*)$/s.exec(part) ?? [];
        if (key !== undefined) parameters.set(key.trim().toLowerCase(), unquoted(value));
        else if (part.trim() !== '') names.push(unquoted(part));
      }
      return { names, parameters };
    })
    .filter(({ names, parameters }) => names.length + parameters.size > 0);
}

/** The first of these parameters that counts something. */
const numberIn = (item: Item | undefined, ...names: readonly string[]): number | null =>
  names.map((name) => count(item?.parameters.get(name))).find((number) => number !== null) ?? null;

const inMs = (seconds: number | null): number | null =>
  seconds === null || seconds <= 0 ? null : seconds * secondMs;

/**
 * Readings of `RateLimit`, each item joined with the policy of its name, and of policies that no item names: `r` remaining units, `t` seconds
 * until more of them, `q` units of the policy, `w` its seconds, `qu` what is counted. Quotas in another unit than requests are left out.
 */
function structuredReadings(fields: Fields): readonly Reading[] {
  const policies = itemsOf(fields.get('ratelimit-policy'));
  const stated = itemsOf(fields.get('ratelimit'));
  // Draft 07 writes one quota as a dictionary: `limit=10, remaining=0, reset=30`.
  const isDictionary = stated.length > 1 && stated.every(({ names }) => names.length === 0);
  const joined = { names: [], parameters: new Map(stated.flatMap(({ parameters }) => [...parameters])) };
  const isOf = (policy: Item, item: Item): boolean =>
    isDictionary
      ? quotaOf(policy) === numberIn(item, 'limit')
      : policy.names.some((name) => item.names.includes(name));
  const quotas = (isDictionary ? [joined] : stated).map((item) => ({
    item,
    policy: policies.find((policy) => isOf(policy, item)),
  }));
  const alone = policies.filter((policy) => quotas.every((quota) => quota.policy !== policy));
  return [...quotas, ...alone.map((policy) => ({ item: undefined, policy }))]
    .filter(({ policy }) => (policy?.parameters.get('qu') ?? 'requests') === 'requests')
    .map(({ item, policy }) => {
      const seconds = numberIn(item, 't', 'reset');
      return requestsReading({
        limit: numberIn(policy, 'q') ?? numberIn(item, 'limit'),
        remaining: numberIn(item, 'r', 'remaining'),
        resetInMs: seconds === null ? null : seconds * secondMs,
        resetGrainMs: secondMs,
        statedWindowMs: inMs(numberIn(policy, 'w')),
      });
    });
}

/** Beginnings of the three usual names. A part of the three may be missing: Reddit states what is used instead of the limit. */
const plainNames = wordsOf('limit reset reset-after').flatMap((part) =>
  wordsOf('x-ratelimit- ratelimit- x-rate-limit- rate-limit-').map((prefix) => ({ prefix, part })),
);
const plainParts = wordsOf('limit remaining used reset reset-after');

/** What a policy allows: `q`, or up to draft 07 the item itself (`10;w=60`). */
const quotaOf = (policy: Item | undefined): number | null => numberIn(policy, 'q') ?? count(policy?.names[0]);

/**
 * Readings of the un-dimensioned triple, requests by convention; none when absent. Up to draft 06 the limit is followed by its policies, one
 * or several: `10, 10;w=1, 50;w=60`, or they have a field of their own. What remains is stated for the one that is the limit.
 */
function plainReadings(fields: Fields, at: ResponseTime): readonly Reading[] {
  const prefix = plainNames.find(({ prefix, part }) => fields.has(prefix + part))?.prefix;
  if (prefix === undefined) return [];
  const [limitField, left, used, resetField, resetAfter] = plainParts.map((part) =>
    fields.get(prefix + part),
  );
  const items = [...itemsOf(limitField), ...itemsOf(fields.get('ratelimit-policy'))];
  const policies = items
    .map((item) => ({ limit: quotaOf(item), statedWindowMs: inMs(numberIn(item, 'w')) }))
    .filter((policy) => policy.limit !== null && policy.statedWindowMs !== null);
  const stated = count(limitField);
  // Docker Hub: `76;w=21600`
  const remaining = count(left) ?? count(itemsOf(left)[0]?.names[0]);
  const usedUp = count(used);
  const both = usedUp !== null && remaining !== null ? usedUp + remaining : null;
  const limit = stated ?? quotaOf(items[0]) ?? both;
  const own =
    policies.find((policy) => policy.limit === limit) ?? (stated === null ? policies[0] : undefined);
  const others = policies.filter(
    (policy) => own !== undefined && policy.statedWindowMs !== own.statedWindowMs,
  );
  // Discord states the remaining time, to the millisecond, beside the instant of the reset.
  const { resetInMs: afterMs } = reset(resetAfter, at, 'seconds');
  const ends = afterMs === null ? reset(resetField, at) : { resetInMs: Math.ceil(afterMs), resetGrainMs: 1 };
  const first = { limit, remaining, ...ends, statedWindowMs: own?.statedWindowMs ?? null };
  return [first, ...others].map(requestsReading);
}

/** Windows by which some gateways name their limits: `x-ratelimit-limit-second` (Kong), `-minute`, `-hour`, `-day`. */
const namedWindows = Object.entries({ second: secondMs, minute: minuteMs, hour: hourMs, day: dayMs });

/** What the fields of any provider say: the structured ones, or else those before them, beside which a policy may stand. */
export function unownedReadings(fields: Fields, at: ResponseTime): readonly Reading[] {
  if (!mayState(fields)) return [];
  const structured = structuredReadings(fields);
  const plain = plainReadings(fields, at);
  if (structured.length > 0 && (plain.length === 0 || fields.has('ratelimit'))) return structured;
  const named = namedWindows.flatMap(([window, statedWindowMs]) => {
    const limit = count(fields.get(`x-ratelimit-limit-${window}`));
    const remaining = count(fields.get(`x-ratelimit-remaining-${window}`));
    return limit === null ? [] : requestsReading({ limit, remaining, statedWindowMs });
  });
  return [...plain, ...named];
}

// Fields of the providers of language models. `CONTRIBUTING.md` (recipe "A provider's dialect") names all that a new one needs.

/** `windowMs`: as it is documented or as the names state it; absent = neither. `resetMeans`: absent = `all_free`. */
type Row = readonly [
  dimensions: string,
  meter: Reading['meter'],
  windowMs?: number,
  resetMeans?: Reading['resetMeans'],
];

const limitParts = wordsOf('limit remaining reset renewalperiod');

/** The limits of rows of dimensions, with the names of the fields that state them: one for each of `limitParts`. */
const form = (nameOf: (dimension: string, part: string) => string, ...rows: readonly Row[]) =>
  rows.flatMap(([dimensions, meter, windowMs = null, resetMeans = 'all_free' as const]) =>
    wordsOf(dimensions).map((dimension) => {
      const names = limitParts.map((part) => nameOf(dimension, part));
      return { meter, windowMs, resetMeans, names };
    }),
  );

type Limit = ReturnType<typeof form>[number];

/** Where several forms know a field of a response, the first in which it names a limit reads it. */
const forms: readonly (readonly Limit[])[] = [
  form(
    (dimension, part) => `x-ratelimit-${part}-${dimension}`,
    // OpenAI, whose form many follow. A reset states when the bucket is full. `tokens_usage_based` repeats `tokens` with another reset.
    ['requests', 'requests'],
    ['tokens project-tokens', 'tokens'],
    ['input-images images', 'images'],
    // The second names are those of Fireworks' serverless models.
    ['input-tokens tokens-prompt', 'input_tokens', minuteMs],
    ['output-tokens tokens-generated', 'output_tokens', minuteMs],
    // Groq. Seconds of audio have no meter: what a recording lasts is not known before it is sent.
    ['audio-seconds', null],
    // Cerebras, and Mistral's `req-minute`: a reset is the window's end.
    ['requests-minute', 'requests', minuteMs, 'window'],
    ['tokens-minute', 'tokens', minuteMs, 'window'],
    ['req-minute', 'requests', minuteMs, 'window'],
    ['requests-day', 'requests', dayMs, 'window'],
    ['tokens-day', 'tokens', dayMs, 'window'],
  ),
  form(
    (dimension, part) => `anthropic-ratelimit-${dimension}-${part}`,
    ['requests', 'requests', minuteMs],
    ['tokens', 'tokens', minuteMs],
    ['input-tokens', 'input_tokens', minuteMs],
    ['output-tokens', 'output_tokens', minuteMs],
  ),
  // Mistral: tokens of the running minute.
  form(
    (end, part) => (part === 'reset' ? 'ratelimitbysize-reset' : `x-ratelimitbysize-${part}-${end}`),
    ['minute', 'tokens', minuteMs, 'window'],
  ),
  form((prefix, part) => `${prefix}-${part}`, ['ratelimitbysize', 'tokens', minuteMs, 'window']),
];

/** Every limit that a response's fields name, in the first form in which they name one. */
export function modelReadings(fields: Fields, at: ResponseTime): readonly Reading[] {
  if (!mayState(fields)) return [];
  for (const form of forms) {
    const readings = form.flatMap((named) => readingOf(named, fields, at));
    if (readings.length > 0) return readings;
  }
  return [];
}

/** `renewalperiod`, where there is one, is the length of the window in seconds. */
function readingOf(
  { meter, windowMs, resetMeans, names }: Limit,
  fields: Fields,
  at: ResponseTime,
): Reading | readonly [] {
  const [name = '', remaining = '', ends = '', renewal = ''] = names;
  const limit = count(fields.get(name));
  const isAnthropic = name.startsWith('anthropic-');
  // Absent, or Azure's −1: nothing is stated. Anthropic may state the reset alone.
  if (limit === null && !(isAnthropic && fields.has(ends))) return [];
  // The plain token fields show the tightest limit in force, which is a limit of its own (a workspace's) only where it is no other's.
  const limitOf = (kind: string) => count(fields.get(`anthropic-ratelimit-${kind}-tokens-limit`)) ?? 0;
  const [input, output] = [limitOf('input'), limitOf('output')];
  const isOther = [input, output, input + output].includes(limit ?? -1);
  const isRepeated = isAnthropic && meter === 'tokens' && isOther;
  return {
    meter: isRepeated ? null : meter,
    limit,
    remaining: count(fields.get(remaining)),
    ...reset(fields.get(ends), at),
    resetMeans,
    statedWindowMs: inMs(count(fields.get(renewal))) ?? windowMs,
  };
}

/**
 * The renewal period of a response that is Azure's trap, milliseconds; `null`: it is none. In the trap tokens are exhausted with a
 * reset of 0, `retry-after: 1` and `retry-after-ms: 0`, while the real wait is up to the renewal period.
 */
export function renewalTrapMs(readings: readonly Reading[]): number | null {
  const trapped = readings.filter(
    ({ remaining, resetInMs, resetMeans }) => remaining === 0 && resetInMs === 0 && resetMeans === 'all_free',
  );
  return Math.max(0, ...trapped.map(({ statedWindowMs }) => statedWindowMs ?? 0)) || null;
}

// What a reading says about a meter

/** Used units, as an interval that contains the truth. */
type Level = NonNullable<MeterReport['level']>;

const knownWindowsMs: readonly number[] = [secondMs, 10_000, minuteMs, hourMs, dayMs];
/** By this part of a window, and by the rounding of the reset, more of it may be stated as left than it has: clocks differ. */
const clockShare = 1 / 30;

/**
 * Window in which the limit drains, or `null` = not stated.
 * A bucket whose units are all free after `reset` drains `used` in that time, so window = reset × limit / used. `used` lies within
 * one unit below `limit − remaining` and `reset` within its rounding above the value, which gives an interval; the one
 * known window inside is the response. Recorded: 200/199 and `7m12s` is a day, 30000/554 and `58.891s` a minute.
 * A reset within a minute may as well be the end of a minute's window, so of longer windows only a day that fits exactly is believed.
 */
export function windowOf(reading: Reading): number | null {
  const { limit, remaining, resetInMs, resetMeans, resetGrainMs, statedWindowMs } = reading;
  if (statedWindowMs !== null) return statedWindowMs;
  if (resetMeans !== 'all_free' || limit === null || remaining === null || resetInMs === null) return null;
  const used = limit - remaining;
  if (used < 1 || resetInMs < 1) return null;
  const { lowest, highest } = usedOf(reading, limit, remaining);
  const shortest = (resetInMs * limit) / highest;
  // With less used than the rounding there is no upper bound; a success has just used one unit, so twice is ample then.
  const atMostMs = highest > used ? Infinity : shortest * 2;
  const latestMs = resetInMs + resetGrainMs;
  const longest = lowest > 0 ? (latestMs * limit) / lowest : atMostMs;
  const fitting = knownWindowsMs.filter((windowMs) => windowMs > shortest * 0.999_99 && windowMs <= longest);
  const [only = null] = fitting.length === 1 ? fitting : [];
  if (only === null || only <= minuteMs || resetInMs > minuteMs) return only;
  return only === dayMs && only <= (latestMs * limit) / used ? only : null;
}

/** A window of this length may be the one of which the response states what is left: none is shorter than that. */
export const mayHaveLeft = ({ resetMeans, resetInMs, resetGrainMs }: Reading, windowMs: number): boolean =>
  resetMeans !== 'window' || resetInMs === null || resetInMs <= windowMs * (1 + clockShare) + resetGrainMs;

/**
 * The window of a response that states none and shows that it is a long one: more than an hour left means a day. Shorter windows
 * are learned from the times that successive responses state (`meter.policy.ts`).
 */
function longWindowOf(reading: Reading): number | null {
  const { resetMeans, resetInMs } = reading;
  if (resetMeans !== 'window' || resetInMs === null || resetInMs <= hourMs) return null;
  return [hourMs, dayMs].find((windowMs) => mayHaveLeft(reading, windowMs)) ?? null;
}

/** What providers may round tokens to: those that are left are seldom a multiple of one by chance. Largest first. */
const roundings = [10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50];
/** A statement is taken to be rounded to this share of the limit at most. */
const maxRounding = 0.05;

/** Used units by what is left. That is a floor, so that the truth is up to one unit lower; rounded, up to half of the rounding away. */
function usedOf({ meter }: Reading, limit: number, remaining: number): Level {
  const used = limit - remaining;
  const rounding = roundings.find((each) => each <= limit * maxRounding && remaining % each === 0);
  return rounding === undefined || remaining <= 0 || meter?.endsWith('tokens') !== true
    ? { lowest: used - 1, highest: used }
    : { lowest: used - rounding / 2, highest: used + rounding / 2 };
}

/**
 * Level in used units, or `null`. From the reset where it fits (the fraction is kept), within what `remaining`
 * allows; where both contradict each other (a reset of 0 beside remaining 0, seen on Azure) `remaining` is believed.
 */
function levelOf(reading: Reading, limit: number, windowMs: number | null): Level | null {
  const { remaining, resetInMs, resetMeans, resetGrainMs } = reading;
  const used = remaining === null ? null : usedOf(reading, limit, Math.min(remaining, limit));
  const lowest = Math.max(0, used?.lowest ?? 0);
  const highest = used === null ? Infinity : Math.min(limit, used.highest);
  if (resetMeans === 'all_free' && resetInMs !== null && windowMs !== null) {
    const least = Math.max(lowest, ((resetInMs - resetGrainMs) * limit) / windowMs);
    const most = Math.min(highest, ((resetInMs + resetGrainMs) * limit) / windowMs);
    if (least <= most) return { lowest: least, highest: most };
  }
  return used && { lowest, highest };
}

/** Reports of all readings that name a usable limit; of two for one meter the tighter limit. */
export function reportsOf(readings: readonly Reading[]): readonly MeterReport[] {
  const reports: MeterReport[] = [];
  // The windows shorter than a day that the response states for requests, shortest first.
  const stated = readings
    .filter(({ meter, limit }) => meter === 'requests' && (limit ?? 0) > 0)
    .flatMap((reading) => windowOf(reading) ?? []);
  const windows = [...new Set(stated.filter((windowMs) => windowMs < dayMs))].toSorted((a, b) => a - b);
  for (const reading of readings) {
    const { meter, limit, resetMeans, resetInMs } = reading;
    if (meter === null || limit === null || limit <= 0) continue;
    const windowMs = windowOf(reading) ?? longWindowOf(reading);
    const isEnd = windowMs === null && resetMeans === 'window' && resetInMs !== null;
    addTighter(reports, {
      meter: meterOf(meter, windowMs, windows),
      limit,
      windowMs,
      ...(isEnd ? { resetMs: resetInMs } : {}),
      level: levelOf(reading, limit, windowMs),
    });
  }
  return reports;
}

/** A window of this length or more counts beside one of about a minute as the hourly one. */
const hourlyMs = 1_800_000;

/** A day's window makes a meter the daily one; of several windows of requests in one response each has a meter of its own. */
function meterOf(
  meter: NonNullable<Reading['meter']>,
  windowMs: number | null,
  windows: readonly number[],
): MeterName {
  if (meter !== 'requests' && meter !== 'tokens') return meter;
  if (windowMs !== null && windowMs >= dayMs) return `${meter}_day`;
  if (meter === 'tokens' || windowMs === null || windows.length < 2) return meter;
  const longest = windows.at(-1) ?? 0;
  if (windowMs === longest && windowMs >= hourlyMs) return 'requests_hour';
  const hasMiddle = windows.length > 2 || longest < hourlyMs;
  return windowMs === windows[0] && hasMiddle ? 'requests_burst' : 'requests';
}

/** Adds a report; where its meter has one already, the report with the lower limit stays. */
export function addTighter(reports: MeterReport[], report: MeterReport): void {
  const at = reports.findIndex((known) => known.meter === report.meter);
  const known = reports[at];
  if (known === undefined) reports.push(report);
  else if (report.limit < known.limit) reports[at] = report;
}

/** For how long a refusal lasts: milliseconds until the window of an exhausted limit ends, the longest of them; `null` when none says so. */
export function exhaustedForMs(readings: readonly Reading[]): number | null {
  // Without a word of what is left, a refusal shows that nothing is, and its window ends at the reset. A meter may have room before
  // it is empty, but where a refusal states no other time, this one is the upstream's own.
  const spent = readings.filter(({ remaining, resetMeans }) =>
    remaining === null ? resetMeans === 'window' : remaining < 1,
  );
  return Math.max(0, ...spent.map(({ resetInMs }) => Math.ceil(resetInMs ?? 0))) || null;
}
