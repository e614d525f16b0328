/**
 * What settings and answers do to the meters of a bucket. Part of the specification in `scheduler.policy.ts`; the
 * arithmetic of a single meter is in `meter.policy.ts` and `meter-learning.policy.ts`.
 */
import type { Costs, Feedback, MeterName } from '../../call.ts';
import { meterOf, type Bucket, type Lane, type Lease } from './bucket-state.policy.ts';
import { meterNames, requestWindows } from './meter-names.policy.ts';
import { learnDocument } from './documents.policy.ts';
import { endPilot } from './first-calls.policy.ts';
import type { BucketSetting, Lesson } from '../limiter.ts';
import { calmLatenessMs, giveUnitsBack, markAnswered, markUnreported, settleUnits } from './meter.policy.ts';
import { learnMeter, refused } from './meter-learning.policy.ts';
import { applySetting } from './meter-quota.policy.ts';
import { keepLog, logSent } from './window-log.policy.ts';

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
    applySetting(meter, { stated, learn: setting.learn }, now);
    keepLog(meter, { counts: stated?.counts ?? null, epochAt: bucket.epochAt }, now);
  }
}

/** What an answer taught. `closedMs`: its call was refused until so long after it; left out, it was not. */
export interface Answered {
  readonly lease: Lease;
  readonly lesson: TimedLesson;
  readonly closedMs?: number;
}

export function applyLesson(bucket: Bucket, { lease, lesson, closedMs = 0 }: Answered, now: number): void {
  const { feedback, sentAt, headAt } = lesson;
  const isFirst = !lease.answered;
  answer(bucket, lease);
  bucket.opened = true;
  noteLateness(bucket, lease, sentAt);
  const seen = { sentAt, headAt, spacing: lease.spacing, closedMs };
  for (const [name, { granted }] of isFirst ? lease.marks : []) {
    logSent(meterOf(bucket, name, now), { granted, grantedAt: lease.grantedAt, sentAt, headAt });
  }
  for (const report of feedback.meters) {
    const meter = meterOf(bucket, report.meter, now);
    const mark = lease.marks.get(report.meter) ?? null;
    learnMeter(meter, { report, mark, seen, learn: bucket.learn }, now);
  }
  const { document } = lease.ticket;
  const points = feedback.requestedCost;
  if (points !== undefined && document !== null) learnDocument(bucket, { document, points }, now);
  if (!isFirst || closedMs > 0) return;
  for (const [name, mark] of lease.marks) {
    const isReported = feedback.meters.some(({ meter, level }) => meter === name && level !== null);
    if (!isReported) markUnreported(meterOf(bucket, name, now), mark, now);
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
  endPilot(bucket, lease);
  if (lease.spacing !== 'crowded') bucket.unanswered.delete(lease.token);
  for (const [name, mark] of lease.marks) {
    const meter = bucket.meters.get(name);
    if (meter !== undefined) markAnswered(meter, mark);
  }
}

/** Notes on the meters a call whose answer stated nothing. If the call arrived upstream, it did so before `at`. */
export function answerUnreported(bucket: Bucket, lease: Lease, at: number): void {
  if (lease.answered) return;
  answer(bucket, lease);
  for (const [name, mark] of lease.marks) {
    const meter = bucket.meters.get(name);
    if (meter !== undefined) markUnreported(meter, mark, at);
  }
}

/** The call ended well, and its answer could not be read. */
export function applySilence(bucket: Bucket, lease: Lease, now: number): void {
  answerUnreported(bucket, lease, now);
  bucket.opened = true;
}

const tokenMeters: readonly MeterName[] = ['tokens', 'tokens_day', 'input_tokens', 'output_tokens'];

/**
 * What the upstream says that the refused call asked of the meter that refused it, units; `null`: it does not say. What was
 * reserved may have been a guess.
 */
export function refusedUnits({ throttle, requestedCost, requestedTokens }: Feedback): number | null {
  if (throttle?.kind !== 'rate') return null;
  if (throttle.meter === 'cost') return requestedCost ?? null;
  if (throttle.meter !== null && tokenMeters.includes(throttle.meter)) return requestedTokens ?? null;
  return null;
}

/** A refusal for want of `named` (`null` = of whatever): the meters that did not count the call. */
const concerns = (named: MeterName | null, name: MeterName): boolean =>
  named === null || named === name || (named === 'requests' && requestWindows.includes(name));

/** A refusal. `closedMs`: nobody may send for this long; 0 = it concerns this call alone. */
export interface Throttled {
  readonly lease: Lease;
  readonly lesson: TimedLesson | null;
  readonly closedMs: number;
}

export function applyThrottle(bucket: Bucket, { lease, lesson, closedMs }: Throttled, now: number): void {
  const named = lesson === null ? null : refusingMeter(lesson);
  const { grantedAt } = lease;
  for (const [name, mark] of lease.marks) {
    const meter = meterOf(bucket, name, now);
    // Only the bucket's own refusal proves that nothing was counted; a call without an answer may have run.
    if (closedMs > 0 && concerns(named, name)) giveUnitsBack(meter, { mark, grantedAt }, now);
  }
  const refusal = lesson === null ? null : refusalOf(bucket, lease, lesson);
  if (lesson !== null) applyLesson(bucket, { lease, lesson, closedMs }, now);
  else if (closedMs > 0) answer(bucket, lease);
  else answerUnreported(bucket, lease, now);
  if (closedMs <= 0) return;
  if (refusal !== null) {
    const { name, asked, hadRoom } = refusal;
    refused(meterOf(bucket, name, now), { asked, waitMs: closedMs, hadRoom }, now);
  }
  bucket.closedUntil = Math.max(bucket.closedUntil ?? now, now + closedMs);
  bucket.closedAt = now;
}

/** The meter for want of which a call was refused; `null` = the answer names none. */
function refusingMeter({ feedback: { throttle } }: TimedLesson): MeterName | null {
  return throttle?.kind === 'rate' ? throttle.meter : null;
}

/**
 * What the refused call asked of the meter that refused it, and whether the model had room for that when it was granted. It
 * cannot have had where the call asks for more than was reserved, where no answer has stated anything of the meter, where
 * the upstream does not say for how long it refuses (the last wait was a guess as well, and too short), and where the call
 * was granted before another refusal was known: the same thing was in the way of both.
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

export interface Spending {
  readonly lease: Lease;
  readonly spent: Costs;
}

/**
 * What the lease's call has spent is known. A meter that it took nothing from is charged too, where the bucket has it: output is
 * counted when it has been made.
 */
export function correct(bucket: Bucket, { lease, spent }: Spending, now: number): void {
  for (const name of meterNames) {
    const units = spent[name];
    const reserved = lease.marks.get(name)?.cost ?? 0;
    const meter = bucket.meters.get(name);
    if (units === undefined || meter === undefined) continue;
    settleUnits(meter, { reserved, spent: units, grantedAt: lease.grantedAt }, now);
  }
}

/**
 * The grant was not used: its units come back, its turn does not. Whoever began to wait meanwhile stands behind that turn,
 * and would stand behind one more for each grant that comes back.
 */
export function giveBack(bucket: Bucket, lease: Lease, now: number): void {
  answer(bucket, lease);
  const { grantedAt } = lease;
  for (const [name, mark] of lease.marks) {
    giveUnitsBack(meterOf(bucket, name, now), { mark, grantedAt }, now);
  }
}

/**
 * Long times are believed slowly, also the first: calls are refused by the forecast that rests on it, and one slow answer
 * of a service that has just started would refuse a whole line that has time enough.
 */
export function noteService(lane: Lane, ms: number): void {
  lane.serviceMs += (ms - lane.serviceMs) * (ms < lane.serviceMs ? 0.5 : 0.2);
}
