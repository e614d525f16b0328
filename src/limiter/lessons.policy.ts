/**
 * What settings and answers do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the
 * arithmetic of a single meter is in `meter.policy.ts` and `meter-learning.policy.ts`.
 */
import type { Costs, Feedback, MeterName } from '../call.ts';
import { meterOf, requestWindows, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { learnDocument } from './documents.policy.ts';
import type { BucketSetting } from './limiter.ts';
import { giveUnitsBack, markAnswered, refund } from './meter.policy.ts';
import { learnMeter, refused } from './meter-learning.policy.ts';
import { applySetting } from './meter-quota.policy.ts';

/** A lesson with its times on the store's clock. */
export interface TimedLesson {
  readonly feedback: Feedback;
  readonly sentAt: number;
  readonly headAt: number;
}

export function applySettings(bucket: Bucket, setting: BucketSetting, now: number): void {
  bucket.learn = setting.learn;
  bucket.probe = setting.probe;
  for (const stated of setting.meters) meterOf(bucket, stated.meter, now);
  for (const meter of bucket.meters.values()) {
    const stated = setting.meters.find((one) => one.meter === meter.name) ?? null;
    applySetting(meter, stated, setting.learn, now);
  }
}

export function applyLesson(bucket: Bucket, lease: Lease, lesson: TimedLesson, now: number): void {
  answer(bucket, lease, now);
  bucket.opened = true;
  const seen = { sentAt: lesson.sentAt, headAt: lesson.headAt, quiet: lease.quiet, calm: lease.calm };
  for (const report of lesson.feedback.meters) {
    const meter = meterOf(bucket, report.meter, now);
    const mark = lease.marks.get(report.meter) ?? null;
    learnMeter(meter, report, { mark, seen }, { learn: bucket.learn, now });
  }
  const { requestedCost } = lesson.feedback;
  if (requestedCost !== undefined) learnDocument(bucket, lease, requestedCost, now);
}

/** The lease's call is no longer on its way to the upstream's counters. */
export function answer(bucket: Bucket, lease: Lease, now: number): void {
  if (lease.answered) return;
  lease.answered = true;
  if (lease.quiet) bucket.unanswered.delete(lease.token);
  for (const [name, mark] of lease.marks) markAnswered(meterOf(bucket, name, now), mark);
}

/**
 * What the upstream says that the refused call asked of the meter that refused it, units; `null`: it does not say. What was
 * reserved may have been a guess.
 */
export function refusedUnits({ throttle, requestedCost, requestedTokens }: Feedback): number | null {
  if (throttle?.kind !== 'rate') return null;
  if (throttle.meter === 'cost') return requestedCost ?? null;
  if (throttle.meter === 'tokens' || throttle.meter === 'tokens_day') return requestedTokens ?? null;
  return null;
}

/** A refusal for want of `named` (`null` = of whatever): the meters that did not count the call. */
const concerns = (named: MeterName | null, name: MeterName): boolean =>
  named === null || named === name || (named === 'requests' && requestWindows.includes(name));

export function applyThrottle(
  bucket: Bucket,
  lease: Lease,
  closeMs: number,
  lesson: TimedLesson | null,
  now: number,
): void {
  const throttle = lesson?.feedback.throttle ?? null;
  const named = throttle?.kind === 'rate' ? throttle.meter : null;
  for (const [name, mark] of lease.marks) {
    const meter = meterOf(bucket, name, now);
    // Only the bucket's own refusal proves that nothing was counted; a call without an answer may have run.
    if (closeMs > 0 && concerns(named, name)) {
      giveUnitsBack(meter, mark, lease.grantedAt, now);
    }
  }
  if (lesson !== null) applyLesson(bucket, lease, lesson, now);
  else answer(bucket, lease, now);
  if (closeMs <= 0) return;
  if (named !== null) {
    const reserved = lease.marks.get(named)?.cost ?? 0;
    const asked = (lesson === null ? null : refusedUnits(lesson.feedback)) ?? reserved;
    // A call that asks for more than was reserved may be refused without anybody else's doing.
    const isFirst = bucket.closedAt === null || lease.grantedAt >= bucket.closedAt;
    const surprising = isFirst && asked <= reserved;
    if (asked > 0) refused(meterOf(bucket, named, now), asked, { waitMs: closeMs, surprising }, now);
  }
  bucket.closedUntil = Math.max(bucket.closedUntil ?? now, now + closeMs);
  bucket.closedAt = now;
}

export function correct(bucket: Bucket, lease: Lease, spent: Costs, now: number): void {
  for (const [name, mark] of lease.marks) {
    const units = spent[name];
    if (units !== undefined) refund(meterOf(bucket, name, now), mark.cost - units, now);
  }
}

/**
 * The grant was not used: its units come back, its turn does not. Whoever began to wait meanwhile stands behind that turn,
 * and would stand behind one more for each grant that comes back.
 */
export function giveBack(bucket: Bucket, lease: Lease, now: number): void {
  answer(bucket, lease, now);
  for (const [name, mark] of lease.marks) {
    giveUnitsBack(meterOf(bucket, name, now), mark, lease.grantedAt, now);
  }
}

/**
 * Long times are believed slowly, also the first: calls are refused by the forecast that rests on it, and one slow answer
 * of a service that has just started would refuse a whole line that has time enough.
 */
export function noteService(lane: Lane, ms: number): void {
  lane.serviceMs += (ms - lane.serviceMs) * (ms < lane.serviceMs ? 0.5 : 0.2);
}
