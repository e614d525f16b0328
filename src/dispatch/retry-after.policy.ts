/**
 * What the fields of a response say about when to try again.
 *
 * Owns: `Retry-After`, `retry-after-ms` and the fields named after them, as real servers send them; the names that state a wait. Does not
 * own: the spelling of a time (`stated-time.policy.ts`), waits in bodies (`feedback/body-wait.policy.ts`), resets of limits
 * (`feedback/ietf.policy.ts`), and the back-off when nothing usable is said. Invariant: never earlier than stated (rounded up; of several
 * values the longest), and never 0: clients that took garbage for 0 hammer their upstream at once.
 */
import { durationMs, singleValues, timeLeftMs, type ResponseTime } from './stated-time.policy.ts';

/** Longest wait believed, the longest window any known limiter has: 24 h in milliseconds. */
export const maxRetryAfterMs = 86_400_000;

const maxField = 256;

/** Names of what states a wait, in lower case without `-` and `_`: `x-retry-after`, `retryAfterMs`, `retry_in_seconds`. */
const waitName = /(?:retry|tryagain)(?:after|in|at|delay)((?:m(?:illi)?|min(?:ute)?)?s(?:ec(?:ond)?s?)?)?$/;

/**
 * Milliseconds until the time that a field or member states whose name, as `pattern` has it, is one of a wait and may end with its unit;
 * `null`: it states none.
 */
export function namedTimeMs(
  name: string,
  value: string,
  at: ResponseTime,
  pattern = waitName,
): number | null {
  const found = pattern.exec(name.toLowerCase().replaceAll(/[-_]/g, ''));
  if (found === null) return null;
  return (found[1] === undefined ? null : durationMs(value + found[1])) ?? timeLeftMs(value, 'inferred', at);
}

/**
 * Milliseconds to wait from the arrival of the response, integer in 1…24 h; `null` = nothing usable was said.
 * First usable of `retry-after-ms` (> 0), `retry-after` (seconds, fractions allowed against RFC 9110 because the commerce API sends `2.0`;
 * an epoch sent by mistake; a duration; an instant against the response's own `Date`), and the longest of the fields whose names end like
 * these. `fields` has lower-case names and repeats joined by a comma; `nowMs` is the wall clock.
 */
export function retryAfterMs(fields: ReadonlyMap<string, string>, nowMs: number): number | null {
  const at: ResponseTime = { date: fields.get('date'), now: nowMs };
  return (
    waitIn(fields, 'retry-after-ms', at) ?? waitIn(fields, 'retry-after', at) ?? neighbouringMs(fields, at)
  );
}

const waitIn = (fields: ReadonlyMap<string, string>, name: string, at: ResponseTime): number | null =>
  longestWaitMs(fields.get(name), (value) => namedTimeMs(name, value, at));

function neighbouringMs(fields: ReadonlyMap<string, string>, at: ResponseTime): number | null {
  let foundMs: number | null = null;
  for (const name of fields.keys()) {
    const waitMs = name.includes('retry') ? waitIn(fields, name, at) : null;
    if (waitMs !== null) foundMs = Math.max(foundMs ?? 0, waitMs);
  }
  return foundMs;
}

/** The longest wait that the values of a field state; one of a day and more counts only where there is no other. */
export function longestWaitMs(
  value: string | undefined,
  read: (single: string) => number | null,
): number | null {
  if (value === undefined || value.length > maxField) return null;
  const waits = singleValues(value)
    .map((single) => usableWaitMs(read(single)))
    .filter((waitMs) => waitMs !== null);
  const believed = waits.filter((waitMs) => waitMs < maxRetryAfterMs);
  return waits.length === 0 ? null : Math.max(...(believed.length > 0 ? believed : waits));
}

/** A stated time as a wait: rounded up, a day at most; `null` for one that is over. */
export function usableWaitMs(waitMs: number | null): number | null {
  if (waitMs === null || !Number.isFinite(waitMs) || waitMs <= 0) return null;
  return Math.min(Math.ceil(waitMs), maxRetryAfterMs);
}
