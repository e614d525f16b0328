/**
 * The limiter's sentence: what a language-model provider writes when it refuses.
 *
 * Owns: the message grammar of OpenAI and Groq, and the older OpenAI form. Does not own: the verdict (codes and types decide,
 * `model-error.policy.ts`), and the wait (`body-wait.policy.ts`). Invariant: linear, bounded, never throws; a number that is not in the
 * text is `null`.
 */
import type { MeterName, QuotaScope } from '../../call.ts';

/** What a refusal's text states. Counts are units as written. */
export interface LimiterMessage {
  /** `RPM`, `RPD`, `TPM`, `TPD`, `ITPM`, `OTPM`, or the words before "per" when there is no abbreviation for them. */
  readonly metric: string | null;
  readonly meter: MeterName | null;
  readonly windowMs: number | null;
  readonly limit: number | null;
  readonly used: number | null;
  readonly requested: number | null;
  /** "Request too large": no wait will make it fit. */
  readonly tooLarge: boolean;
  readonly scope: QuotaScope;
}

const maxMessage = 2000;

export function readMessage(text: string): LimiterMessage {
  const message = text.slice(0, maxMessage);
  const metric = metricOf(message);
  const limit = numberAfter(/\bLimit:? (\d[\d,]*)/, message);
  const requested = numberAfter(/\bRequested ~?(\d[\d,]*)/, message);
  return {
    ...metric,
    limit,
    used: numberAfter(/\bUsed (\d[\d,]*)/, message),
    requested,
    tooLarge:
      /\brequest too large\b/i.test(message) || (limit !== null && requested !== null && requested > limit),
    scope: scopeOf(message),
  };
}

const metricWords = /\bon ([a-z-]+(?: [a-z-]+)?) per (minute|min|day)\b(?: \(([A-Z]{2,5})\))?/;

function metricOf(message: string): Pick<LimiterMessage, 'metric' | 'meter' | 'windowMs'> {
  const found = metricWords.exec(message);
  if (found === null) return { metric: null, meter: null, windowMs: null };
  const what = found[1] ?? '';
  const daily = found[2] === 'day';
  const letter = what === 'requests' ? 'R' : what === 'tokens' ? 'T' : null;
  const metric = found[3] ?? (letter === null ? what : `${letter}P${daily ? 'D' : 'M'}`);
  return { metric, meter: meterOf(what, daily), windowMs: daily ? 86_400_000 : 60_000 };
}

function meterOf(what: string, daily: boolean): MeterName | null {
  if (what === 'requests') return daily ? 'requests_day' : 'requests';
  if (what === 'input tokens' && !daily) return 'input_tokens';
  if (what === 'output tokens' && !daily) return 'output_tokens';
  if (what.endsWith('tokens')) return daily ? 'tokens_day' : 'tokens';
  return what.endsWith('images') && !daily ? 'images' : null;
}

function numberAfter(pattern: RegExp, message: string): number | null {
  const digits = pattern.exec(message)?.[1];
  return digits === undefined ? null : Number(digits.replaceAll(',', ''));
}

function scopeOf(message: string): QuotaScope {
  const organization = /\bin (?:project \S{1,100} )?organization `?([\w-]{1,100})/.exec(message)?.[1];
  const project = /\bin project `?([\w-]{1,100})/.exec(message)?.[1];
  const family = /\(for limit ([^)\s]{1,100})\)/.exec(message)?.[1];
  return {
    ...(organization === undefined ? {} : { organization }),
    ...(project === undefined ? {} : { project }),
    ...(family === undefined ? {} : { family }),
  };
}
