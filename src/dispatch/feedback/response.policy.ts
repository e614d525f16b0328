/**
 * What a feedback policy is given: the plain facts of one response, with what every dialect reads of them. No stream, no socket, no
 * configuration.
 */
import type { Feedback } from '../../call.ts';
import { retryAfterMs } from '../retry-after.policy.ts';
import type { ResponseTime } from '../stated-time.policy.ts';
import { parsedWaitMs, sentenceWaitMs } from './body-wait.policy.ts';
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

  /** The wait that `Retry-After` or a field like it states, milliseconds; `null`: none does. */
  get statedMs(): number | null {
    return retryAfterMs(this.fields, this.at.now);
  }

  /** The wait that the body states, 1 ms to a day; `null`: it names none, or nobody has read it. */
  get bodyMs(): number | null {
    if (this.body === null) return null;
    return this.json === undefined ? sentenceWaitMs(this.body, this.at) : parsedWaitMs(this.json, this.at);
  }
}
