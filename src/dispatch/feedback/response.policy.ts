/**
 * What a feedback policy is given: the plain facts of one response, with what every dialect reads of them; how much of what it finds
 * is believed; and what a call has spent in all. No stream, no socket, no configuration.
 */
import type { Costs, Feedback, MeterReport } from '../../call.ts';
import {
  completedMs,
  maxRetryAfterMs,
  parsedWaitMs,
  retryAfterMs,
  sentenceWaitMs,
  type ResponseTime,
} from '../stated-time.policy.ts';
import { parseJson } from './json.policy.ts';

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
export class ResponseReader {
  readonly status: number;
  readonly fields: ReadonlyMap<string, string>;
  readonly body: string | null;
  readonly callClass: string;
  readonly at: ResponseTime;
  #parsed: { readonly value: unknown } | null = null;

  constructor({ status, fields, body, callClass, nowMs }: ResponseFacts) {
    this.status = status;
    this.fields = fields;
    this.body = body;
    this.callClass = callClass;
    this.at = { date: fields.get('date'), now: nowMs };
  }

  /** The body as JSON; `undefined`: it is none, or nobody has read it. */
  get json(): unknown {
    this.#parsed ??= { value: this.body === null ? undefined : parseJson(this.body) };
    return this.#parsed.value;
  }

  /** The wait that `Retry-After` or a field like it states, milliseconds; `null`: none does. The body may complete it. */
  get statedMs(): number | null {
    const waitMs = retryAfterMs(this.fields, this.at.now);
    return waitMs === null ? null : completedMs(waitMs, this.bodyMs);
  }

  /** The wait that the body states, 1 ms to a day; `null`: it names none, or nobody has read it. */
  get bodyMs(): number | null {
    if (this.body === null) return null;
    return this.json === undefined ? sentenceWaitMs(this.body, this.at) : parsedWaitMs(this.json, this.at);
  }
}

// Belief. A bucket is shared, and while it is held shut no further response comes that could set it right: one absurd number,
// wherever it stood, must not close it for years. So nothing that a single response says holds calls back for more than a
// day, and whatever it says about a level is undone by the next response within the window that it named itself.

/** Quotas are counted in whole units, and sums of more than this many are not exact any more. */
const maxLimit = 1e15;
/** The longest window of any known limiter. A bucket whose stated window is longer drains within a day all the same. Milliseconds. */
const maxWindowMs = 86_400_000;

/** The feedback with its reports and waits within the bounds of belief: finite, and without reports that cannot be a quota. */
export function believable(feedback: Feedback): Feedback {
  const { throttle, requestedCost, actualCost, requestedTokens } = feedback;
  if (feedback.meters.length === 0 && throttle === null && requestedTokens === undefined) return feedback;
  const meters = feedback.meters.filter(({ limit }) => limit >= 1 && limit <= maxLimit).map(bounded);
  const points = meters.find(({ meter }) => meter === 'cost')?.limit ?? maxLimit;
  const waitMs = throttle?.waitMs ?? 0;
  return {
    ...feedback,
    meters,
    throttle:
      throttle !== null && waitMs > maxRetryAfterMs ? { ...throttle, waitMs: maxRetryAfterMs } : throttle,
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
