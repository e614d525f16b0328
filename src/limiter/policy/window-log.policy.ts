/**
 * The log of a window that an operator describes: what was granted within the last window, in a few slots.
 *
 * A meter drains continuously, and lets up to twice its limit pass within one window; an upstream that counts a sliding or a
 * clock window and states nothing refuses a part of that. With a log no window of this length ever holds more than the limit.
 *
 * Owns: which units still count, and until when. Does not own: the limit (`meter.policy.ts`), which lane is next.
 * Invariant: no send is forgotten before its window has passed, wherever within the margin the upstream counted it. Pure.
 */

/** `rolling`: each window of this length. `fixed`: windows that begin at whole multiples of it since the epoch. */
export type CountedWindow = 'rolling' | 'fixed';

/** Sends that are forgotten together. */
export interface SendSlot {
  readonly since: number;
  /** When the last of the units was counted, at the latest. */
  readonly last: number;
  /** When the units stop counting. */
  readonly until: number;
  readonly units: number;
}

export interface WindowLog {
  readonly counts: CountedWindow;
  /** Oldest first. */
  readonly slots: readonly SendSlot[];
}

/** What of a meter concerns its log. */
export interface Logged {
  log: WindowLog | null;
  limit: number | null;
  windowMs: number;
}

/** Sends of a rolling window that are this part of it apart are forgotten together: a fortieth of the pace at most. */
const slotsPerWindow = 40;
/**
 * By so much a call may be counted later there than it was granted here, milliseconds: a sixtieth of the window, within these
 * bounds.
 */
export const minMarginMs = 25;
export const maxMarginMs = 1_000;
export const windowsOfMargin = 60;
/** A response that came faster than this part of a window says no more than when its call was sent. */
const responsesPerWindow = 20;
/** The first calls may be on their way for this part of a window: connections are new. */
const firstsPerWindow = 4;
/** What is known of a call's way is exact but for this, milliseconds. */
const wayGrainMs = 5;
/** An end of a window is stated this part of the window too late at most. */
const endsPerWindow = 30;
/** Sums and quotients of units may be wrong by so much: a level that a window began with is seldom a whole number. Units. */
const unitRounding = 1e-9;

const marginMs = (windowMs: number): number =>
  Math.min(maxMarginMs, Math.max(minMarginMs, windowMs / windowsOfMargin));

/** Units that count at `now`. */
export function loggedUnits({ slots }: WindowLog, now: number): number {
  let units = 0;
  for (const slot of slots) if (slot.until > now) units += slot.units;
  return units;
}

/** A log begins with units that were counted without one: for one window at most, and of the clock as long as that goes. */
export function beginLog(units: number, counts: CountedWindow, windowMs: number, now: number): WindowLog {
  const until = Math.min(now + windowMs, counts === 'fixed' ? endOf({ counts }, windowMs, now) : Infinity);
  return { counts, slots: units <= 0 ? [] : [{ since: now, last: now, until, units }] };
}

/** The log when its window is counted in another way or has another length from now on: what was sent counts for the new window. */
export function countedAs(
  log: WindowLog,
  beforeMs: number,
  counts: CountedWindow,
  windowMs: number,
): WindowLog {
  if (counts === log.counts && windowMs === beforeMs) return log;
  return {
    counts,
    slots: log.slots.map((slot) => ({ ...slot, until: endOf({ counts }, windowMs, slot.last) })),
  };
}

/**
 * When a send of now no longer counts: near the end of a fixed window it may be counted in the next one. Those begin at multiples of their
 * length since the epoch.
 */
function endOf({ counts }: Pick<WindowLog, 'counts'>, windowMs: number, now: number): number {
  const margin = marginMs(windowMs);
  if (counts === 'rolling') return now + windowMs + margin;
  return (Math.floor((now + margin) / windowMs) + 1) * windowMs + margin;
}

/** Counts units that are sent now. */
export function logUnits(meter: Logged, units: number, now: number): void {
  const { log, windowMs } = meter;
  if (log === null || units <= 0) return;
  const slots = log.slots.filter((slot) => slot.until > now);
  const until = endOf(log, windowMs, now);
  const last = slots.at(-1);
  const isFixed = log.counts === 'fixed';
  const joins =
    last !== undefined &&
    (isFixed ? endOf(log, windowMs, last.since) >= until : now - last.since < windowMs / slotsPerWindow);
  if (joins)
    slots.splice(-1, 1, {
      ...last,
      last: now,
      until: Math.max(last.until, until),
      units: last.units + units,
    });
  else slots.push({ since: now, last: now, until, units });
  meter.log = { ...log, slots };
}

/** The slots in place of the one that has what was sent then. */
function changeSlot(meter: Logged, sentAt: number, change: (slot: SendSlot) => readonly SendSlot[]): void {
  const { log } = meter;
  const at = log?.slots.findLastIndex(({ since }) => since <= sentAt) ?? -1;
  const slot = log?.slots[at];
  if (log !== null && slot !== undefined)
    meter.log = { ...log, slots: log.slots.toSpliced(at, 1, ...change(slot)) };
}

/** Takes units off that were granted then and never counted by the upstream. */
export const unlogUnits = (meter: Logged, units: number, grantedAt: number): void =>
  changeSlot(meter, grantedAt, (slot) => [{ ...slot, units: Math.max(0, slot.units - units) }]);

/** When a call was granted and sent, and when the head of its response arrived. `cost`: units that it took of the meter. */
export interface SendTimes {
  readonly cost: number;
  /** It is one of the first calls of the meter. */
  readonly isFirst: boolean;
  readonly grantedAt: number;
  readonly sentAt: number;
  readonly headAt: number;
}

/**
 * A call reached the upstream later than its grant: it left late (a busy process), or was longer on its way (a new connection). It
 * counts until the window of that time has passed: of a rolling window with its slot, of one of the clock alone, because its slot has
 * all calls of that window.
 */
export function logSent(meter: Logged, { cost, isFirst, grantedAt, sentAt, headAt }: SendTimes): void {
  const { log, windowMs } = meter;
  if (log === null) return;
  const wayMs = windowMs / (isFirst ? firstsPerWindow : responsesPerWindow);
  const countedAt = sentAt + Math.min(Math.max(0, headAt - sentAt), wayMs);
  const isRolling = log.counts === 'rolling';
  const until = isRolling ? countedAt + windowMs + wayGrainMs : endOf(log, windowMs, countedAt);
  changeSlot(meter, grantedAt, (slot) => {
    if (until <= slot.until) return [slot];
    if (isRolling) return [{ ...slot, last: countedAt, until }];
    const units = Math.min(cost, slot.units);
    return [
      { ...slot, last: countedAt, until, units },
      { ...slot, units: slot.units - units },
    ];
  });
}

/**
 * A response stated when a fixed window ends, by whatever clock begins it there. Its call was sent in that window, so it counts
 * until then, though the window of our own clock ends sooner; and so does what left in the same slot, which may be more than
 * needed.
 * @param leftMs until the window ends, from the head of the response
 */
export function logStatedEnd(
  meter: Logged,
  { sentAt, headAt }: Pick<SendTimes, 'sentAt' | 'headAt'>,
  leftMs: number,
): void {
  const { log, windowMs } = meter;
  const end = headAt + Math.min(leftMs, windowMs);
  if (log?.counts !== 'fixed' || sentAt <= end - windowMs - windowMs / endsPerWindow) return;
  changeSlot(meter, sentAt, (slot) => [{ ...slot, until: Math.max(slot.until, end) }]);
}

/** Notes that a response stated at least `lowest` used units: those that are not our own sends were taken by others, recently. */
export function logReported(meter: Logged, lowest: number, now: number): void {
  if (meter.log !== null) logUnits(meter, lowest - loggedUnits(meter.log, now), now);
}

/**
 * Milliseconds until the last of `units` more has room, where each goes as soon as it can; 0 = now. Each goes one window after
 * the one that is a whole limit before it; the first ones go when enough of what counts now has left, which may be more than the
 * limit: it may have been lowered.
 */
export function windowWaitMs(meter: Logged, units: number, now: number): number {
  const { log, limit, windowMs } = meter;
  if (log === null || limit === null) return 0;
  const rounds = Math.ceil(units / limit - unitRounding) - 1;
  let left = loggedUnits(log, now) + units - rounds * limit - limit;
  const roundMs = periodMs(meter);
  if (left <= unitRounding) return rounds <= 0 ? 0 : endOf(log, windowMs, now) - now + (rounds - 1) * roundMs;
  for (const { until, units: leaving } of log.slots.toSorted((one, other) => one.until - other.until)) {
    if (until <= now) continue;
    left -= leaving;
    if (left <= unitRounding) return until - now + rounds * roundMs;
  }
  return endOf(log, windowMs, now) - now + rounds * roundMs;
}

/** The time between two calls that are a whole limit apart. Milliseconds. */
export const periodMs = ({ log, windowMs }: Logged): number =>
  log?.counts === 'fixed' ? windowMs : windowMs + marginMs(windowMs);

/** Milliseconds for which the log must be kept; 0 = nothing in it counts. */
export const logMemoryMs = ({ log }: Logged, now: number): number =>
  Math.max(0, ...(log?.slots ?? []).map(({ until }) => until - now));
