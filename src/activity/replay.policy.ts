/**
 * Replays arrivals per second against a ceiling and a bucket, and says how long calls would have waited. Pure.
 *
 * Model: a fluid queue in steps of one second. Own calls pass the ceiling (at most `requestsPerMinute` in any 60
 * consecutive seconds), then join the other workspaces' calls in front of the shared bucket (a leaky bucket of
 * `capacity` that drains `perSecond`), first come, first served. A call whose wait would pass `maxWaitMs` is refused and
 * takes no room, as Sluice does. Not modelled: durations of responses, priorities, other workspaces' ceilings.
 */

export interface ReplayLimits {
  /** Workspace ceiling, or `null` = none. */
  readonly requestsPerMinute: number | null;
  /** Bucket shared with others, or `null` = none known. */
  readonly bucket: { readonly capacity: number; readonly perSecond: number } | null;
}

export interface Replay {
  /** Longest wait of a call that was sent, milliseconds, to the second. */
  readonly longestWaitMs: number;
  /** Share of the calls that would be refused because of their wait, 0 to 1. */
  readonly refusedRatio: number;
}

/** Below this an amount of fluid is a rounding error. */
const tiny = 1e-9;

/** Waits when every second brings `factor` times its own calls; `others` come as they came. */
export function replay(
  own: readonly number[],
  others: readonly number[],
  limits: ReplayLimits,
  factor: number,
  maxWaitMs: number,
): Replay {
  const ceiling = limits.requestsPerMinute ?? Infinity;
  const { capacity, perSecond } = limits.bucket ?? { capacity: Infinity, perSecond: Infinity };
  const maxWait = maxWaitMs / 1_000;
  const first = own.findIndex((n) => n > 0);
  if (first < 0) return { longestWaitMs: 0, refusedRatio: 0 };
  // After the last arrival the lines drain, for as long as any call would wait.
  const end = own.length + Math.ceil(maxWait) + 2;
  /** By second of arrival: own calls before the ceiling, and between ceiling and bucket. */
  const before = new Float64Array(own);
  const between = new Float64Array(own.length);
  /** By second of joining the line of the bucket: own calls, others' calls, and all own ones ever. */
  const ownLine = new Float64Array(end);
  const othersLine = new Float64Array(end);
  const passed = new Float64Array(end);
  othersLine.set(others.slice(0, own.length));
  let total = 0;
  for (let i = first; i < before.length; i++) total += before[i] = (before[i] ?? 0) * factor;
  let [level, inMinute, longest, sent] = [0, 0, 0, 0];
  // A minute of the others' calls before the first own one fills the bucket as it was.
  const start = Math.max(0, first - 60);
  let [arrival, head, oldest] = [start, start, start];

  for (let second = start; second < end; second++) {
    // Negative indexes would be slow lookups by name.
    if (second >= 60) inMinute -= passed[second - 60] ?? 0;
    level = Math.max(0, level - perSecond);

    while (arrival <= second && arrival < own.length) {
      const waiting = before[arrival] ?? 0;
      if (waiting <= tiny || second - arrival > maxWait) {
        arrival++;
        continue;
      }
      const part = Math.min(waiting, ceiling - inMinute);
      if (part <= tiny) break;
      inMinute += part;
      before[arrival] = waiting - part;
      between[arrival] = (between[arrival] ?? 0) + part;
      ownLine[second] = (ownLine[second] ?? 0) + part;
      passed[second] = (passed[second] ?? 0) + part;
    }

    while (head <= second) {
      const room = capacity - level;
      const mine = ownLine[head] ?? 0;
      const theirs = othersLine[head] ?? 0;
      if (mine > tiny && oldest < own.length) {
        const aged = between[oldest] ?? 0;
        if (aged <= tiny) {
          oldest++;
          continue;
        }
        const late = second - oldest > maxWait;
        if (!late && room <= tiny) break;
        const part = Math.min(mine, aged, late ? Infinity : room);
        ownLine[head] = mine - part;
        between[oldest] = aged - part;
        if (late) continue;
        level += part;
        sent += part;
        longest = Math.max(longest, second - oldest);
      } else if (theirs > tiny) {
        if (room <= tiny) break;
        const part = Math.min(theirs, room);
        level += part;
        othersLine[head] = theirs - part;
      } else head++;
    }
  }
  const refusedRatio = Math.max(0, 1 - sent / total);
  return { longestWaitMs: longest * 1_000, refusedRatio: refusedRatio < 1e-6 ? 0 : refusedRatio };
}
