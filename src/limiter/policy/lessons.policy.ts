/**
 * What settings and responses do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the
 * arithmetic of a single meter is in `meter.policy.ts` and `meter-learning.policy.ts`.
 */
import type { Costs, Feedback, MeterName } from '../../call.ts';
import { markOf, meterOf, meterOfMark, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { meterNames, requestWindows } from './meter-state.policy.ts';
import { learnDocument } from './documents.policy.ts';
import { endPilot, learnFromRefusal } from './in-flight.policy.ts';
import type { BucketSetting, Lesson } from '../limiter.ts';
import {
  calmLatenessMs,
  drain,
  giveUnitsBack,
  markAnswered,
  markUnreported,
  settleUnits,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';
import { learnMeter, refused } from './meter-learning.policy.ts';
import { applySetting } from './meter-quota.policy.ts';
import { followWindows } from './described-windows.policy.ts';
import { keepLog, levelOfLog, logSent } from './window-log.policy.ts';

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

export function applySettings(bucket: Bucket, setting: BucketSetting, now: number): void {
  bucket.learn = setting.learn;
  bucket.probe = setting.probe;
  bucket.maxInFlight = setting.maxInFlightTotal ?? null;
  if (!setting.learn) bucket.learnedInFlight = null;
  followWindows(bucket, setting.meters, now);
  for (const stated of setting.meters) meterOf(bucket, stated.meter, now);
  for (const meter of bucket.meters.values()) {
    const stated = setting.meters.find((one) => one.meter === meter.name) ?? null;
    const counts = stated?.counts ?? null;
    // A level is what it has drained to by now, also where limit and length stay the same.
    if (meter.log === null && counts !== null) drain(meter, now);
    if (meter.log !== null && counts === null) levelOfLog(meter, meter.log, now);
    // A log that is rolling has the times of its sends, one of the clock's windows only their ends: it changes its length as rolling.
    if (meter.log !== null && counts === 'rolling') keepLog(meter, { counts, epochAt: bucket.epochAt }, now);
    // A lower limit cuts the level, and not what was sent: of that some may come back, because the upstream has refused it.
    const sent = meter.level;
    applySetting(meter, { stated, learn: setting.learn }, now);
    keepLog(meter, { counts, epochAt: bucket.epochAt, sent }, now);
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
  markLeaseAnswered(bucket, lease);
  bucket.opened = true;
  noteLateness(bucket, lease, sentAt);
  const seen = { sentAt, headAt, spacing: lease.spacing, closedMs };
  for (const [meter, { cost, granted }] of isFirst ? marked(bucket, lease) : []) {
    logSent(meter, { cost, granted, grantedAt: lease.grantedAt, sentAt, headAt });
  }
  for (const report of feedback.meters) {
    const meter = meterOf(bucket, report.meter, now);
    const mark = markOf(bucket, lease, report.meter);
    learnMeter(meter, { report, mark, seen, learn: bucket.learn }, now);
  }
  const { document } = lease.ticket;
  const points = feedback.requestedCost;
  if (points !== undefined && document !== null) learnDocument(bucket, { document, points }, now);
  if (isFirst && bucket.learn && feedback.refusesConcurrency === true) learnFromRefusal(bucket, now);
  if (!isFirst || closedMs > 0) return;
  for (const [meter, mark] of marked(bucket, lease)) {
    const isReported = feedback.meters.some((one) => one.meter === meter.name && one.level !== null);
    if (!isReported) markUnreported(meter, mark, now);
  }
}

/** The meters of which the lease's call took, and its marks of them. */
function marked(bucket: Bucket, { marks }: Lease): [Meter, MeterMark][] {
  const all: [Meter, MeterMark][] = [];
  for (const [name, mark] of marks) {
    const meter = meterOfMark(bucket, name);
    if (meter !== undefined) all.push([meter, mark]);
  }
  return all;
}

/**
 * A call that left more than `calmLatenessMs` after its grant comes from a replica that lags behind: other calls of that replica,
 * granted even earlier, may still be unsent. So the calls after it count as crowded, however far apart the bucket grants by then.
 */
function noteLateness(bucket: Bucket, { grantedAt }: Lease, sentAt: number): void {
  if (sentAt - grantedAt <= calmLatenessMs) return;
  bucket.crowdedAt = Math.max(bucket.crowdedAt ?? sentAt, sentAt);
}

/** Notes that the lease's call is no longer on its way: the upstream has counted it, or never will. */
function markLeaseAnswered(bucket: Bucket, lease: Lease): void {
  if (lease.answered) return;
  lease.answered = true;
  endPilot(bucket, lease);
  if (lease.spacing !== 'crowded') bucket.unanswered.delete(lease.token);
  for (const [meter, mark] of marked(bucket, lease)) markAnswered(meter, mark);
}

/** Notes on the meters a call whose response stated nothing. If the call arrived upstream, it did so before `at`. */
export function learnUnreported(bucket: Bucket, lease: Lease, at: number): void {
  if (lease.answered) return;
  markLeaseAnswered(bucket, lease);
  for (const [meter, mark] of marked(bucket, lease)) markUnreported(meter, mark, at);
}

/** The call succeeded, but its response could not be read. */
export function applySilence(bucket: Bucket, lease: Lease, now: number): void {
  learnUnreported(bucket, lease, now);
  bucket.opened = true;
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
  else if (closedMs > 0) markLeaseAnswered(bucket, lease);
  else learnUnreported(bucket, lease, now);
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
  const reserved = markOf(bucket, lease, name)?.cost ?? 0;
  const asked = refusedUnits(lesson.feedback) ?? reserved;
  if (asked <= 0) return null;
  const { grantedAt } = lease;
  const isKnown = meter !== undefined && meter.heardAt !== null;
  const isTimed = (lesson.feedback.throttle?.waitMs ?? null) !== null;
  const isNew = grantedAt >= (bucket.closedAt ?? grantedAt) && grantedAt >= (meter?.contest?.at ?? grantedAt);
  return { name, asked, hadRoom: asked <= reserved && isTimed && isKnown && isNew };
}

export interface Spending {
  readonly lease: Lease;
  readonly spent: Costs;
}

/**
 * Corrects the meters once the units that the lease's call has spent are known. A meter of which the call reserved nothing is charged
 * too, if the bucket has it: output tokens are counted only when they have been produced.
 */
export function correct(bucket: Bucket, { lease, spent }: Spending, now: number): void {
  for (const name of meterNames) {
    const units = spent[name];
    const reserved = markOf(bucket, lease, name)?.cost ?? 0;
    const meter = bucket.meters.get(name);
    if (units === undefined || meter === undefined) continue;
    settleUnits(meter, { reserved, spent: units, grantedAt: lease.grantedAt }, now);
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
