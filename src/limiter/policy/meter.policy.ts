/**
 * One dimension of a bucket: a level that rises with every grant and drains continuously.
 *
 * The model (recorded from live services): a call is admitted while `level + cost <= limit`, the level drains at
 * `limit / window`. Responses correct it (`learning.policy.ts`).
 *
 * Owns: the data of a meter, which quota is in force, draining, room, what a grant takes and gets back. Does not own: what responses
 * mean, which calls wait, which lane is next. Invariant: a changed setting or report takes effect at once, in every direction. Pure;
 * `now` is an argument.
 */
import { meterNames, type Costs, type MeterName } from '../../call.ts';
import type { MeterSetting } from '../limiter.ts';
import { secondMs, minuteMs, hourMs, dayMs } from '../../time-units.ts';

export { meterNames };

// Names

/** Further windows of requests: a call takes from them what it takes from `requests`, where the bucket has them. */
export const requestWindows: readonly MeterName[] = ['requests_burst', 'requests_hour'];

/** Windows of requests that are shorter than a day. */
export const windowNames: readonly MeterName[] = ['requests', ...requestWindows];

/** All meters of which each call takes the same. */
export const callWindows: readonly MeterName[] = [...windowNames, 'requests_day'];

/** Meter names and units of a call's costs, without the zeros. */
export function costEntries(costs: Costs): [MeterName, number][] {
  const entries: [MeterName, number][] = [];
  for (const name of meterNames) {
    const units = costs[name];
    if (units !== undefined && units > 0) entries.push([name, units]);
  }
  return entries;
}

// Data

/** `limit` units in each window of this length, milliseconds. */
export interface Quota {
  readonly limit: number;
  readonly windowMs: number;
}

/** What the upstream's responses stated of its quota. */
export interface ReportedQuota {
  readonly limit: number;
  /** `null`: no response stated it. */
  readonly windowMs: number | null;
  /** Sending time of the newest call whose response stated the limit. */
  readonly sentAt: number;
}

export interface Meter {
  readonly name: MeterName;
  /** Units per window in force, which follows from `stated` and `reported`; `null`: nobody knows, nobody is held back. */
  limit: number | null;
  /** Window in force, milliseconds; while no limit is known, the one that it is taken to be counted over. */
  windowMs: number;
  /** Quota stated by the operator; `null`: none. */
  stated: Quota | null;
  /** Quota stated by responses; `null`: none stated any. */
  reported: ReportedQuota | null;
  /** Used units at `at`. Before `at` nothing drains: the first call of a burst may not have arrived. */
  level: number;
  at: number;
  /** Level and `granted` when a lowered limit last cut the level off; `null`: none did. */
  cut: { readonly level: number; readonly granted: number; readonly at: number } | null;
  /** Units granted, without those that the upstream did not count, and units of granted calls that are no longer on their way. */
  granted: number;
  answered: number;
  /** Of the answered units those whose responses stated no level, since a response last accounted for all. */
  unstated: number;
  /**
   * The highest level that responses stated and that may have been reached when the last of the answered calls arrived (`level` at `at`); calls
   * that were sent after `headAt` arrived later. `null`: none stated any.
   */
  peak: { readonly level: number; readonly at: number; readonly headAt: number } | null;
  /** `granted` before the grants of the last `calmLatenessMs`, by their times, oldest first. */
  readonly recent: { readonly at: number; readonly granted: number }[];
  /** Estimated consumption of others, units per millisecond. */
  others: number;
  /** The last instant up to which the use of others is known; `null` = it was never known. */
  heardAt: number | null;
  /**
   * How full the meter is as the last refusal told it (`level` at `at`), and when that came (`headAt`): responses to calls that were sent before
   * do not reflect it. `null`: there was none.
   */
  refusal: { readonly level: number; readonly at: number; readonly headAt: number } | null;
  /** Others have been in our way, so that units are kept free for them; `null`: they have not for long. */
  contest: Contest | null;
  /** About the shortest time between a call and its response's head, milliseconds; `null`: no response stated the level yet. */
  fastestMs: number | null;
  /** When the meter was last found empty: what was reserved before has drained by then. `null`: never. */
  emptyAt: number | null;
  /** What was granted of late, where the operator describes the window; `null`: the level drains continuously. */
  log: WindowLog | null;
}

export interface Contest {
  /** The most that others were seen to take unexpectedly, and a margin. */
  readonly units: number;
  /** Units that may be kept free for them though nobody waits. */
  readonly allowance: number;
  /** When others were last in our way, or the units were last taken back. */
  readonly at: number;
}

/** What a grant took of a meter. */
export interface MeterMark {
  readonly cost: number;
  /** `granted` right after this grant. */
  readonly granted: number;
  /** When the meter was to drain on right after this grant, as it seemed then. */
  readonly drainsAt: number;
  /** Units of the calls granted before that may arrive after this one. */
  readonly inTransit: number;
}

export const createMeter = (name: MeterName, now: number): Meter => ({
  name,
  limit: null,
  windowMs: assumedWindowMs(name),
  stated: null,
  reported: null,
  level: 0,
  at: now,
  cut: null,
  granted: 0,
  answered: 0,
  unstated: 0,
  peak: null,
  recent: [],
  others: 0,
  heardAt: null,
  refusal: null,
  contest: null,
  fastestMs: null,
  emptyAt: null,
  log: null,
});

/** Length of the window of a meter as its name says it, milliseconds. */
const assumedWindowMs = (name: MeterName): number => (name.endsWith('_day') ? dayMs : minuteMs);

// The quota in force

/** Applies the operator's setting (`null` = no longer stated). `learn`: a reported quota may raise it. */
export function applySetting(meter: Meter, stated: MeterSetting | null, learn: boolean, now: number): void {
  meter.stated = stated === null ? null : { limit: stated.limit, windowMs: stated.windowMs };
  drain(meter, now);
  const { level: sent, log, windowMs } = meter;
  enforce(meter, learn, now);
  const { counts } = stated ?? {};
  if (counts === undefined) {
    // A log counts what was sent, also beyond a lowered limit.
    meter.log = null;
    meter.level = Math.min(meter.level, meter.limit ?? Infinity);
  } else if (log === null) meter.log = beginLog(sent, counts, meter.windowMs, now);
  else meter.log = countedAs(log, windowMs, counts, meter.windowMs);
}

/**
 * Applies the quota that a response states. If it states no window, the former one stays, or the window is learned from what is
 * left of it (`leftMs`, milliseconds; `null` = not stated).
 */
export function applyReport(
  meter: Meter,
  reported: ReportedQuota,
  leftMs: number | null,
  learn: boolean,
  now: number,
): void {
  const isKnown = meter.reported?.limit === reported.limit || leftMs === null;
  const known = isKnown ? (meter.reported?.windowMs ?? null) : null;
  meter.reported = { ...reported, windowMs: reported.windowMs ?? learnedWindowMs(known, leftMs) };
  const { log, windowMs } = meter;
  enforce(meter, learn, now);
  if (log !== null) meter.log = countedAs(log, windowMs, log.counts, meter.windowMs);
}

/**
 * Puts limit and window in force. The level is cut off at a lower limit, because the upstream counts no more than its limit. A raised
 * limit gives no more room than the upstream is known to have: what it leaves unused was no part of the level, and what was cut off
 * may be there yet.
 */
function enforce(meter: Meter, learn: boolean, now: number): void {
  const { limit: before, windowMs: beforeMs } = meter;
  const { limit = null, windowMs = assumedWindowMs(meter.name) } = quotaInForce(meter, learn) ?? {};
  if (limit === before && windowMs === beforeMs) return;
  drain(meter, now);
  meter.limit = limit;
  meter.windowMs = windowMs;
  if (limit === null || limit === before) return;
  const there = Math.max(meter.level, levelThere(meter, now));
  if (before !== null && limit > before) {
    const raised = meter.level + limit - before;
    meter.level = meter.heardAt === null ? Math.max(meter.level, Math.min(raised, there)) : raised;
  } else if (meter.level > limit) {
    if (before !== null) meter.cut = { level: there, granted: meter.granted, at: now };
    meter.level = limit;
  }
}

/** What the upstream may count since a lowered limit cut the level off; 0: none did, or it has drained. */
const levelThere = ({ cut, granted, ...meter }: Meter, now: number): number =>
  cut === null ? 0 : Math.max(0, cut.level + granted - cut.granted - drainRate(meter) * (now - cut.at));

/**
 * The quota in force: the reported one as soon as there is one, else the stated one. If the operator pinned the limit, the
 * tighter of both counts, for the units at once and for the rate.
 */
function quotaInForce({ name, stated, reported }: Meter, learn: boolean): Quota | null {
  if (reported === null) return stated;
  const windowMs = reported.windowMs ?? stated?.windowMs ?? assumedWindowMs(name);
  const learned = { limit: reported.limit, windowMs };
  if (stated === null || learn) return learned;
  const limit = Math.min(stated.limit, learned.limit);
  const slower = stated.limit * learned.windowMs < learned.limit * stated.windowMs ? stated : learned;
  if (limit === slower.limit) return slower;
  return { limit, windowMs: (limit * slower.windowMs) / slower.limit };
}

/**
 * Units by which the limit in force is below the upstream's own. So many of the used units that responses state take no room here:
 * the operator leaves them to others, or does not use them.
 */
export const unusedUnits = ({ limit, reported }: Meter): number =>
  limit === null || reported === null ? 0 : Math.max(0, reported.limit - limit);

/**
 * True when the operator's quota drains more slowly than the upstream's. Then a response with a lower level does not show how much
 * of the operator's quota is used.
 */
export function isHeldSlower({ name, limit, windowMs, stated, reported }: Meter): boolean {
  if (limit === null || reported === null) return false;
  const reportedMs = reported.windowMs ?? stated?.windowMs ?? assumedWindowMs(name);
  return limit * reportedMs < reported.limit * windowMs;
}

// The length of a window that no response states, estimated from the time that successive responses state to be left of it (docs/adr/0001).
// A window is never shorter than the time left of it; where calls come all the time, a response right after its start states nearly all of
// it. So the estimate is the shortest usual window that is no shorter than the longest time that was left. It never shrinks as long as the
// limit is the same. If the first response comes late in a window, it is too short until that window ends: calls may then leave too fast for
// the rest of it, but no more calls than the responses state to remain.

/** Windows that upstreams have, ascending. Milliseconds. */
const usualWindowsMs: readonly number[] = [
  ...[1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60].map((seconds) => seconds * secondMs),
  ...[2, 3, 5, 10, 15, 20, 30].map((minutes) => minutes * minuteMs),
  hourMs,
];

/**
 * Upstreams state whole seconds, rounded up, and some add one second: the stated time may be this much longer than the window.
 * Milliseconds.
 */
export const roundingMs = 1_000;
/**
 * Up to this stated time the rounding is not subtracted: it is a tenth of the time or more, so that the time could as well be that of
 * a longer window. Milliseconds.
 */
const roundedFromMs = 10 * secondMs;

/**
 * The estimate, milliseconds; `null` = nothing is known.
 * @param known the estimate before, for the same limit
 * @param leftMs the time until the window ends, as the newest response states it, rounded up; `null` = it states none
 */
export function learnedWindowMs(known: number | null, leftMs: number | null): number | null {
  if (leftMs === null || !(leftMs > 0)) return known;
  const minWindowMs = leftMs > roundedFromMs ? leftMs - roundingMs : leftMs;
  const usual = usualWindowsMs.find((windowMs) => windowMs >= minWindowMs);
  return usual === undefined ? known : Math.max(known ?? 0, usual);
}

// Draining and room

/**
 * Jitter between our sending and the upstream's counting, milliseconds: the time in which this part of a unit
 * drains, within these bounds. A slow meter can afford more of it, and a refusal there costs more.
 */
const jitterUnitShare = 0.2;
export const minJitterMs = 25;
export const maxJitterMs = 100;
/**
 * How much longer the first call of a burst may take to the upstream than the last ones, milliseconds; at most a sixtieth of the
 * window. After the first call on an empty meter, the meter rests this long before it drains: the upstream starts to drain when the
 * call arrives, not when we send it, and a process that starts a burst is busy just then. Responses end the rest.
 */
export const maxLatenessMs = 1_000;
const windowsOfLateness = 60;
/** A call among calls that leave at the pace of the meter reaches the upstream within this time of its grant, milliseconds. */
export const calmLatenessMs = 250;
/** Grants that are closer together than this count as one moment, milliseconds. */
const momentMs = 20;
/** In about this time the estimate of what others take falls to 0 if no response shows them, milliseconds. */
const othersMemoryMs = 360_000;
/** How full a meter may get, in windows of draining, when calls turn out more expensive than was reserved. */
const debtWindows = 2;
/** The allowance of a contested meter: units that may be kept free for each unit granted since it is contested. */
const allowanceShare = 0.02;
/** Others are expected to take at most this share of what drains, so that the meter always lets some calls through. */
const maxOthersShare = 0.75;
/**
 * A contested meter keeps at least `keptWaitingShare` of the waiting units free for others, and at most its allowance or
 * `maxKeptWaitingShare` of the waiting units. So the line uses up what is kept free as it ends, which costs almost no time.
 */
const keptWaitingShare = 0.02;
const maxKeptWaitingShare = 0.05;
/** At most this share of the limit is kept free for others. */
const maxKeptShare = 0.15;

/** Units drained per millisecond; 0 while no limit is known. */
export const drainRate = ({ limit, windowMs }: Pick<Meter, 'limit' | 'windowMs'>): number =>
  limit === null ? 0 : limit / windowMs;

/** The same while others take what they are expected to. */
export function netRate(meter: Meter): number {
  const rate = drainRate(meter);
  return rate - Math.min(meter.others, rate * maxOthersShare);
}

const jitterMs = (meter: Meter): number =>
  Math.min(maxJitterMs, Math.max(minJitterMs, jitterUnitShare / drainRate(meter)));

/** Units that drain during the jitter. */
export const jitterUnits = (meter: Meter): number => drainRate(meter) * jitterMs(meter);

/** Milliseconds until the meter drains. */
export const restMs = (meter: Meter, now: number): number => Math.max(0, meter.at - now);

/**
 * Used units at `now` if nothing else happens. A clock that stands still or steps back changes nothing. While no limit is known,
 * counted units fade in about the time of a window: otherwise a limit that becomes known would find every unit ever counted.
 */
export function levelAt(meter: Meter, now: number): number {
  if (meter.log !== null) return loggedUnits(meter.log, now);
  if (now <= meter.at) return meter.level;
  const sinceMs = now - meter.at;
  const drained =
    meter.limit === null ? meter.level * (sinceMs / (sinceMs + meter.windowMs)) : sinceMs * netRate(meter);
  return Math.max(0, meter.level - drained);
}

/** Brings the level up to `now`, before anything else changes the meter. */
export function drain(meter: Meter, now: number): void {
  if (now <= meter.at) return;
  const sinceMs = now - meter.at;
  meter.level = levelAt(meter, now);
  meter.others -= meter.others * (sinceMs / (sinceMs + othersMemoryMs));
  meter.at = now;
  if (meter.level === 0) meter.emptyAt = now;
}

/** Units kept free for others while so many units wait. */
export function keptFree({ limit, contest }: Meter, waiting: number): number {
  if (limit === null || contest === null) return 0;
  const wanted = Math.max(contest.units, waiting * keptWaitingShare);
  return Math.min(wanted, limit * maxKeptShare, Math.max(contest.allowance, waiting * maxKeptWaitingShare));
}

/**
 * Milliseconds until a call has room while so many units wait; 0 = now. A cost above the limit needs the meter empty. What others are
 * expected to take only delays calls: once the meter would be empty without them, one call is sent to find out.
 */
export function roomInMs(meter: Meter, units: number, waiting: number, now: number): number {
  const { limit } = meter;
  if (limit === null || units <= 0) return 0;
  const cost = Math.min(units, limit);
  if (meter.log !== null) return windowWaitMs(meter, cost, now);
  const usable = Math.max(cost, limit - keptFree(meter, waiting));
  const over = levelAt(meter, now) + cost - usable;
  if (over <= 0) return 0;
  const emptyInMs = Math.max(0, meter.at - now + meter.level / drainRate(meter));
  return Math.min(restMs(meter, now) + over / netRate(meter), emptyInMs);
}

// What calls take and get back

/**
 * Takes the cost of a granted call and returns the mark that its lease keeps. At most the limit is taken, because an upstream
 * counts no more: a value that a client writes into its call (`max_tokens`) could otherwise close the meter for years.
 */
export function take(meter: Meter, units: number, now: number): MeterMark {
  drain(meter, now);
  const { limit, contest } = meter;
  const cost = limit === null ? units : Math.min(units, limit);
  const inTransit = noteRecent(meter, now);
  if (cost > 0 && limit !== null) {
    const latenessMs = Math.max(jitterMs(meter), Math.min(maxLatenessMs, meter.windowMs / windowsOfLateness));
    meter.at = Math.max(meter.at, now + latenessMs - meter.level / drainRate(meter));
  }
  meter.level += cost;
  if (meter.log !== null) logUnits(meter, cost, now);
  meter.granted += cost;
  if (contest !== null) meter.contest = { ...contest, allowance: contest.allowance + cost * allowanceShare };
  return { cost, granted: meter.granted, drainsAt: meter.at, inTransit };
}

/** Notes a grant, and returns the units of those before that may be on their way: granted of late, and without a response. */
function noteRecent(meter: Meter, now: number): number {
  const { granted, answered, recent } = meter;
  while ((recent[0]?.at ?? now) <= now - calmLatenessMs) recent.shift();
  if (now - (recent.at(-1)?.at ?? -Infinity) >= momentMs) recent.push({ at: now, granted });
  return Math.max(0, Math.min(granted - answered, granted - (recent[0]?.granted ?? granted)));
}

/** Notes that the call is no longer on its way: the upstream has answered it, or it was never sent. `isStated`: its response states the level. */
export function markAnswered(meter: Meter, { cost }: MeterMark, isStated: boolean): void {
  meter.answered += cost;
  if (!isStated) meter.unstated += cost;
}

/**
 * Corrects the meter by what a call has spent, which reserved `reserved` units (perhaps 0) at `grantedAt`. If it reserved too
 * much, the difference goes back, unless the meter was empty in between: then it has drained. If it reserved too little, the
 * difference is charged: per call at most the limit, and in all at most what drains within two windows, because the upstream let
 * the calls pass.
 */
export function settleUnits(
  meter: Meter,
  reserved: number,
  spent: number,
  grantedAt: number,
  now: number,
): void {
  drain(meter, now);
  const { limit, level } = meter;
  const counted = limit === null ? spent : Math.min(spent, limit);
  // A limit that was lowered since the grant has cut the level off, and with it what was reserved beyond the limit.
  const back = (limit === null ? reserved : Math.min(reserved, limit)) - counted;
  if (back > 0 && (meter.emptyAt ?? grantedAt) > grantedAt) return;
  const highest = limit === null ? level - back : Math.max(level, limit * debtWindows);
  meter.level = Math.max(0, Math.min(level - back, highest));
}

/**
 * Gives back the units of a call that the upstream never counted, as far as they have not drained since `grantedAt` (without them
 * nothing might have drained).
 */
export function giveUnitsBack(meter: Meter, mark: MeterMark, grantedAt: number, now: number): void {
  const { cost } = mark;
  meter.granted -= cost;
  meter.answered -= cost;
  unlogUnits(meter, cost, grantedAt);
  const hasRested = meter.at === mark.drainsAt && meter.at > now;
  drain(meter, now);
  const back = hasRested ? cost : Math.max(0, cost - (now - grantedAt) * drainRate(meter));
  meter.level = Math.max(0, meter.level - back);
  // No other call is on its way that might arrive late.
  if (meter.level === 0) meter.at = now;
}

// The log of a window that an operator describes: what was granted within the last window, in a few slots.
//
// A meter drains continuously, and lets up to twice its limit pass within one window; an upstream that counts a sliding or a
// clock window and states nothing refuses a part of that. With a log no window of this length ever holds more than the limit.
//
// No send is forgotten before its window has passed, wherever within the margin the upstream counted it.

/** `rolling`: each window of this length. `fixed`: windows that begin at whole multiples of it since the epoch. */
export type CountedWindow = 'rolling' | 'fixed';

/** Sends that are forgotten together. */
interface SendSlot {
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
function beginLog(units: number, counts: CountedWindow, windowMs: number, now: number): WindowLog {
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
function logUnits(meter: Meter, units: number, now: number): void {
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
function changeSlot(meter: Meter, sentAt: number, change: (slot: SendSlot) => readonly SendSlot[]): void {
  const { log } = meter;
  const at = log?.slots.findLastIndex(({ since }) => since <= sentAt) ?? -1;
  const slot = log?.slots[at];
  if (log !== null && slot !== undefined)
    meter.log = { ...log, slots: log.slots.toSpliced(at, 1, ...change(slot)) };
}

/** Takes units off that were granted then and never counted by the upstream. */
const unlogUnits = (meter: Meter, units: number, grantedAt: number): void =>
  changeSlot(meter, grantedAt, (slot) => [{ ...slot, units: Math.max(0, slot.units - units) }]);

/** When a call was granted and sent, and when the head of its response arrived. `cost`: units that it took of the meter. */
interface SendTimes {
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
export function logSent(meter: Meter, { cost, isFirst, grantedAt, sentAt, headAt }: SendTimes): void {
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
  meter: Meter,
  { sentAt, headAt }: Pick<SendTimes, 'sentAt' | 'headAt'>,
  leftMs: number,
): void {
  const { log, windowMs } = meter;
  const end = headAt + Math.min(leftMs, windowMs);
  if (log?.counts !== 'fixed' || sentAt <= end - windowMs - windowMs / endsPerWindow) return;
  changeSlot(meter, sentAt, (slot) => [{ ...slot, until: Math.max(slot.until, end) }]);
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
