/**
 * What settings and answers do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the
 * arithmetic of a single meter is in `meter.policy.ts` and `meter-learning.policy.ts`.
 */
import type { Costs, Feedback, MeterName } from '../../call.ts';
import { meterOf, requestWindows, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { learnDocument } from './documents.policy.ts';
import type { BucketSetting, Lesson } from '../limiter.ts';
import { calmLatenessMs, giveUnitsBack, markAnswered, markUntold, refund } from './meter.policy.ts';
import { learnMeter, refused } from './meter-learning.policy.ts';
import { applySetting } from './meter-quota.policy.ts';

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
  for (const stated of setting.meters) meterOf(bucket, stated.meter, now);
  for (const meter of bucket.meters.values()) {
    const stated = setting.meters.find((one) => one.meter === meter.name) ?? null;
    applySetting(meter, stated, setting.learn, now);
  }
}

export function applyLesson(bucket: Bucket, lease: Lease, lesson: TimedLesson, now: number): void {
  learnFrom(bucket, lease, lesson, { closedMs: 0, now });
}

function learnFrom(
  bucket: Bucket,
  lease: Lease,
  { feedback, sentAt, headAt }: TimedLesson,
  { closedMs, now }: { readonly closedMs: number; readonly now: number },
): void {
  const isFirst = !lease.answered;
  answer(bucket, lease);
  bucket.opened = true;
  noteLateness(bucket, lease, sentAt);
  const seen = { sentAt, headAt, quiet: lease.quiet, calm: lease.calm, closedMs };
  for (const report of feedback.meters) {
    const meter = meterOf(bucket, report.meter, now);
    const mark = lease.marks.get(report.meter) ?? null;
    learnMeter(meter, report, { mark, seen }, { learn: bucket.learn, now });
  }
  if (feedback.requestedCost !== undefined) learnDocument(bucket, lease, feedback.requestedCost, now);
  if (!isFirst || closedMs > 0) return;
  for (const [name, mark] of lease.marks) {
    const isTold = feedback.meters.some(({ meter, level }) => meter === name && level !== null);
    if (!isTold) markUntold(meterOf(bucket, name, now), mark, now);
  }
}

/**
 * A call that left so long after its grant comes from a replica with more to send than it can: others of its calls, granted
 * longer ago, may have to leave yet. Calls crowd there, however quietly the bucket grants by then.
 */
function noteLateness(bucket: Bucket, { grantedAt }: Lease, sentAt: number): void {
  if (sentAt - grantedAt <= calmLatenessMs) return;
  bucket.crowdedAt = Math.max(bucket.crowdedAt ?? sentAt, sentAt);
}

/** The lease's call is no longer on its way to the upstream's counters. */
function answer(bucket: Bucket, lease: Lease): void {
  if (lease.answered) return;
  lease.answered = true;
  if (lease.quiet) bucket.unanswered.delete(lease.token);
  for (const [name, mark] of lease.marks) {
    const meter = bucket.meters.get(name);
    if (meter !== undefined) markAnswered(meter, mark);
  }
}

/** The same, and it has told nothing. If it arrived, it did before `at`. */
export function answerUntold(bucket: Bucket, lease: Lease, at: number): void {
  if (lease.answered) return;
  answer(bucket, lease);
  for (const [name, mark] of lease.marks) {
    const meter = bucket.meters.get(name);
    if (meter !== undefined) markUntold(meter, mark, at);
  }
}

/** The call ended well, and nobody could read what its answer tells. */
export function applySilence(bucket: Bucket, lease: Lease, now: number): void {
  answerUntold(bucket, lease, now);
  bucket.opened = true;
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
  const refusal = named === null ? null : refusalOf(bucket, lease, named, lesson);
  if (lesson !== null) learnFrom(bucket, lease, lesson, { closedMs: closeMs, now });
  else if (closeMs > 0) answer(bucket, lease);
  else answerUntold(bucket, lease, now);
  if (closeMs <= 0) return;
  if (named !== null && refusal !== null) {
    const { asked, hadRoom } = refusal;
    refused(meterOf(bucket, named, now), asked, { waitMs: closeMs, hadRoom }, now);
  }
  bucket.closedUntil = Math.max(bucket.closedUntil ?? now, now + closeMs);
  bucket.closedAt = now;
}

/**
 * What the refused call asked of the meter that refused it, and whether the model had room for that when it was granted. It
 * cannot have had where the call asks for more than was reserved, where nobody has told anything of the meter, where
 * the upstream does not say for how long it refuses (the last wait was a guess as well, and too short), and where the call
 * was granted before another refusal was known: the same thing was in the way of both.
 */
function refusalOf(
  bucket: Bucket,
  lease: Lease,
  name: MeterName,
  lesson: TimedLesson | null,
): { readonly asked: number; readonly hadRoom: boolean } | null {
  const meter = bucket.meters.get(name);
  const reserved = lease.marks.get(name)?.cost ?? 0;
  const asked = (lesson === null ? null : refusedUnits(lesson.feedback)) ?? reserved;
  if (asked <= 0) return null;
  const { grantedAt } = lease;
  const isKnown = meter !== undefined && meter.heardAt !== null;
  const isTimed = (lesson?.feedback.throttle?.waitMs ?? null) !== null;
  const isNew = grantedAt >= (bucket.closedAt ?? grantedAt) && grantedAt >= (meter?.contest?.at ?? grantedAt);
  return { asked, hadRoom: asked <= reserved && isTimed && isKnown && isNew };
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
  answer(bucket, lease);
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
