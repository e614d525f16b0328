/**
 * Rate-limit fields that no provider owns: `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers),
 * the older `RateLimit-Limit/-Remaining/-Reset`, and `X-RateLimit-Limit/-Remaining/-Reset`, also written `X-Rate-Limit-…`.
 *
 * Owns: a tolerant reader; real senders break the grammar (`"fixed window";"resolvers";q=3000`). Does not own: writing
 * these fields (a strict serializer elsewhere). Invariant: malformed members are ignored, never read as 0.
 */
import type { ResponseTime } from '../stated-time.policy.ts';
import { count, reset, type Reading } from './reading.policy.ts';

/** Most responses state nothing: every call's response is read, so that is found out without making lists. */
const none: readonly Reading[] = [];

/** One item of either field, or both joined by name. Parameters as written; absent = not sent. */
export interface Quota {
  readonly name: string;
  /** Remaining quota units. */
  readonly r?: number;
  /** Seconds until more quota. */
  readonly t?: number;
  /** Quota of the policy. */
  readonly q?: number;
  /** Window, seconds. */
  readonly w?: number;
  /** Quota unit; `requests` when absent. */
  readonly qu?: string;
}

interface Item {
  readonly names: readonly string[];
  readonly parameters: Readonly<Record<string, string>>;
}

const maxField = 2048;
/** A quoted string, or a run of anything that is neither quote nor separator. */
const piece = /"(?:[^"\\]|\\.)*"|[^",;]+|[,;]/g;

function itemsOf(value: string | undefined): readonly Item[] {
  if (value === undefined || value.length > maxField) return [];
  const pieces = value.match(piece) ?? [];
  if (pieces.join('').length < value.length) return []; // an unclosed quote: no telling where an item ends
  const items: Item[] = [];
  let names: string[] = [];
  let parameters: Record<string, string> = {};
  let key: string | null = null;
  const finish = (): void => {
    if (names.length > 0 || Object.keys(parameters).length > 0) items.push({ names, parameters });
    names = [];
    parameters = {};
    key = null;
  };
  for (const text of pieces) {
    if (text === ',') finish();
    else if (text === ';') key = null;
    else if (text.startsWith('"')) {
      if (key === null) names.push(text.slice(1, -1));
      else parameters[key] = text.slice(1, -1);
      key = null;
    } else {
      const equals = text.indexOf('=');
      if (equals < 0) {
        if (text.trim() !== '') names.push(text.trim());
      } else {
        key = text.slice(0, equals).trim().toLowerCase();
        parameters[key] = text.slice(equals + 1).trim();
      }
    }
  }
  finish();
  return items;
}

function numeric(item: Item, name: 'r' | 't' | 'q' | 'w'): Partial<Record<'r' | 't' | 'q' | 'w', number>> {
  const value = count(item.parameters[name]);
  return value === null ? {} : { [name]: value };
}

const limitPart = (item: Item): Partial<Quota> => ({ ...numeric(item, 'r'), ...numeric(item, 't') });
function policyPart(item: Item): Partial<Quota> {
  const unit = item.parameters['qu'];
  return { ...numeric(item, 'q'), ...numeric(item, 'w'), ...(unit === undefined ? {} : { qu: unit }) };
}

/** Items of `RateLimit`, each joined with the policy of its name; then the policies that no item names. */
export function quotasOf(fields: ReadonlyMap<string, string>): readonly Quota[] {
  const policies = itemsOf(fields.get('ratelimit-policy'));
  const items = itemsOf(fields.get('ratelimit'));
  const joined = new Set<Item>();
  const quotas: Quota[] = items.map((item) => {
    const policy = policies.find((candidate) => candidate.names.some((name) => item.names.includes(name)));
    if (policy !== undefined) joined.add(policy);
    return {
      name: item.names[0] ?? '',
      ...limitPart(item),
      ...(policy === undefined ? {} : policyPart(policy)),
    };
  });
  for (const policy of policies) {
    if (!joined.has(policy)) quotas.push({ name: policy.names[0] ?? '', ...policyPart(policy) });
  }
  return quotas;
}

/** Readings of the structured fields; quotas in another unit than requests are left out. */
export function quotaReadings(fields: ReadonlyMap<string, string>): readonly Reading[] {
  if (!fields.has('ratelimit') && !fields.has('ratelimit-policy')) return none;
  return quotasOf(fields)
    .filter(({ qu }) => qu === undefined || qu === 'requests')
    .map(({ r, t, q, w }) => ({
      dimension: 'requests',
      meter: 'requests',
      limit: q ?? null,
      remaining: r ?? null,
      resetInMs: t === undefined ? null : t * 1000,
      resetMeans: 'window',
      resetGrainMs: 1000,
      remainingGrain: 1,
      statedWindowMs: w === undefined || w <= 0 ? null : w * 1000,
    }));
}

/** Windows by which some gateways name their limits: `x-ratelimit-limit-second` (Kong), `-minute`, `-hour`, `-day`. */
const namedWindows = Object.entries({
  second: 1_000,
  minute: 60_000,
  hour: 3_600_000,
  day: 86_400_000,
}).map(([window, windowMs]) => ({
  limitField: `x-ratelimit-limit-${window}`,
  remainingField: `x-ratelimit-remaining-${window}`,
  windowMs,
}));

/** Readings of `x-ratelimit-limit-<window>` and `x-ratelimit-remaining-<window>`. */
export function namedWindowReadings(fields: ReadonlyMap<string, string>): readonly Reading[] {
  if (!namedWindows.some(({ limitField }) => fields.has(limitField))) return none;
  return namedWindows.flatMap(({ limitField, remainingField, windowMs }) => {
    const limit = count(fields.get(limitField));
    if (limit === null) return [];
    return [
      {
        dimension: 'requests',
        meter: 'requests',
        limit,
        remaining: count(fields.get(remainingField)),
        resetInMs: null,
        resetMeans: 'window',
        resetGrainMs: 0,
        remainingGrain: 1,
        statedWindowMs: windowMs,
      },
    ];
  });
}

const prefixes = ['x-ratelimit-', 'ratelimit-', 'x-rate-limit-', 'rate-limit-'] as const;

/** How the triple of a response begins: a part of it may be missing, as Reddit leaves out the limit. */
function prefixIn(fields: ReadonlyMap<string, string>): string | undefined {
  const parts = ['limit', 'reset', 'reset-after'];
  const part = parts.find((one) => prefixes.some((prefix) => fields.has(prefix + one)));
  return part === undefined ? undefined : prefixes.find((prefix) => fields.has(prefix + part));
}

/**
 * Readings of the un-dimensioned triple, requests by convention; none when absent. Up to draft 06 the limit is followed by its policies, one or several: `10, 10;w=1, 50;w=60`. What remains is stated for the one
 * that is the limit.
 */
export function plainReadings(fields: ReadonlyMap<string, string>, at: ResponseTime): readonly Reading[] {
  const prefix = prefixIn(fields);
  if (prefix === undefined) return none;
  const stated = fields.get(`${prefix}limit`);
  const items = itemsOf(stated);
  const limit = count(stated) ?? count(items[0]?.names[0]);
  const until = resetOf(fields, prefix, at);
  const common = {
    dimension: 'requests',
    meter: 'requests',
    resetMeans: 'window',
    remainingGrain: 1,
  } as const;
  const policies = items.flatMap((item) => {
    const seconds = count(item.parameters['w']);
    const quota = count(item.names[0]);
    return seconds === null || seconds <= 0 || quota === null ? [] : [{ quota, windowMs: seconds * 1000 }];
  });
  const own = policies.find(({ quota }) => quota === limit);
  const remaining = count(fields.get(`${prefix}remaining`));
  const first: Reading = {
    ...common,
    limit,
    remaining,
    ...until,
    statedWindowMs: own?.windowMs ?? policies[0]?.windowMs ?? null,
  };
  const others = policies.filter((policy) => policy !== (own ?? policies[0]));
  return [
    first,
    ...others.map(({ quota, windowMs }) => ({
      ...common,
      limit: quota,
      remaining: null,
      resetInMs: null,
      resetGrainMs: 0,
      statedWindowMs: windowMs,
    })),
  ];
}

/** Discord states the remaining time, to the millisecond, beside the instant of the reset. A value that cannot be read counts as absent. */
function resetOf(
  fields: ReadonlyMap<string, string>,
  prefix: string,
  at: ResponseTime,
): ReturnType<typeof reset> {
  const { resetInMs } = reset(fields.get(`${prefix}reset-after`), at, 'seconds');
  return resetInMs === null
    ? reset(fields.get(`${prefix}reset`), at)
    : { resetInMs: Math.ceil(resetInMs), resetGrainMs: 1 };
}
