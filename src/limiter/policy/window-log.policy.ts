/**
 * The log of a meter whose window an operator describes: what was granted within the last window, in a few slots.
 *
 * A meter drains continuously, and lets up to twice its limit pass within one window; an upstream that counts a sliding or a
 * clock window and states nothing refuses a part of that. With a log no window of this length ever holds more than the limit.
 *
 * Owns: which units still count, and until when. Does not own: the limit (`meter-quota.policy.ts`), which lane is next.
 * Invariant: no send is forgotten before its window has passed, wherever within the margin the upstream counted it. Pure.
 */
import type { CountedWindow, Meter, SendSlot, WindowLog } from './meter-state.policy.ts';

/** Sends of a rolling window that are this part of it apart are forgotten together: a fortieth of the pace at most. */
const slotsPerWindow = 40;
/**
 * By so much a call may be counted later there than it was granted here, milliseconds: a sixtieth of the window, within these
 * bounds.
 */
export const minMarginMs = 25;
export const maxMarginMs = 1_000;
export const windowsOfMargin = 60;

/**
 * When a call was granted and sent, and when the head of its response arrived. `cost`: units that it took of the meter; `granted`:
 * those granted up to that call.
 */
export interface SendTimes {
  readonly cost: number;
  readonly granted: number;
  readonly grantedAt: number;
  readonly sentAt: number;
  readonly headAt: number;
}

/** A response that came faster than this part of a window says no more than when its call was sent. */
export const responsesPerWindow = 20;
/** The first calls may be on their way for this part of a window: connections are new, and nobody knows the usual time. */
export const firstsPerWindow = 4;
/** What is known of a call's way is exact but for this, milliseconds. */
const wayGrainMs = 5;
/** A slower response raises the usual time by this part of the difference. */
const slowerShare = 0.02;
/** An end of a window is stated this part of the window too late at most. */
const endsPerWindow = 30;
/** Sums and quotients of units may be wrong by so much: a level that a window began with is seldom a whole number. Units. */
export const unitRounding = 1e-9;

const marginMs = (windowMs: number): number =>
  Math.min(maxMarginMs, Math.max(minMarginMs, windowMs / windowsOfMargin));

/** Units that count at `now`. */
export function loggedUnits({ slots }: WindowLog, now: number): number {
  let units = 0;
  for (const slot of slots) if (slot.until > now) units += slot.units;
  return units;
}

/**
 * The level of a meter goes on from what its log counts, before the log ends: until then nothing else kept it. At most the limit,
 * which may have been lowered since: the upstream counts no more.
 */
export function levelOfLog(meter: Meter, log: WindowLog, now: number): void {
  meter.level = Math.min(loggedUnits(log, now), meter.limit ?? Infinity);
  meter.at = Math.max(meter.at, now);
}

/**
 * Keeps the meter's log as the operator states its window now. Units that were counted without a log (`sent`; absent: its level) count for
 * one window at most.
 */
export function keepLog(
  meter: Meter,
  kept: { readonly counts: CountedWindow | null; readonly epochAt: number; readonly sent?: number },
  now: number,
): void {
  const before = meter.log;
  const { counts, epochAt, sent = meter.level } = kept;
  if (counts === null) meter.log = null;
  else if (before === null)
    meter.log = logOfUnits(sent, { log: { counts, epochAt, slots: [] }, windowMs: meter.windowMs }, now);
  else if (before.counts !== counts) meter.log = countedAs(meter, { counts, windowMs: meter.windowMs }, now);
}

/**
 * The meter's log when its window is counted in another way or has another length from now on: what was sent counts for the new
 * window, from the latest time at which the last unit of its slot can have been counted.
 */
export function countedAs(
  { log, windowMs: before }: Meter,
  { counts, windowMs }: { readonly counts?: CountedWindow; readonly windowMs: number },
  now: number,
): WindowLog | null {
  if (log === null) return null;
  const next = counts === undefined ? log : { ...log, counts };
  const lastAt = ({ since, until }: SendSlot): number => {
    const endedAt = until - marginMs(before);
    return Math.max(since, log.counts === 'rolling' ? endedAt - before : Math.min(now, endedAt));
  };
  return {
    ...next,
    slots: log.slots.map((slot) => ({ ...slot, until: endOf(next, windowMs, lastAt(slot)) })),
  };
}

/** A window of the clock ends with the clock, whenever within it the units were counted. */
function logOfUnits(
  units: number,
  { log, windowMs }: { readonly log: WindowLog; readonly windowMs: number },
  now: number,
): WindowLog {
  if (units <= 0) return log;
  const rollingEnd = now + windowMs;
  const until = log.counts === 'rolling' ? rollingEnd : Math.min(rollingEnd, endOf(log, windowMs, now));
  return { ...log, slots: [{ since: now, until, units }] };
}

/** When a send of now no longer counts: near the end of a fixed window it may be counted in the next one. */
function endOf({ counts, epochAt }: WindowLog, windowMs: number, now: number): number {
  const margin = marginMs(windowMs);
  if (counts === 'rolling') return now + windowMs + margin;
  return epochAt + (Math.floor((now + margin - epochAt) / windowMs) + 1) * windowMs + margin;
}

/** Counts units that are sent now. */
export function logUnits(meter: Meter, units: number, now: number): void {
  const { log, windowMs } = meter;
  if (log === null || units <= 0) return;
  const slots = log.slots.filter(({ until }) => until > now);
  const until = endOf(log, windowMs, now);
  const last = slots.at(-1);
  const isFixed = log.counts === 'fixed';
  const joins =
    last !== undefined &&
    (isFixed
      ? endOf(log, windowMs, last.since) >= until && last.until <= until
      : now - last.since < windowMs / slotsPerWindow);
  if (joins) {
    slots[slots.length - 1] = {
      since: last.since,
      until: isFixed ? last.until : until,
      units: last.units + units,
    };
  } else slots.push({ since: now, until, units });
  meter.log = { ...log, slots };
}

/** Takes units off that were granted then and never counted by the upstream. */
export function unlogUnits(meter: Meter, units: number, grantedAt: number): void {
  const { log } = meter;
  if (log === null) return;
  const at = log.slots.findLastIndex(({ since }) => since <= grantedAt);
  meter.log = {
    ...log,
    slots: log.slots.map((slot, index) =>
      index === at ? { ...slot, units: Math.max(0, slot.units - units) } : slot,
    ),
  };
}

/**
 * A call reached the upstream later than its grant: it left late (a busy process), or was longer on its way than others (a new
 * connection). It counts until the window of that time has passed: of a rolling window with its slot, of one of the clock alone,
 * because its slot has all calls of that window.
 */
export function logSent(meter: Meter, { cost, granted, grantedAt, sentAt, headAt }: SendTimes): void {
  const { log, windowMs, fastestMs, limit } = meter;
  if (log === null) return;
  const tookMs = Math.max(0, headAt - sentAt);
  const usualMs =
    fastestMs === null ? tookMs : Math.min(tookMs, fastestMs + (tookMs - fastestMs) * slowerShare);
  meter.fastestMs = usualMs;
  const isFirst = limit !== null && granted <= limit;
  const part = isFirst ? firstsPerWindow : responsesPerWindow;
  const lateMs = Math.max(windowMs / part, isFirst ? 0 : tookMs - usualMs);
  const countedAt = sentAt + Math.min(tookMs, lateMs);
  const at = log.slots.findLastIndex(({ since }) => since <= grantedAt);
  const slot = log.slots[at];
  const isRolling = log.counts === 'rolling';
  const until = isRolling ? countedAt + windowMs + wayGrainMs : endOf(log, windowMs, countedAt);
  if (slot === undefined || until <= slot.until) return;
  const units = isRolling ? slot.units : Math.min(cost, slot.units);
  const later = { since: slot.since, until, units };
  const rest = { ...slot, units: slot.units - units };
  meter.log = {
    ...log,
    slots: log.slots.toSpliced(at, 1, ...(rest.units > 0 ? [later, rest] : [later])),
  };
}

/** What a response stated of the window in which it was made. */
export interface StatedWindowEnd {
  readonly sentAt: number;
  readonly headAt: number;
  /** Until the window ends, from the head of the response, milliseconds. */
  readonly leftMs: number;
}

/**
 * A response stated when a fixed window ends, by whatever clock begins it there. Its call was sent in that window, so it counts
 * until then, though the window of our own clock ends sooner; and so does what left in the same slot, which may be more than
 * needed.
 */
export function logStatedEnd(meter: Meter, { sentAt, headAt, leftMs }: StatedWindowEnd): void {
  const { log, windowMs } = meter;
  if (log === null || log.counts !== 'fixed') return;
  const end = headAt + Math.min(leftMs, windowMs);
  if (sentAt <= end - windowMs - windowMs / endsPerWindow) return;
  const at = log.slots.findLastIndex(({ since }) => since <= sentAt);
  meter.log = {
    ...log,
    slots: log.slots.map((slot, index) =>
      index === at ? { ...slot, until: Math.max(slot.until, end) } : slot,
    ),
  };
}

/** Notes that a response stated at least `lowest` used units: those that are not our own sends were taken by others, recently. */
export function logReported(meter: Meter, lowest: number, now: number): void {
  if (meter.log !== null) logUnits(meter, lowest - loggedUnits(meter.log, now), now);
}

/**
 * Milliseconds until the last of `units` more has room, where each goes as soon as it can; 0 = now. Each goes one window after
 * the one that is a whole limit before it; the first ones go when enough of what counts now has left, which may be more than the
 * limit: it may have been lowered.
 */
export function windowWaitMs(meter: Meter, units: number, now: number): number {
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
export const periodMs = ({ log, windowMs }: Meter): number =>
  log?.counts === 'fixed' ? windowMs : windowMs + marginMs(windowMs);

/** Milliseconds for which the log must be kept; 0 = nothing in it counts. */
export const logMemoryMs = ({ log }: Meter, now: number): number =>
  Math.max(0, ...(log?.slots ?? []).map(({ until }) => until - now));
