/**
 * What settings and responses do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the
 * arithmetic of a single meter is in `meter.policy.ts` and `meter-learning.policy.ts`.
 */
import type { Costs, Feedback, MeterName } from '../../call.ts';
import { meterOf, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { learnDocument } from './documents.policy.ts';
import { learnFromRefusal } from './in-flight.policy.ts';
import type { BucketSetting, Lesson, MeterSetting } from '../limiter.ts';
import {
  applySetting,
  giveUnitsBack,
  markAnswered,
  meterNames,
  requestWindows,
  settleUnits,
  windowNames,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';
import { learnMeter, refused } from './meter-learning.policy.ts';
import { logSent } from './window-log.policy.ts';

/** A lesson with its times on the store's clock. */
export interface TimedLesson {
  readonly feedback: Feedback;
  readonly sentAt: number;
  readonly headAt: number;
}

export const timed = ({ feedback, sentAgoMs, headAgoMs }: Lesson, now: number): TimedLesson => ({
  feedback,
  sentAt: now - sentAgoMs,
  headAt: now - headAgoMs,
});

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
    applySetting(meter, { stated, learn: setting.learn, epochAt: bucket.epochAt }, now);
  }
}

/**
 * What was sent counts for each window of requests, whoever counted it: one that is stated anew goes on with what a window of its length
 * has counted, or else, unless it drains as before, with the longest log of sends, or with the longest window.
 */
function followWindows(bucket: Bucket, settings: readonly MeterSetting[], now: number): void {
  const known = windowNames
    .flatMap((name) => bucket.meters.get(name) ?? [])
    .flatMap((meter) => (meter.limit === null ? [] : { ...meter }))
    .toSorted((a, b) => Number(b.log !== null) - Number(a.log !== null) || b.windowMs - a.windowMs);
  for (const { meter: name, windowMs: ofIt, counts } of settings) {
    const meter = meterOf(bucket, name, now);
    const drainsOn = meter.limit !== null && meter.log === null && counts === undefined;
    const source = known.find((one) => one.windowMs === ofIt) ?? (drainsOn ? undefined : known[0]);
    if (source === undefined || !windowNames.includes(name)) continue;
    const { windowMs, log, level, at } = source;
    if (meter.limit === null || meter.windowMs !== ofIt) Object.assign(meter, { windowMs, log, level, at });
  }
}

/** What a response taught. `closedMs`: the response refused its call until so many milliseconds after it; absent = no refusal. */
export interface Answered {
  readonly lease: Lease;
  readonly lesson: TimedLesson;
  readonly closedMs?: number;
}

export function applyLesson(bucket: Bucket, { lease, lesson, closedMs = 0 }: Answered, now: number): void {
  const { feedback, sentAt, headAt } = lesson;
  const isFirst = !lease.answered;
  markLeaseAnswered(bucket, lease, feedback.meters);
  bucket.opened = true;
  for (const [meter, { cost, granted }] of isFirst ? marked(bucket, lease) : []) {
    const isOfFirst = meter.limit !== null && granted <= meter.limit;
    logSent(meter, { cost, isFirst: isOfFirst, grantedAt: lease.grantedAt, sentAt, headAt });
  }
  for (const report of feedback.meters) {
    const meter = meterOf(bucket, report.meter, now);
    const mark = lease.marks.get(report.meter) ?? null;
    learnMeter(meter, { report, mark, sentAt, headAt, closedMs, learn: bucket.learn }, now);
  }
  const { document } = lease.ticket;
  const points = feedback.requestedCost;
  if (points !== undefined && document !== null) learnDocument(bucket, { document, points }, now);
  if (isFirst && bucket.learn && feedback.refusesConcurrency === true) learnFromRefusal(bucket, now);
}

/** The meters of which the lease's call took, and its marks of them. */
const marked = (bucket: Bucket, { marks }: Lease): [Meter, MeterMark][] =>
  [...marks].flatMap(([name, mark]) => {
    const meter = bucket.meters.get(name);
    return meter === undefined ? [] : [[meter, mark]];
  });

/** Notes that the lease's call is no longer on its way: the upstream has counted it, or never will. `stated`: what its response says. */
export function markLeaseAnswered(bucket: Bucket, lease: Lease, stated: Feedback['meters'] = []): void {
  if (lease.answered) return;
  lease.answered = true;
  for (const [meter, mark] of marked(bucket, lease)) {
    const isStated = stated.some(({ meter: name, level }) => name === meter.name && level !== null);
    markAnswered(meter, mark, isStated);
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
  named === null || named === name || (named === 'requests' && requestWindows.includes(name));

/** A refusal by the upstream. `closedMs`: nobody may send for this long; 0 = the refusal concerns this call alone. */
export interface Throttled {
  readonly lease: Lease;
  readonly lesson: TimedLesson | null;
  readonly closedMs: number;
}

export function applyThrottle(bucket: Bucket, { lease, lesson, closedMs }: Throttled, now: number): void {
  const named = lesson === null ? null : refusingMeter(lesson);
  const { grantedAt } = lease;
  for (const [meter, mark] of marked(bucket, lease)) {
    // Only the bucket's own refusal proves that nothing was counted; a call without a response may have run.
    if (closedMs > 0 && concerns(named, meter.name)) giveUnitsBack(meter, { mark, grantedAt }, now);
  }
  const refusal = lesson === null ? null : refusalOf(bucket, lease, lesson);
  if (lesson !== null) applyLesson(bucket, { lease, lesson, closedMs }, now);
  else markLeaseAnswered(bucket, lease);
  if (closedMs <= 0) return;
  if (refusal !== null) {
    const { name, asked, hadRoom } = refusal;
    refused(meterOf(bucket, name, now), { asked, waitMs: closedMs, hadRoom }, now);
  }
  bucket.closedUntil = Math.max(bucket.closedUntil ?? now, now + closedMs);
  bucket.closedAt = now;
}

/** The meter for want of which a call was refused; `null` = the response names none. */
function refusingMeter({ feedback: { throttle } }: TimedLesson): MeterName | null {
  return throttle?.kind === 'rate' ? throttle.meter : null;
}

/**
 * Units that the refused call needed of the meter that refused it, and whether the model had room for them when the call was
 * granted (`hadRoom`). If it had, others must have used the quota. `hadRoom` is false when
 * - the call needed more than was reserved for it,
 * - no response has stated a level of the meter yet,
 * - the upstream does not state how long it refuses: then the wait before was a guess too, and may have been too short,
 * - the call was granted before an earlier refusal was known: both refusals have the same cause.
 */
function refusalOf(
  bucket: Bucket,
  lease: Lease,
  lesson: TimedLesson,
): { readonly name: MeterName; readonly asked: number; readonly hadRoom: boolean } | null {
  const name = refusingMeter(lesson);
  if (name === null) return null;
  const meter = bucket.meters.get(name);
  const reserved = lease.marks.get(name)?.cost ?? 0;
  const asked = refusedUnits(lesson.feedback) ?? reserved;
  if (asked <= 0) return null;
  const { grantedAt } = lease;
  const isKnown = meter !== undefined && meter.heardAt !== null;
  const isTimed = (lesson.feedback.throttle?.waitMs ?? null) !== null;
  const isNew = grantedAt >= (bucket.closedAt ?? grantedAt) && grantedAt >= (meter?.contest?.at ?? grantedAt);
  return { name, asked, hadRoom: asked <= reserved && isTimed && isKnown && isNew };
}

/**
 * Corrects the meters once the units that the lease's call has spent are known. A meter of which the call reserved nothing is charged
 * too, if the bucket has it: output tokens are counted only when they have been produced.
 */
export function correct(bucket: Bucket, { marks, grantedAt }: Lease, spent: Costs, now: number): void {
  for (const name of meterNames) {
    const units = spent[name];
    const meter = bucket.meters.get(name);
    if (units === undefined || meter === undefined) continue;
    settleUnits(meter, { reserved: marks.get(name)?.cost ?? 0, spent: units, grantedAt }, now);
  }
}

/**
 * The grant was not used: the meters get their units back, but the lane keeps the service cost that the grant added to its start
 * (ADR 20). Lanes that began to wait after the grant took their start from it; undoing it would let this lane go ahead of them again
 * with each returned grant.
 */
export function giveLeaseUnitsBack(bucket: Bucket, lease: Lease, now: number): void {
  const { grantedAt } = lease;
  for (const [meter, mark] of marked(bucket, lease)) giveUnitsBack(meter, { mark, grantedAt }, now);
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
