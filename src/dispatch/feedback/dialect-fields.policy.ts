/**
 * Numbers and times in the fields that a dialect names.
 *
 * Owns: from a described field to a number of calls or milliseconds. Does not own: which window they describe
 * (`dialect.policy.ts`). Invariant: what cannot be read is `null`; a time in the past is 0.
 */
import type { CountField, DialectFields, TimeField, WaitPlace } from '../../config/dialect.ts';
import { longestWaitMs } from '../retry-after.policy.ts';
import { timeLeftMs, type ResponseTime } from '../stated-time.policy.ts';
import { valueAt } from './json.policy.ts';
import { count, reset } from './reading.policy.ts';
import type { ResponseReader } from './response.policy.ts';

type Fields = ReadonlyMap<string, string>;

/** What one set of fields states; `null` = not stated. */
export interface FieldReading {
  readonly limit: number | null;
  readonly used: number | null;
  readonly remaining: number | null;
  /** Until the window ends, milliseconds. */
  readonly resetInMs: number | null;
  /** Rounding of the reset, milliseconds. */
  readonly resetGrainMs: number;
  readonly windowMs: number | null;
  /** Calls per second. */
  readonly rate: number | null;
}

/** `null`: the response has none of the fields. */
export function readFields(described: DialectFields, fields: Fields, at: ResponseTime): FieldReading | null {
  const { limit, used, remaining, reset, window, rate } = described;
  const reading: FieldReading = {
    limit: countIn(limit, fields),
    used: countIn(used, fields),
    remaining: countIn(remaining, fields),
    resetInMs: timeIn(reset, fields, at),
    resetGrainMs: reset?.as === 'milliseconds' || reset?.as === 'duration' ? 1 : 1_000,
    windowMs: typeof window === 'number' ? window : timeIn(window, fields, at),
    rate: countIn(rate, fields),
  };
  const reported = [reading.limit, reading.used, reading.remaining, reading.resetInMs, reading.rate];
  return reported.every((value) => value === null) ? null : reading;
}

/** The wait that a refusal states in the places which its dialect describes, the first that does; `null`: none of them. */
export function describedWaitMs(places: readonly WaitPlace[], response: ResponseReader): number | null {
  for (const place of places) {
    const as = place.kind === 'field' ? place.field.as : place.as;
    const waitMs = longestWaitMs(textAt(place, response), (value) => timeLeftMs(value, as, response.at));
    if (waitMs !== null) return waitMs;
  }
  return null;
}

function textAt(place: WaitPlace, response: ResponseReader): string | undefined {
  switch (place.kind) {
    case 'field':
      return valueOf(place.field, response.fields);
    case 'member': {
      const value = valueAt(response.json, place.pointer);
      return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined;
    }
    case 'sentence':
      return new RegExp(place.pattern, 'i').exec((response.body ?? '').slice(0, maxText))?.[1];
  }
}

/** How much of a body a described pattern is looked for in, characters. */
const maxText = 2_000;

function countIn(field: CountField | null, fields: Fields): number | null {
  return field === null ? null : count(valueOf(field, fields));
}

function timeIn(field: TimeField | null, fields: Fields, at: ResponseTime): number | null {
  return field === null ? null : reset(valueOf(field, fields), at, field.as).resetInMs;
}

/** The value of a field, or the number behind a name in that value: `total=100; remaining=99`. */
function valueOf({ name, member }: CountField, fields: Fields): string | undefined {
  const value = fields.get(name)?.slice(0, 1_024);
  if (value === undefined || member === null) return value;
  for (const part of value.split(/[;,]/)) {
    const [key = '', found] = part.split('=');
    if (key.trim().toLowerCase() === member) return found?.trim();
  }
  return undefined;
}
