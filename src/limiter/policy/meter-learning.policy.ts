/**
 * What answers teach a meter.
 *
 * We hear of the true level only through answers, each of which describes the instant at which *its* call reached the
 * upstream, somewhere between our sending it and its answer's head. So an answer does not give a level but bounds, and
 * the model is moved only as far as the bounds demand: a single late or reordered answer can neither open the bucket
 * too far nor close it for nothing.
 *
 * Owns: the bounds that an answer proves, and the upstream's refusals. Refuses to own: the model itself
 * (`meter.policy.ts`), which limit holds (`meter-quota.policy.ts`), the estimate of what others take
 * (`meter-others.policy.ts`). Pure; `now` is an argument.
 */
import type { MeterReport } from '../../call.ts';
import { netRate, noteContest, noteOthers, noteGulp } from './meter-others.policy.ts';
import {
  calmLatenessMs,
  drain,
  drainRate,
  jitterUnits,
  restMs,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';
import { applyReport } from './meter-quota.policy.ts';

/** So many calls more than what has drained since do not make a burst. */
export const callsOfCalm = 2;
/** A slower answer raises what is taken for the fastest by this factor, and at least by so many milliseconds. */
export const fastestRise = 1.01;
export const leastRiseMs = 0.05;
/** Of the time of the fastest answer this share, or all but so many milliseconds, passes behind the arrival of a call. */
export const answeringShare = 0.8;
export const calmJitterMs = 50;
/** Waits are told in whole seconds, rounded up. */
export const waitGrainMs = 1_000;

type Level = NonNullable<MeterReport['level']>;

/** When and how an answer was obtained, on the store's clock. */
export interface Observation {
  readonly sentAt: number;
  readonly headAt: number;
  /** No other call was sent shortly before this one. */
  readonly quiet: boolean;
  /** Nor for a while: calls left at the pace of the meter. */
  readonly calm: boolean;
  /** The call was refused until so many milliseconds after the answer; 0: it was not. */
  readonly closedMs: number;
}

/** What a report is about: the lease's mark (`null`: its call took nothing from the meter), and how it was obtained. */
export interface Answered {
  readonly mark: MeterMark | null;
  readonly seen: Observation;
}

/**
 * Learns from one report. Limits: a newer answer sets them, downwards always, upwards only when `learn`.
 * Level: moved into the bounds that the report proves.
 */
export function learnMeter(
  meter: Meter,
  report: MeterReport,
  { mark, seen }: Answered,
  { learn, now }: { readonly learn: boolean; readonly now: number },
): void {
  drain(meter, now);
  const isNewer = meter.reported === null || seen.sentAt >= meter.reported.sentAt;
  if (isNewer && report.limit > 0) {
    const windowMs = report.windowMs !== null && report.windowMs > 0 ? report.windowMs : null;
    const leftMs = report.resetMs ?? null;
    applyReport(meter, { limit: report.limit, windowMs, sentAt: seen.sentAt }, { leftMs, learn, now });
  }
  if (report.level === null || meter.limit === null) return;
  learnLevel(meter, report.level, { mark, seen }, now);
  learnFastest(meter, seen);
  meter.heardAt = Math.max(meter.heardAt ?? seen.sentAt, seen.sentAt);
}

function learnLevel(meter: Meter, level: Level, { mark, seen }: Answered, now: number): void {
  const { proved, likely, isInOrder, upper } = levelBounds(meter, level, { mark, seen }, now);
  const before = meter.level;
  const isFirst = meter.fastestMs === null;
  if (isFirst && meter.stated === null) move(meter, { lower: upper, upper }, now);
  else move(meter, { lower: Math.max(proved, Math.min(likely, upper)), upper: Math.max(proved, upper) }, now);
  const cost = mark?.cost ?? 0;
  const sinceMs = meter.heardAt === null ? 0 : seen.sentAt - meter.heardAt;
  // Before the first answer nobody knew the level; and whatever shut the bucket was no gulp of others.
  if (isFirst || sinceMs <= 0 || isShut(meter, cost, seen.closedMs)) return;
  noteOthers(meter, meter.level - before, sinceMs);
  const units = (isInOrder ? likely : proved) - before;
  noteGulp(meter, { units, grain: level.highest - level.lowest, cost }, now);
}

/** Where a call has to wait longer than its own cost takes to drain, the bucket is not merely full: it was shut. */
const isShut = (meter: Meter, cost: number, waitMs: number): boolean =>
  waitMs > waitGrainMs + cost / drainRate(meter);

/**
 * Moves the level into the bounds. What the meter would not drain while it rests counts as used, and goes first.
 */
function move(
  meter: Meter,
  { lower, upper }: { readonly lower: number; readonly upper: number },
  now: number,
): void {
  const rate = netRate(meter);
  const held = meter.level + rate * restMs(meter, now);
  const most = Math.max(0, Math.min(Math.max(held, lower), upper));
  meter.level = Math.min(Math.max(meter.level, lower), most);
  meter.at = now + (most - meter.level) / rate;
}

/** Falls at once and rises slowly: upstreams get slower for a while, and one bucket has calls of several kinds. */
function learnFastest(meter: Meter, { sentAt, headAt }: Observation): void {
  const tookMs = Math.max(0, headAt - sentAt);
  const known = meter.fastestMs;
  meter.fastestMs = known === null ? tookMs : Math.min(tookMs, known * fastestRise + leastRiseMs);
}

/** Bounds of the level now. */
interface Bounds {
  /** The call arrived as soon as it was sent, and no call granted later was counted yet. */
  readonly proved: number;
  /** The same, but the calls granted later come on top, as they do when calls arrive in the order of their sending. */
  readonly likely: number;
  /** No call was sent so shortly before or after that it may have overtaken. */
  readonly isInOrder: boolean;
  /** The call arrived as late as its answer allows, and every call without an answer is still to be counted. */
  readonly upper: number;
}

/** GraphQL cost is reported at the end of the execution, after the refund, not at admission. */
function levelBounds(meter: Meter, level: Level, { mark, seen }: Answered, now: number): Bounds {
  const atEnd = meter.name === 'cost';
  const sinceMs = Math.max(0, now - (atEnd ? seen.headAt : seen.sentAt));
  const proved = level.lowest - drainRate(meter) * sinceMs;
  const upper = upperBound(meter, level.highest, { mark, seen }, now);
  if (mark === null || atEnd) return { proved, likely: proved, isInOrder: false, upper };
  const later = meter.granted - mark.granted;
  const likely =
    level.lowest - netRate(meter) * sinceMs + Math.max(0, later - (meter.returned - mark.returned));
  const isInOrder =
    seen.quiet && mark.cost > 0 && later <= drainRate(meter) * sinceMs + callsOfCalm * mark.cost;
  if (!isInOrder || !seen.calm) return { proved, likely, isInOrder, upper };
  const calm = calmUpper(meter, level.highest, { mark, seen }, now) + later;
  return { proved, likely, isInOrder, upper: Math.min(upper, calm) };
}

/**
 * Every call without an answer comes on top of what the last of the answered ones found, and so do those that told nothing,
 * unless they had ended before. A call that took nothing is none of those: all calls may have come after it. The upstream
 * counts no more than its limit, whatever was asked for while nobody knew the limit.
 */
function upperBound(meter: Meter, highest: number, { mark, seen }: Answered, now: number): number {
  const isTimed = seen.calm && mark !== null && meter.name !== 'cost';
  const sinceArrival = isTimed ? sinceArrivalMs(meter, seen, now) : Math.max(0, now - seen.headAt);
  const told = Math.max(0, highest - netRate(meter) * sinceArrival);
  const limit = meter.limit ?? 0;
  if (mark === null) return told + Math.min(limit, meter.granted) + jitterUnits(meter);
  if (meter.untold !== null && seen.sentAt > meter.untold.at) meter.untold = null;
  const toCome = Math.max(0, meter.granted - meter.answered) + (meter.untold?.units ?? 0);
  return noteTop(meter, told, seen, now) + Math.min(limit, toCome) + jitterUnits(meter);
}

/**
 * Remembers how full the bucket can have been when the last of the answered calls arrived, whichever that was: the fullest
 * that any answer told, of those calls that may have arrived after this one and of this one. Returns it as of now.
 */
function noteTop(meter: Meter, level: number, { sentAt, headAt }: Observation, now: number): number {
  const known = meter.top;
  const before =
    known === null || sentAt > known.headAt ? 0 : known.level - netRate(meter) * (now - known.at);
  if (level < before) return before;
  meter.top = { level, at: now, headAt };
  return level;
}

/**
 * Time since a call in calm arrived, at least, milliseconds: it was not later than calls are in calm, or than what the
 * fastest answer leaves of its own time.
 */
function sinceArrivalMs(meter: Meter, { sentAt, headAt }: Observation, now: number): number {
  const sinceSent = Math.max(0, now - sentAt);
  const sinceHead = Math.max(0, now - headAt);
  const fastestMs = meter.fastestMs ?? 0;
  const answering = Math.max(fastestMs * answeringShare, fastestMs - calmJitterMs);
  return Math.max(sinceHead, Math.min(sinceSent - calmLatenessMs, sinceHead + answering));
}

/**
 * The most that the level can be by now without the calls granted later. Calls granted shortly before this one may still
 * have had to come, because their replica was kept from sending them: the later this one was, the fewer of those.
 */
function calmUpper(
  meter: Meter,
  highest: number,
  { mark, seen }: { readonly mark: MeterMark; readonly seen: Observation },
  now: number,
): number {
  const rate = netRate(meter);
  const sinceSent = Math.max(0, now - seen.sentAt);
  const sinceArrival = sinceArrivalMs(meter, seen, now);
  let upper = Math.max(0, highest - rate * sinceArrival);
  let toCome = 0;
  for (const { grantedAt, units } of mark.behind.toReversed()) {
    const arrivedAt = Math.max(sinceArrival, now - grantedAt - calmLatenessMs);
    if (arrivedAt > sinceSent) break;
    toCome += units;
    upper = Math.max(upper, Math.max(0, highest - rate * arrivedAt) + toCome);
  }
  return upper;
}

/** How a call was refused. */
export interface Refusal {
  /** Time until it has room, as the upstream says, milliseconds. */
  readonly waitMs: number;
  /** The model had room for it. */
  readonly hadRoom: boolean;
}

/**
 * The upstream refused a call of this cost. The meter has room for it at the time that the upstream names: not earlier,
 * and not later either, whatever others are expected to take until then.
 */
export function refused(meter: Meter, asked: number, { waitMs, hadRoom }: Refusal, now: number): void {
  if (meter.limit === null) return;
  drain(meter, now);
  const cost = Math.min(asked, meter.limit);
  const used = meter.limit - cost;
  if (hadRoom && meter.heardAt !== null && !isShut(meter, cost, waitMs)) {
    noteOthers(meter, Math.max(0, used - meter.level), now - meter.heardAt);
    noteContest(meter, cost, now);
  }
  const rate = netRate(meter);
  if (meter.level + rate * restMs(meter, now) < used + rate * waitMs) {
    meter.level = used;
    meter.at = now + waitMs;
  }
  // An answer to a call that was sent before knows nothing of the refusal.
  meter.top = { level: meter.level, at: meter.at, headAt: now };
  meter.heardAt = Math.max(meter.heardAt ?? now, now + waitMs);
}
