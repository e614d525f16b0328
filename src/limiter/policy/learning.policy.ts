/**
 * What settings and responses do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the arithmetic of a single
 * meter, of which no response says anything, is in `meter.policy.ts`.
 *
 * Only responses show the true level, and each of them describes the instant at which *its* call reached the upstream, somewhere
 * between our sending it and its response's head. So a response does not give a level but bounds, and the model is moved only as
 * far as the bounds demand: a single late or reordered response can neither open the bucket too far nor close it for nothing.
 *
 * What others take, who use the same quota without Sluice, is a steady stream and bursts. The stream is the rise of the levels in
 * responses that our own calls do not explain; it reduces the rate at which the meter drains. A burst shows when a call is refused that
 * had room: from then on the meter is contested, and keeps as many units free as others took at once.
 *
 * Invariant: without a refusal nothing is kept free; a single burst does not count as a stream. Pure; `now` is an argument.
 */
import type { Costs, Feedback, MeterName, MeterReport } from '../../call.ts';
import type { BucketSetting, MeterSetting } from '../limiter.ts';
import {
  type Bucket,
  type Lane,
  endPilot,
  learnFromRefusal,
  type Lease,
  ensureMeter,
  type TimedLesson,
  learnDocument,
} from './bucket-state.policy.ts';
import type { Meter, MeterMark } from './meter.policy.ts';
import * as meters from './meter.policy.ts';

/** True when these are the settings that the bucket has. */
export function isUnder(bucket: Bucket, { meters, learn, maxInFlightTotal }: BucketSetting): boolean {
  if (bucket.learn !== learn || bucket.maxInFlight !== (maxInFlightTotal ?? null)) return false;
  let stated = 0;
  for (const meter of bucket.meters.values()) if (meter.stated !== null) stated += 1;
  if (stated !== meters.length) return false;
  return meters.every(({ meter: name, limit, windowMs, counts }) => {
    const meter = bucket.meters.get(name);
    const known = meter?.stated;
    return known?.limit === limit && known.windowMs === windowMs && meter?.log?.counts === counts;
  });
}

export function applySettings(bucket: Bucket, setting: BucketSetting, now: number): void {
  bucket.probe = setting.probe;
  if (isUnder(bucket, setting)) return;
  bucket.learn = setting.learn;
  bucket.maxInFlight = setting.maxInFlightTotal ?? null;
  if (!setting.learn) bucket.learnedInFlight = null;
  followWindows(bucket, setting.meters, now);
  for (const meter of bucket.meters.values()) {
    const stated = setting.meters.find((one) => one.meter === meter.name) ?? null;
    meters.applySetting(meter, stated, setting.learn, now);
  }
}

/**
 * What was sent counts for each window of requests, whoever counted it: one that is stated anew goes on with what a window of its length
 * has counted, or else, unless it drains as before, with the longest log of sends, or with the longest window.
 */
function followWindows(bucket: Bucket, settings: readonly MeterSetting[], now: number): void {
  // Each drains by its own rate until now: that of the meter which goes on with its level is another one.
  for (const meter of bucket.meters.values()) meters.drain(meter, now);
  const known = meters.windowNames
    .flatMap((name) => bucket.meters.get(name) ?? [])
    .flatMap((meter) => (meter.limit === null ? [] : { ...meter }))
    .toSorted((a, b) => Number(b.log !== null) - Number(a.log !== null) || b.windowMs - a.windowMs);
  for (const { meter: name, windowMs: ofIt, counts } of settings) {
    const meter = ensureMeter(bucket, name, now);
    const drainsOn = meter.limit !== null && meter.log === null && counts === undefined;
    const source = known.find((one) => one.windowMs === ofIt) ?? (drainsOn ? undefined : known[0]);
    if (source === undefined || !meters.windowNames.includes(name)) continue;
    const { windowMs, log, level, at } = source;
    if (meter.limit === null || meter.windowMs !== ofIt) Object.assign(meter, { windowMs, log, level, at });
  }
}

/** @param closedMs the response refused its call until so many milliseconds after it; 0 = no refusal */
export function applyLesson(
  bucket: Bucket,
  lease: Lease,
  { feedback, sentAt, headAt }: TimedLesson,
  now: number,
  closedMs = 0,
): void {
  const isFirst = !lease.answered;
  markLeaseAnswered(bucket, lease, feedback.meters);
  bucket.opened = true;
  for (const [name, { cost, granted }] of isFirst ? lease.marks : []) {
    const meter = ensureMeter(bucket, name, now);
    if (meter.log === null) continue;
    const isOfFirst = meter.limit !== null && granted <= meter.limit;
    meters.logSent(meter, { cost, isFirst: isOfFirst, grantedAt: lease.grantedAt, sentAt, headAt });
  }
  for (const report of feedback.meters) {
    const meter = ensureMeter(bucket, report.meter, now);
    const mark = lease.marks.get(report.meter) ?? null;
    learnMeter(meter, { report, mark, sentAt, headAt, closedMs, learn: bucket.learn }, now);
  }
  const { document } = lease.ticket;
  const points = feedback.requestedCost;
  if (points !== undefined && document !== null) learnDocument(bucket, document, points);
  if (isFirst && bucket.learn && feedback.refusesConcurrency === true) learnFromRefusal(bucket, now);
}

/** Notes that the lease's call is no longer on its way: the upstream has counted it, or never will. `stated`: what its response says. */
export function markLeaseAnswered(bucket: Bucket, lease: Lease, stated: Feedback['meters'] = []): void {
  if (lease.answered) return;
  lease.answered = true;
  endPilot(bucket, lease);
  for (const [name, mark] of lease.marks) {
    const isStated = stated.some(({ meter, level }) => meter === name && level !== null);
    meters.markAnswered(ensureMeter(bucket, name, lease.grantedAt), mark, isStated);
  }
}

const tokenMeters: readonly MeterName[] = ['tokens', 'tokens_day', 'input_tokens', 'output_tokens'];

/**
 * Units of the refusing meter that the refused call needed, as the upstream states them; `null` = the upstream does not state
 * them. The units that were reserved may have been a guess.
 */
export function refusedUnits({ throttle, requestedCost, requestedTokens }: Feedback): number | null {
  if (throttle?.kind !== 'rate') return null;
  if (throttle.meter === 'cost') return requestedCost ?? null;
  if (throttle.meter !== null && tokenMeters.includes(throttle.meter)) return requestedTokens ?? null;
  return null;
}

/** True when the meter `name` did not count a call that was refused for want of `named` (`null` = the refusal names no meter). */
const concerns = (named: MeterName | null, name: MeterName): boolean =>
  named === null || named === name || (named === 'requests' && meters.requestWindows.includes(name));

/**
 * A refusal by the upstream.
 * @param closedMs nobody may send for this long; 0 = the refusal concerns this call alone
 */
export function applyThrottle(
  bucket: Bucket,
  lease: Lease,
  lesson: TimedLesson | null,
  closedMs: number,
  now: number,
): void {
  const { grantedAt } = lease;
  const throttle = lesson?.feedback.throttle;
  // The meter for want of which the call was refused; `null` = the response names none.
  const named = throttle?.kind === 'rate' ? throttle.meter : null;
  // Only the bucket's own refusal proves that nothing was counted; a call without a response may have run.
  if (closedMs > 0)
    for (const [name, mark] of lease.marks)
      if (concerns(named, name)) meters.giveUnitsBack(ensureMeter(bucket, name, now), mark, grantedAt, now);
  const reserved = named === null ? 0 : (lease.marks.get(named)?.cost ?? 0);
  const asked = (lesson === null ? null : refusedUnits(lesson.feedback)) ?? reserved;
  const hadRoom =
    asked <= reserved && (throttle?.waitMs ?? null) !== null && isNews(bucket, named, grantedAt);
  if (lesson !== null) applyLesson(bucket, lease, lesson, now, closedMs);
  else markLeaseAnswered(bucket, lease);
  if (closedMs <= 0) return;
  if (named !== null && asked > 0) refused(ensureMeter(bucket, named, now), asked, closedMs, hadRoom, now);
  closeFor(bucket, closedMs, now);
}

/** Nobody may send for so long. */
export function closeFor(bucket: Bucket, ms: number, now: number): void {
  bucket.closedUntil = Math.max(bucket.closedUntil ?? now, now + ms);
  bucket.closedAt = now;
}

/**
 * Whether a refusal of a call for which the model had room when it was granted shows that others have used the quota. It does not when
 * - the call needed more than was reserved for it,
 * - no response has stated a level of the meter yet,
 * - the upstream does not state how long it refuses: then the wait before was a guess too, and may have been too short,
 * - the call was granted before an earlier refusal was known: both refusals have the same cause.
 */
function isNews({ meters, closedAt }: Bucket, name: MeterName | null, grantedAt: number): boolean {
  const meter = name === null ? undefined : meters.get(name);
  if (meter === undefined || meter.heardAt === null) return false;
  return grantedAt >= (closedAt ?? grantedAt) && grantedAt >= (meter.contest?.at ?? grantedAt);
}

/**
 * Corrects the meters once the units that the lease's call has spent are known. A meter of which the call reserved nothing is charged
 * too, if the bucket has it: output tokens are counted only when they have been produced.
 */
export function correct(bucket: Bucket, { marks, grantedAt }: Lease, spent: Costs, now: number): void {
  for (const meter of bucket.meters.values()) {
    const units = spent[meter.name];
    if (units !== undefined)
      meters.settleUnits(meter, marks.get(meter.name)?.cost ?? 0, units, grantedAt, now);
  }
}

/**
 * The grant was not used: the meters get their units back, but the lane keeps the service cost that the grant added to its start
 * (ADR 20). Lanes that began to wait after the grant took their start from it; undoing it would let this lane go ahead of them again
 * with each returned grant.
 */
export function giveLeaseUnitsBack(bucket: Bucket, lease: Lease, now: number): void {
  for (const [name, mark] of lease.marks)
    meters.giveUnitsBack(ensureMeter(bucket, name, now), mark, lease.grantedAt, now);
  markLeaseAnswered(bucket, lease);
}

/** By this share of the difference one call changes the mean time in flight of its lane and bucket: when it was shorter, when it was longer. */
const shorterServiceShare = 0.5;
const longerServiceShare = 0.2;

/**
 * Updates the mean service time of a lane or a bucket. A longer time changes the mean slowly, also when it is the first: forecasts, and so
 * refusals, rest on the mean, and one slow response of a service that has just started would refuse a whole lane of calls that have
 * enough time.
 */
export function noteService(served: Pick<Lane | Bucket, 'serviceMs'>, ms: number): void {
  served.serviceMs +=
    (ms - served.serviceMs) * (ms < served.serviceMs ? shorterServiceShare : longerServiceShare);
}

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
  meters.drain(meter, now);
  if (limit > 0 && (meter.reported === null || sentAt >= meter.reported.sentAt)) {
    const quota = { limit, windowMs: windowMs !== null && windowMs > 0 ? windowMs : null, sentAt };
    meters.applyReport(meter, quota, leftMs, learn, now);
  }
  if (leftMs !== null) meters.logStatedEnd(meter, { sentAt, headAt }, leftMs);
  if (level === null || meter.limit === null) return;
  if (meter.log !== null) return meters.logReported(meter, level.lowest - meters.unusedUnits(meter), now);
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
  move(meter, lower, Math.max(proved, upper), now);
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
  if (cost > 0) noteBurst(meter, units, level.highest - level.lowest, cost, now);
}

/**
 * Bounds of the level now, under the quota in force.
 * `proved`: if the call arrived as soon as it was sent, and no call granted later was counted yet.
 * `likely`: with the calls granted later: if calls arrive in the order in which they are sent.
 * `isInOrder`: no call was sent so shortly before or after this one that either may have overtaken the other.
 * `upper`: if the call arrived as late as its response allows, and before every call that it may have overtaken.
 */
function levelBounds(meter: Meter, found: ReportedLevel, now: number) {
  const { level, mark, sentAt, headAt } = found;
  const { granted, answered, fastestMs, refusal } = meter;
  const unused = meters.unusedUnits(meter);
  // GraphQL cost is reported at the end of the execution, after the refund, not at admission.
  const isTimed = mark !== null && mark.cost > 0 && meter.name !== 'cost';
  const sinceMs = Math.max(0, now - (meter.name === 'cost' ? headAt : sentAt));
  // A stated level is rounded. While no earlier response bounds it, its lower end would let a call into a full bucket.
  const counted = (fastestMs === null ? level.highest : level.lowest) - unused;
  const later = isTimed ? Math.max(0, granted - mark.granted) : 0;
  const rate = meters.netRate(meter);
  const isInOrder =
    isTimed &&
    Math.max(mark.inTransit, later - meters.drainRate(meter) * sinceMs) <= burstToleranceCalls * mark.cost;
  const levelAfter = (ms: number): number => Math.max(0, level.highest - rate * ms);
  const jitter = meters.jitterUnits(meter);
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
  const peak = notePeak(meter, levelAfter(now - headAt), found, now);
  const accounted = mark === null ? highest : peak + onTheirWay(meter) + jitter;
  const upper = Math.max(Math.min(highest, accounted), refusedLevel) - unused;
  return {
    proved: counted - meters.drainRate(meter) * sinceMs,
    likely: counted - rate * sinceMs + later,
    isInOrder,
    upper: Math.min(
      meter.limit ?? Infinity,
      Math.max(upper, meters.isHeldSlower(meter) ? heldAt(meter, now) : 0),
    ),
  };
}

/** Units of which no stated level tells whether the upstream has counted them. */
const onTheirWay = ({ granted, answered, unstated }: Meter): number =>
  Math.max(0, granted - answered + unstated);

/** The peak as of now, with the level that a response states. */
function notePeak(meter: Meter, stated: number, { sentAt, headAt }: ReportedLevel, now: number): number {
  const { peak } = meter;
  const before =
    peak === null || sentAt > peak.headAt ? 0 : peak.level - meters.netRate(meter) * (now - peak.at);
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
  return Math.max(sinceHead, Math.min(now - sentAt - meters.calmLatenessMs, sinceHead + answering));
}

/** True when the stated wait is over a second longer than the cost takes to drain: the bucket is not merely full, but closed. */
const isShut = (meter: Meter, cost: number, waitMs: number): boolean =>
  waitMs > waitGrainMs + cost / meters.drainRate(meter);

/**
 * Moves the level into the bounds. Units that do not drain because the meter rests count as used; they are taken off first.
 */
function move(meter: Meter, lower: number, upper: number, now: number): void {
  const most = Math.max(0, Math.min(Math.max(heldAt(meter, now), lower), upper));
  meter.level = Math.min(Math.max(meter.level, lower), most);
  meter.at = now + (most - meter.level) / meters.netRate(meter);
}

/** The level plus the units that would drain if the meter did not rest. */
const heldAt = (meter: Meter, now: number): number =>
  meter.level + meters.netRate(meter) * meters.restMs(meter, now);

/**
 * The upstream refused a call of this cost. From then on the meter has room for such a call exactly at the stated time: not
 * earlier, and not later either, whatever others are expected to take until then.
 * @param asked units that the call asked for
 * @param waitMs stated time until the upstream has room for the call, milliseconds
 * @param hadRoom the model had room for the call
 */
function refused(meter: Meter, asked: number, waitMs: number, hadRoom: boolean, now: number): void {
  if (meter.limit === null) return;
  meters.drain(meter, now);
  const cost = Math.min(asked, meter.limit);
  const used = meter.limit - cost;
  if (hadRoom && meter.heardAt !== null && !isShut(meter, cost, waitMs)) {
    noteOthers(meter, Math.max(0, used - meter.level), now - meter.heardAt);
    noteContest(meter, cost, now);
  }
  if (heldAt(meter, now) < used + meters.netRate(meter) * waitMs) {
    meter.level = used;
    meter.at = now + waitMs;
  }
  meter.refusal = { level: meter.level + meters.unusedUnits(meter), at: meter.at, headAt: now };
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
  const rate = meters.drainRate(meter);
  const isReported = meter.fastestMs !== null;
  const rise = Math.min(change, rate * (isReported ? maxReportedRiseMs : maxUnreportedRiseMs));
  const others = meter.others + rise / (sinceMs + (isReported ? reportedMemoryMs : unreportedMemoryMs));
  meter.others = Math.max(0, Math.min(others, rate));
}

/**
 * Adjusts what a contested meter keeps free to the largest burst of others, and to less after a long time without one.
 * @param units the minimum beyond what was expected that the response to a call of this cost shows that others took at once
 * @param uncertainty how much more it may have been
 */
function noteBurst(meter: Meter, units: number, uncertainty: number, cost: number, now: number): void {
  const { contest } = meter;
  if (contest === null) return;
  if (units > cost / 2) {
    const largest = Math.max(contest.units, burstMargin * (units + uncertainty) + cost);
    meter.contest = { ...contest, units: largest, at: now };
  } else if (
    now - contest.at > Math.max(contestMemoryMs, meter.windowMs) &&
    meter.others < negligibleShare * meters.drainRate(meter)
  ) {
    const left = contest.units - cost;
    meter.contest = left > 0 ? { ...contest, units: left, at: now } : null;
  }
}

/** Notes that a call of this cost was refused although the model had room: the meter is contested. */
function noteContest(meter: Meter, cost: number, now: number): void {
  const { units = 0, allowance = 0 } = meter.contest ?? {};
  meter.contest = {
    units: Math.max(refusalMargin * units, units + cost, 2 * cost, keptDrainMs * meters.drainRate(meter)),
    allowance: allowance + 2 * cost,
    at: now,
  };
}
