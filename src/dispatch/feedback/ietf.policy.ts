/**
 * Rate-limit fields that no provider owns: `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers),
 * the older `RateLimit-Limit/-Remaining/-Reset`, and `X-RateLimit-Limit/-Remaining/-Reset`, also written `X-Rate-Limit-…`.
 *
 * Owns: a tolerant reader; real senders break the grammar (`"fixed window";"resolvers";q=3000`). Does not own: writing
 * these fields (a strict serializer elsewhere). Invariant: malformed members are ignored, never read as 0.
 */
import type { ResponseTime } from '../stated-time.policy.ts';
import { count, requestsReading, reset, type Reading } from './reading.policy.ts';

/** Most responses state nothing: every call's response is read, so that is found out without making lists. */
const none: readonly Reading[] = [];

interface Item {
  readonly names: readonly string[];
  readonly parameters: ReadonlyMap<string, string>;
}

const maxField = 2_048;
const quoted = /"(?:[^"\\]|\\.)*"/g;
const items = /(?:"(?:[^"\\]|\\.)*"|[^",])+/g;
const parts = /(?:"(?:[^"\\]|\\.)*"|[^";])+/g;
const unquoted = (text: string): string => text.trim().replace(/^"(.*)"$/s, '$1');

function itemsOf(value: string | undefined): readonly Item[] {
  if (value === undefined || value.length > maxField) return [];
  if (value.replaceAll(quoted, '').includes('"')) return []; // an unclosed quote: no telling where an item ends
  return (value.match(items) ?? [])
    .map(itemOf)
    .filter(({ names, parameters }) => names.length + parameters.size > 0);
}

function itemOf(text: string): Item {
  const names: string[] = [];
  const parameters = new Map<string, string>();
  for (const part of text.match(parts) ?? []) {
    const [, key, value = ''] = /^([^"=]*)=(.*)$/s.exec(part) ?? [];
    if (key !== undefined) parameters.set(key.trim().toLowerCase(), unquoted(value));
    else if (part.trim() !== '') names.push(unquoted(part));
  }
  return { names, parameters };
}

const numberIn = (item: Item | undefined, name: string): number | undefined =>
  count(item?.parameters.get(name)) ?? undefined;

/**
 * One item of either field, or both joined by name: `r` remaining units, `t` seconds until more of them, `q` units of the policy, `w` its
 * seconds, `qu` what is counted. What is absent was not sent, or is no number.
 */
function quotaOf(item: Item | undefined, policy: Item | undefined) {
  return {
    name: (item ?? policy)?.names[0] ?? '',
    r: numberIn(item, 'r') ?? numberIn(item, 'remaining'),
    t: numberIn(item, 't') ?? numberIn(item, 'reset'),
    q: numberIn(policy, 'q') ?? numberIn(item, 'limit'),
    w: numberIn(policy, 'w'),
    qu: policy?.parameters.get('qu'),
  };
}

/** Draft 07 writes one quota as a dictionary: `limit=10, remaining=0, reset=30`. */
const together = (items: readonly Item[]): readonly Item[] =>
  items.length > 1 && items.every(({ names }) => names.length === 0)
    ? [{ names: [], parameters: new Map(items.flatMap(({ parameters }) => [...parameters])) }]
    : items;

/** Items of `RateLimit`, each joined with the policy of its name; then the policies that no item names. */
export function quotasOf(fields: ReadonlyMap<string, string>): readonly ReturnType<typeof quotaOf>[] {
  const policies = itemsOf(fields.get('ratelimit-policy'));
  const left = new Set(policies);
  const stated = together(itemsOf(fields.get('ratelimit'))).map((item) => {
    const policy = policies.find(({ names }) => names.some((name) => item.names.includes(name)));
    if (policy !== undefined) left.delete(policy);
    return quotaOf(item, policy);
  });
  return [...stated, ...Array.from(left, (policy) => quotaOf(undefined, policy))];
}

/** Readings of the structured fields; quotas in another unit than requests are left out. */
function quotaReadings(fields: ReadonlyMap<string, string>): readonly Reading[] {
  if (!fields.has('ratelimit') && !fields.has('ratelimit-policy')) return none;
  return quotasOf(fields)
    .filter(({ qu = 'requests' }) => qu === 'requests')
    .map(({ r = null, t, q = null, w = 0 }) =>
      requestsReading({
        limit: q,
        remaining: r,
        resetInMs: t === undefined ? null : t * 1000,
        resetGrainMs: 1000,
        statedWindowMs: w > 0 ? w * 1000 : null,
      }),
    );
}

/** Windows by which some gateways name their limits: `x-ratelimit-limit-second` (Kong), `-minute`, `-hour`, `-day`. */
const namedWindows = Object.entries({ second: 1_000, minute: 60_000, hour: 3_600_000, day: 86_400_000 }).map(
  ([window, windowMs]) =>
    [`x-ratelimit-limit-${window}`, `x-ratelimit-remaining-${window}`, windowMs] as const,
);

/** Readings of `x-ratelimit-limit-<window>` and `x-ratelimit-remaining-<window>`. */
function namedWindowReadings(fields: ReadonlyMap<string, string>): readonly Reading[] {
  let readings = none;
  for (const [limitField, remainingField, statedWindowMs] of namedWindows) {
    const limit = count(fields.get(limitField));
    if (limit === null) continue;
    const remaining = count(fields.get(remainingField));
    readings = [...readings, requestsReading({ limit, remaining, statedWindowMs })];
  }
  return readings;
}

/** What the fields of any provider say: the structured ones, or else those before them. */
export function unownedReadings(fields: ReadonlyMap<string, string>, at: ResponseTime): readonly Reading[] {
  const structured = quotaReadings(fields);
  if (structured.length > 0) return structured;
  const plain = plainReadings(fields, at);
  const named = namedWindowReadings(fields);
  return named.length === 0 ? plain : [...plain, ...named];
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
function plainReadings(fields: ReadonlyMap<string, string>, at: ResponseTime): readonly Reading[] {
  const prefix = prefixIn(fields);
  if (prefix === undefined) return none;
  const stated = fields.get(`${prefix}limit`);
  const items = itemsOf(stated);
  const limit = count(stated) ?? count(items[0]?.names[0]);
  const left = fields.get(`${prefix}remaining`);
  const until = resetOf(fields, prefix, at);
  const policies = items.flatMap((item) => {
    const seconds = numberIn(item, 'w') ?? 0;
    const quota = count(item.names[0]);
    return seconds <= 0 || quota === null ? [] : [{ quota, windowMs: seconds * 1000 }];
  });
  const own = policies.find(({ quota }) => quota === limit) ?? policies[0];
  // Docker Hub: `76;w=21600`
  const remaining = count(left) ?? count(itemsOf(left)[0]?.names[0]);
  return [
    requestsReading({ limit, remaining, ...until, statedWindowMs: own?.windowMs ?? null }),
    ...policies
      .filter((policy) => policy !== own)
      .map(({ quota, windowMs }) => requestsReading({ limit: quota, statedWindowMs: windowMs })),
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
