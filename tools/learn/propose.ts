/**
 * A `speaks` section from recorded responses: fields, windows, refusals.
 *
 * Owns: what is proposed, and what is left to the reader. Does not own: whether the proposal holds (`against.ts`).
 */
import { findFields, type FoundFields } from './fields.ts';
import type { RecordedResponse } from './har.ts';
import { findWindows, type FoundWindow } from './windows.policy.ts';

export interface Proposal {
  readonly origin: string;
  readonly responses: number;
  readonly refusals: number;
  readonly windows: readonly FoundWindow[];
  readonly fields: readonly FoundFields[];
  readonly throttledBy: readonly {
    readonly status: number;
    readonly body?: string;
    readonly field?: string;
    readonly equals?: string;
  }[];
}

const quotaWords = /rate.?limit(?:ed)?|too many requests|throttl\w*|quota exceeded|secondary rate limit/i;

/** A limiter's refusal, as far as one can see without knowing the upstream. */
export function looksRefused({
  status,
  body,
  fields,
}: Pick<RecordedResponse, 'status' | 'body' | 'fields'>): boolean {
  if (status === 429) return true;
  if (status !== 400 && status !== 403 && status !== 503) return false;
  if (quotaWords.test(body)) return true;
  return [...fields].some(([name, value]) => /(remaining|left)$/.test(name) && value.trim() === '0');
}

/** One proposal for each origin that was called, the busiest first. */
export function propose(responses: readonly RecordedResponse[]): readonly Proposal[] {
  const origins = Map.groupBy(responses, ({ origin }) => origin);
  return [...origins]
    .toSorted(([, a], [, b]) => b.length - a.length)
    .map(([origin, recorded]) => proposalOf(origin, recorded));
}

function proposalOf(origin: string, responses: readonly RecordedResponse[]): Proposal {
  const observations = responses.map((response) => ({ at: response.at, isRefused: looksRefused(response) }));
  const refused = responses.filter(looksRefused);
  const fields = findFields(responses);
  const found = findWindows(observations);
  return {
    origin,
    responses: responses.length,
    refusals: refused.length,
    windows: found.length > 0 ? found : reportedWindows(responses, fields),
    fields,
    throttledBy: conditionsOf(refused),
  };
}

/** The window where no refusal was recorded: the limit that the fields report, and the longest time until its end, rounded up. */
function reportedWindows(responses: readonly RecordedResponse[], all: readonly FoundFields[]): FoundWindow[] {
  return all.flatMap(({ limit, reset }): FoundWindow[] => {
    if (limit === undefined || reset === undefined) return [];
    const limits = responses.map(({ fields }) => Number(fields.get(limit))).filter((value) => value > 0);
    const left = responses.map(({ at, fields }) => leftSeconds(reset.as, fields.get(reset.name), at));
    const longest = Math.max(0, ...left.filter((value) => Number.isFinite(value)));
    const seconds = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 86_400].find(
      (usual) => usual >= longest - 1,
    );
    const requests = limits.at(-1);
    if (requests === undefined || longest === 0 || seconds === undefined) return [];
    return [{ requests, seconds, kind: 'rolling' }];
  });
}

function leftSeconds(as: string, value: string | undefined, at: number): number {
  const number = Number(value);
  switch (as) {
    case 'seconds':
      return number;
    case 'milliseconds':
      return number / 1000;
    case 'epoch-seconds':
      return number - at / 1000;
    case 'epoch-milliseconds':
      return (number - at) / 1000;
    case 'date':
      return (Date.parse(value ?? '') - at) / 1000;
    default:
      return NaN;
  }
}

/** The condition by which a refusal with another status than 429 is recognised. */
function conditionsOf(refused: readonly RecordedResponse[]): Proposal['throttledBy'] {
  const conditions = refused
    .filter(({ status }) => status !== 429)
    .map(({ status, body, fields }) => {
      const words = quotaWords.exec(body)?.[0]?.toLowerCase();
      if (words !== undefined) return { status, body: words };
      const [field = ''] =
        [...fields].find(([name, value]) => /(remaining|left)$/.test(name) && value.trim() === '0') ?? [];
      return { status, field, equals: '0' };
    });
  return [...new Map(conditions.map((one) => [JSON.stringify(one), one])).values()];
}

/** The proposal as lines of a configuration. */
export function proposalText({
  origin,
  responses,
  refusals,
  windows,
  fields,
  throttledBy,
}: Proposal): string {
  const parts: Readonly<Record<string, readonly unknown[]>> = {
    windows: windows.map(({ requests, seconds, kind }) =>
      kind === 'rolling' ? { requests, seconds } : { requests, seconds, kind },
    ),
    fields,
    throttledBy,
  };
  const lines = Object.entries(parts).flatMap(([name, list]) =>
    list.length === 0 ? [] : [`    ${name}:`, ...list.map((one) => `      - ${flow(one)}`)],
  );
  return [
    `# ${origin}: ${responses} responses, ${refusals} of them refused for want of quota`,
    ...(windows.length > 0 || refusals === 0
      ? []
      : [
          '# no windows explain these refusals: other calls share the quota, or it has other parts (bucketBy)',
        ]),
    ...(lines.length === 0
      ? ['# nothing to describe: the responses tell no quota']
      : ['  speaks:', ...lines]),
  ].join('\n');
}

function flow(value: unknown): string {
  if (typeof value !== 'object' || value === null) {
    return typeof value === 'string' && !/^[a-z][\w-]*$/.test(value) ? JSON.stringify(value) : String(value);
  }
  return `{ ${Object.entries(value)
    .map(([name, inner]) => `${name}: ${flow(inner)}`)
    .join(', ')} }`;
}
