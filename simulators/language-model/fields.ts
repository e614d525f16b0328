/**
 * The limit fields of each dialect, from bucket state at one instant.
 *
 * Owns: names and formats. Does not own: levels. Invariant: the numbers are those of the admission, not of the end.
 */
import { goDuration, wholeMs } from '../go-duration.ts';
import type { Bucket } from '../bucket.ts';
import type { Cost } from './cost.ts';
import type { Meter } from './meters.ts';
import type { Dimension, LanguageModelSettings } from './options.ts';

export interface Instant {
  /** Monotonic ms. */
  readonly t: number;
  /** Wall-clock ms, skew included: for absolute resets. */
  readonly at: number;
}

export function limitFields(
  meters: readonly Meter[],
  cost: Cost,
  settings: LanguageModelSettings,
  now: Instant,
): Record<string, string> {
  const find = (...wanted: Dimension[]): Bucket | undefined => pick(meters, 'org', wanted);
  switch (settings.dialect) {
    case 'openai': {
      const other = settings.headerRequestDim === 'rpm' ? 'rpd' : 'rpm';
      const tokens = find('tpm', 'tpd');
      return {
        ...three('requests', find(settings.headerRequestDim, other), now.t, duration),
        ...three('tokens', tokens, now.t, duration),
        ...three('tokens_usage_based', settings.usageBasedTwin ? tokens : undefined, now.t, duration),
        ...three('project-tokens', pick(meters, 'project', ['tpm', 'tpd']), now.t, duration),
        ...three('input-images', cost.inputImages > 0 ? find('inputImages') : undefined, now.t, duration),
        ...three('images', cost.images > 0 ? find('ipm') : undefined, now.t, duration),
      };
    }
    case 'groq':
      return {
        ...three('requests', find('rpd'), now.t, precise),
        ...three('tokens', find('tpm'), now.t, precise),
      };
    case 'azure':
      return {
        ...three('requests', find('rpm'), now.t, seconds),
        ...three('tokens', find('tpm'), now.t, seconds),
        ...renewal('requests', find('rpm')),
        ...renewal('tokens', find('tpm')),
      };
    case 'anthropic':
      return {
        ...anthropic('requests', find('rpm'), now),
        ...anthropic('tokens', find('itpm', 'otpm'), now),
        ...anthropic('input-tokens', find('itpm'), now),
        ...anthropic('output-tokens', find('otpm'), now),
      };
  }
}

/** Fields that say when to come again. The milliseconds are cut, as recorded; the seconds are never 0. */
export function retryFields(
  waitMs: number,
  meter: Meter,
  settings: LanguageModelSettings,
): Record<string, string> {
  const fields: Record<string, string> = {
    'retry-after': String(Math.max(1, Math.ceil((waitMs - 1e-3) / 1000))),
  };
  if (settings.dialect === 'openai' || settings.dialect === 'azure') {
    fields['retry-after-ms'] = String(wholeMs(waitMs));
  }
  if (settings.dialect === 'azure') {
    fields['x-ratelimit-type'] = meter.dimension === 'rpm' ? 'Requests' : 'Tokens';
  }
  if (settings.dialect === 'anthropic') fields['x-should-retry'] = 'true';
  return fields;
}

const duration = (ms: number): string => goDuration(ms);
const precise = (ms: number): string => goDuration(ms, true);
const seconds = (ms: number): string => String(Math.ceil((ms - 1e-3) / 1000));

function pick(
  meters: readonly Meter[],
  owner: Meter['owner'],
  wanted: readonly Dimension[],
): Bucket | undefined {
  for (const dimension of wanted) {
    const found = meters.find((meter) => meter.owner === owner && meter.dimension === dimension);
    if (found !== undefined) return found.bucket;
  }
  return undefined;
}

function three(
  name: string,
  bucket: Bucket | undefined,
  t: number,
  format: (ms: number) => string,
): Record<string, string> {
  if (bucket === undefined) return {};
  return {
    [`x-ratelimit-limit-${name}`]: String(bucket.limit),
    [`x-ratelimit-remaining-${name}`]: String(bucket.remaining(t)),
    [`x-ratelimit-reset-${name}`]: format(bucket.fullInMs(t)),
  };
}

function renewal(name: string, bucket: Bucket | undefined): Record<string, string> {
  if (bucket === undefined) return {};
  return { [`x-ratelimit-renewalperiod-${name}`]: String(bucket.periodMs / 1000) };
}

/** Token counts are rounded to thousands; the reset is the second in which the bucket is full. */
function anthropic(name: string, bucket: Bucket | undefined, now: Instant): Record<string, string> {
  if (bucket === undefined) return {};
  const left = bucket.remaining(now.t);
  const shown = name === 'requests' ? left : Math.round(left / 1000) * 1000;
  const reset = Math.ceil((now.at + bucket.fullInMs(now.t)) / 1000) * 1000;
  const start = `anthropic-ratelimit-${name}`;
  return {
    [`${start}-limit`]: String(bucket.limit),
    [`${start}-remaining`]: String(Math.min(shown, bucket.limit)),
    [`${start}-reset`]: new Date(reset).toISOString().replace('.000Z', 'Z'),
  };
}
