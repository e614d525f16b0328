/**
 * What responses teach a meter.
 *
 * Only responses show the true level, and each of them describes the instant at which *its* call reached the upstream, somewhere
 * between our sending it and its response's head. So a response does not give a level but bounds, and the model is moved only as
 * far as the bounds demand: a single late or reordered response can neither open the bucket too far nor close it for nothing.
 *
 * What others take, who use the same quota without Sluice, is a steady stream and bursts. The stream is the rise of the levels in
 * responses that our own calls do not explain; it reduces the rate at which the meter drains. A burst shows when a call is refused that
 * had room: from then on the meter is contested, and keeps as many units free as others took at once.
 *
 * Does not own: the model itself and which limit holds (`meter.policy.ts`). Invariant: without a refusal nothing is kept free; a single
 * burst does not count as a stream. Pure; `now` is an argument.
 */
import type { MeterReport } from '../../call.ts';
import {
  applyReport,
  calmLatenessMs,
  drain,
  drainRate,
  isHeldSlower,
  jitterUnits,
  netRate,
  restMs,
  unusedUnits,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';
import { logReported, logStatedEnd } from './window-log.policy.ts';

/** A slower response raises the time of the fastest response by this factor, and at least by `minRiseMs`. */
const fastestRise = 1.01;
const minRiseMs = 0.05;
/** Upstreams state waits in whole seconds, rounded up. */
const waitGrainMs = 1_000;
/** So many calls may be sent in addition to what has drained meanwhile before they count as a burst. */
const burstToleranceCalls = 2;
/**
 * How much of the fastest response's time the upstream is taken to spend after the call has arrived: this share of it, or all but
 * `calmJitterMs` milliseconds, whichever is more.
 */
const answeringShare = 0.8;
const calmJitterMs = 50;

/** What a response states of one meter, and when and how it was obtained, on the store's clock. */
export interface Reported {
  readonly report: MeterReport;
  /** The lease's mark; `null` = its call took nothing from the meter. */
  readonly mark: MeterMark | null;
  readonly sentAt: number;
  readonly headAt: number;
  /** The response refused the call until this many milliseconds after it; 0 = no refusal. */
  readonly closedMs: number;
  /** Reported limits may raise a stated one. */
  readonly learn: boolean;
}

/**
 * Learns from one report. Limits: a newer response sets them, downwards always, upwards only when `learn`.
 * Level: moved into the bounds that the report proves.
 */
export function learnMeter(meter: Meter, reported: Reported, now: number): void {
  const { report, sentAt, headAt, learn } = reported;
  const { limit, windowMs, level, resetMs: leftMs = null } = report;
  drain(meter, now);
  if (limit > 0 && (meter.reported === null || sentAt >= meter.reported.sentAt)) {
    const quota = { limit, windowMs: windowMs !== null && windowMs > 0 ? windowMs : null, sentAt };
    applyReport(meter, { reported: quota, leftMs, learn }, now);
  }
  if (leftMs !== null) logStatedEnd(meter, { sentAt, headAt }, leftMs);
  if (level === null || meter.limit === null) return;
  if (meter.log !== null) return logReported(meter, level.lowest - unusedUnits(meter), now);
  learnLevel(meter, { ...reported, level }, now);
  // The fastest time falls at once and rises slowly: upstreams become slower at times, and calls of one bucket differ.
  const tookMs = Math.max(0, headAt - sentAt);
  meter.fastestMs =
    meter.fastestMs === null ? tookMs : Math.min(tookMs, meter.fastestMs * fastestRise + minRiseMs);
  meter.heardAt = Math.max(meter.heardAt ?? sentAt, sentAt);
}

type ReportedLevel = Reported & { readonly level: NonNullable<MeterReport['level']> };

function learnLevel(meter: Meter, found: ReportedLevel, now: number): void {
  const { level, mark, sentAt, closedMs } = found;
  const { proved, likely, isInOrder, upper } = levelBounds(meter, found, now);
  const before = meter.level;
  const isFirst = meter.fastestMs === null;
  const lower = isFirst && meter.stated === null ? upper : Math.max(proved, Math.min(likely, upper));
  move(meter, { lower, upper: Math.max(proved, upper) }, now);
  const cost = mark?.cost ?? 0;
  const sinceMs = meter.heardAt === null ? 0 : sentAt - meter.heardAt;
  // Before the first response the level was unknown; and a call that found the bucket closed shows no burst of others.
  if (isFirst || sinceMs <= 0 || isShut(meter, cost, closedMs)) return;
  // Where calls may have come out of order, the level rises by what is likely, and that counts calls twice that were granted later and had
  // arrived already. As long as no call that had room was refused, nobody else need be there: only what is proved counts as a rise then.
  const isSure = isInOrder && mark?.inTransit === 0;
  const isGuess = meter.level > before && !isSure && meter.contest === null;
  const after = isGuess ? Math.min(meter.level, Math.max(before, proved)) : meter.level;
  noteOthers(meter, after - before, sinceMs);
  const units = (isInOrder ? likely : proved) - before;
  noteOthersBurst(meter, { units, uncertainty: level.highest - level.lowest, cost }, now);
}

/** Bounds of the level now, under the quota in force. */
interface Bounds {
  /** The level if the call arrived as soon as it was sent, and no call granted later was counted yet. */
  readonly proved: number;
  /** `proved` plus the calls granted later: the level if calls arrive in the order in which they are sent. */
  readonly likely: number;
  /** True when no call was sent so shortly before or after this one that either may have overtaken the other. */
  readonly isInOrder: boolean;
  /** The level if the call arrived as late as its response allows, and before every call that it may have overtaken. */
  readonly upper: number;
}

function levelBounds(meter: Meter, found: ReportedLevel, now: number): Bounds {
  const { level, mark, sentAt, headAt } = found;
  const { granted, answered, fastestMs, refusal } = meter;
  const unused = unusedUnits(meter);
  // GraphQL cost is reported at the end of the execution, after the refund, not at admission.
  const isTimed = mark !== null && mark.cost > 0 && meter.name !== 'cost';
  const sinceMs = Math.max(0, now - (meter.name === 'cost' ? headAt : sentAt));
  // A stated level is rounded. While no earlier response bounds it, its lower end would let a call into a full bucket.
  const counted = (fastestMs === null ? level.highest : level.lowest) - unused;
  const later = isTimed ? Math.max(0, granted - mark.granted) : 0;
  const rate = netRate(meter);
  const isInOrder =
    isTimed &&
    Math.max(mark.inTransit, later - drainRate(meter) * sinceMs) <= burstToleranceCalls * mark.cost;
  const levelAfter = (ms: number): number => Math.max(0, level.highest - rate * ms);
  const jitter = jitterUnits(meter);
  // If the call took nothing from the meter, all calls may have come after it.
  const toCome = isTimed ? later + mark.inTransit : granted - (mark === null ? 0 : answered);
  // A call in order was late itself, or calls before it were later than it.
  const highest = isInOrder
    ? Math.max(
        levelAfter(sinceArrivalMs(meter, found, now)) + later,
        mark.inTransit > 0 ? levelAfter(sinceMs) + toCome + jitter : 0,
      )
    : levelAfter(now - headAt) + toCome + jitter;
  const refusedLevel =
    refusal === null || sentAt > refusal.headAt ? 0 : refusal.level - rate * (now - refusal.at);
  if (mark !== null && mark.granted === granted && mark.inTransit === 0) meter.unstated = 0;
  const peak = notePeak(meter, { stated: levelAfter(now - headAt), sentAt, headAt }, now);
  const accounted = mark === null ? highest : peak + onTheirWay(meter) + jitter;
  const upper = Math.max(Math.min(highest, accounted), refusedLevel) - unused;
  return {
    proved: counted - drainRate(meter) * sinceMs,
    likely: counted - rate * sinceMs + later,
    isInOrder,
    upper: Math.min(meter.limit ?? Infinity, Math.max(upper, isHeldSlower(meter) ? heldAt(meter, now) : 0)),
  };
}

/** Units of which no stated level tells whether the upstream has counted them. */
const onTheirWay = ({ granted, answered, unstated }: Meter): number =>
  Math.max(0, granted - answered + unstated);

/** The peak as of now, with the level that a response states. */
function notePeak(
  meter: Meter,
  { stated, sentAt, headAt }: { readonly stated: number; readonly sentAt: number; readonly headAt: number },
  now: number,
): number {
  const { peak } = meter;
  const before = peak === null || sentAt > peak.headAt ? 0 : peak.level - netRate(meter) * (now - peak.at);
  if (peak === null || stated >= before) meter.peak = { level: stated, at: now, headAt };
  return Math.max(before, stated);
}

/**
 * Minimum time since a calm call arrived, milliseconds. Its arrival was no later than `calmLatenessMs` allows, or than the time of
 * the fastest response leaves for it.
 */
function sinceArrivalMs({ fastestMs }: Meter, { sentAt, headAt }: ReportedLevel, now: number): number {
  const sinceHead = Math.max(0, now - headAt);
  const fastest = fastestMs ?? 0;
  const answering = Math.max(fastest * answeringShare, fastest - calmJitterMs);
  return Math.max(sinceHead, Math.min(now - sentAt - calmLatenessMs, sinceHead + answering));
}

/** True when the stated wait is over a second longer than the cost takes to drain: the bucket is not merely full, but closed. */
const isShut = (meter: Meter, cost: number, waitMs: number): boolean =>
  waitMs > waitGrainMs + cost / drainRate(meter);

/**
 * Moves the level into the bounds. Units that do not drain because the meter rests count as used; they are taken off first.
 */
function move(
  meter: Meter,
  { lower, upper }: { readonly lower: number; readonly upper: number },
  now: number,
): void {
  const most = Math.max(0, Math.min(Math.max(heldAt(meter, now), lower), upper));
  meter.level = Math.min(Math.max(meter.level, lower), most);
  meter.at = now + (most - meter.level) / netRate(meter);
}

/** The level plus the units that would drain if the meter did not rest. */
const heldAt = (meter: Meter, now: number): number => meter.level + netRate(meter) * restMs(meter, now);

/** How a call was refused. */
export interface Refusal {
  /** Units that the call asked for. */
  readonly asked: number;
  /** Stated time until the upstream has room for the call, milliseconds. */
  readonly waitMs: number;
  /** The model had room for the call. */
  readonly hadRoom: boolean;
}

/**
 * The upstream refused a call of this cost. From then on the meter has room for such a call exactly at the stated time: not
 * earlier, and not later either, whatever others are expected to take until then.
 */
export function refused(meter: Meter, { asked, waitMs, hadRoom }: Refusal, now: number): void {
  if (meter.limit === null) return;
  drain(meter, now);
  const cost = Math.min(asked, meter.limit);
  const used = meter.limit - cost;
  if (hadRoom && meter.heardAt !== null && !isShut(meter, cost, waitMs)) {
    noteOthers(meter, Math.max(0, used - meter.level), now - meter.heardAt);
    noteContest(meter, cost, now);
  }
  if (heldAt(meter, now) < used + netRate(meter) * waitMs) {
    meter.level = used;
    meter.at = now + waitMs;
  }
  meter.refusal = { level: meter.level + unusedUnits(meter), at: meter.at, headAt: now };
  meter.heardAt = Math.max(meter.heardAt ?? now, now + waitMs);
}

/** Ends a refusal before its time: makes room for the refused call, whose response will state the true level. */
export function reopen(meter: Meter, now: number): void {
  if (meter.at <= now) return;
  meter.at = now;
  meter.refusal = null;
  if (meter.heardAt !== null && meter.heardAt > now) meter.heardAt = now;
}

// Others

/** Time constants of the estimate, milliseconds: where responses state the level, and where only refusals show others. */
const reportedMemoryMs = 10_000;
const unreportedMemoryMs = 3_000;
/** A sudden rise counts at most as what drains in this time, milliseconds: shown by levels, and by refusals alone. */
const maxReportedRiseMs = 1_000;
const maxUnreportedRiseMs = 10_000;
/** The meter stops being contested after a while without bursts if others take less than this share of what drains. */
const negligibleShare = 0.05;
const contestMemoryMs = 60_000;
/** A contested meter keeps at least the units free that drain in this time, milliseconds. */
const keptDrainMs = 50;
/** Factor on the largest burst so far, because the next one may be larger. */
const burstMargin = 1.25;
/** Factor on the units kept free after another refusal, which shows that they were too few. */
const refusalMargin = 1.5;

/**
 * Notes that the level changed by `change` units more than expected within `sinceMs`, the time since the use of others was last
 * known. A rise shows that they take more, a fall that they take less.
 */
function noteOthers(meter: Meter, change: number, sinceMs: number): void {
  if (sinceMs <= 0) return;
  const rate = drainRate(meter);
  const isReported = meter.fastestMs !== null;
  const rise = Math.min(change, rate * (isReported ? maxReportedRiseMs : maxUnreportedRiseMs));
  const others = meter.others + rise / (sinceMs + (isReported ? reportedMemoryMs : unreportedMemoryMs));
  meter.others = Math.max(0, Math.min(others, rate));
}

/** What one response shows that others took at once. */
interface OthersBurst {
  /** The minimum that others took beyond what was expected, and how much more it may have been (`uncertainty`). */
  readonly units: number;
  readonly uncertainty: number;
  /** Units that the answered call took. */
  readonly cost: number;
}

/** Adjusts what a contested meter keeps free: to the largest burst of others, and to less after a long time without one. */
function noteOthersBurst(meter: Meter, { units, uncertainty, cost }: OthersBurst, now: number): void {
  const { contest } = meter;
  if (contest === null || cost <= 0) return;
  if (units > cost / 2) {
    const largest = Math.max(contest.units, burstMargin * (units + uncertainty) + cost);
    meter.contest = { ...contest, units: largest, at: now };
    return;
  }
  const isOver = now - contest.at > Math.max(contestMemoryMs, meter.windowMs);
  if (!isOver || meter.others >= negligibleShare * drainRate(meter)) return;
  const left = contest.units - cost;
  meter.contest = left > 0 ? { ...contest, units: left, at: now } : null;
}

/** Notes that a call of this cost was refused although the model had room: the meter is contested. */
function noteContest(meter: Meter, cost: number, now: number): void {
  const { units = 0, allowance = 0 } = meter.contest ?? {};
  meter.contest = {
    units: Math.max(refusalMargin * units, units + cost, 2 * cost, keptDrainMs * drainRate(meter)),
    allowance: allowance + 2 * cost,
    at: now,
  };
}
