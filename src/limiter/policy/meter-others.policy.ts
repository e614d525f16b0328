/**
 * What others take from a meter: a stream, which slows us down, and bursts, for which units are kept free.
 *
 * A stream is what the answers' levels rise by that our own calls do not explain. It is an estimate, and the meter drains
 * by so much less. A burst shows where the stream does not: a call is refused that had room. From then on the meter is
 * contested, and as many units are kept free as others took at once.
 *
 * Owns: both estimates, and how much is kept free. Does not own: the level (`meter-learning.policy.ts`).
 * Invariant: without a refusal nothing is kept free, and one burst makes no stream. Pure.
 */
import { drainRate, type Meter } from './meter-state.policy.ts';

/** Time constants of the estimate, milliseconds: from answers that state the level, from refusals alone. */
export const reportedMemoryMs = 10_000;
export const unreportedMemoryMs = 3_000;
/** A sudden rise counts as the stream of this time at most, milliseconds: shown by levels, by refusals alone. */
export const maxReportedRiseMs = 1_000;
export const maxUnreportedRiseMs = 10_000;
/** Others who take less than this share of what drains, and never surprise, are forgotten after a while. */
export const negligibleShare = 0.05;
export const contestMemoryMs = 60_000;
/** Kept free at least: what drains in this time, milliseconds. */
export const keptDrainMs = 50;
/** The next burst may be larger than the largest so far. */
export const burstMargin = 1.25;
/** A refusal shows that what is kept free does not do. */
export const refusalMargin = 1.5;
/** Most of what drains that others are expected to take: a meter that nobody is let through opens all the same. */
export const maxOthersShare = 0.75;
/**
 * What is kept free for others of a contested meter: this share of what waits, and no more in the end than its allowance,
 * or this share of what waits. So it is used up when the line ends, and costs next to no time.
 */
export const keptWaitingShare = 0.02;
export const maxKeptWaitingShare = 0.05;
/** Most of the limit that may be kept free for others. */
export const maxKeptShare = 0.15;

/** Units by which the level falls per millisecond while others take what they are expected to; 0 while no limit is known. */
export function netRate(meter: Meter): number {
  const rate = drainRate(meter);
  return rate - Math.min(meter.others, rate * maxOthersShare);
}

/** Units kept free for others while so many units wait. */
export function keptFree({ limit, contest }: Meter, waiting: number): number {
  if (limit === null || contest === null) return 0;
  const wanted = Math.max(contest.units, waiting * keptWaitingShare);
  return Math.min(wanted, limit * maxKeptShare, Math.max(contest.allowance, waiting * maxKeptWaitingShare));
}

/**
 * The level has changed by so many units beyond what was expected, within the time since it was last known what others take.
 * A rise shows that they take more, a fall that they take less.
 */
export function noteOthers(meter: Meter, change: number, sinceMs: number): void {
  if (sinceMs <= 0) return;
  const rate = drainRate(meter);
  const isReported = meter.fastestMs !== null;
  const rise = Math.min(change, rate * (isReported ? maxReportedRiseMs : maxUnreportedRiseMs));
  const others = meter.others + rise / (sinceMs + (isReported ? reportedMemoryMs : unreportedMemoryMs));
  meter.others = Math.max(0, Math.min(others, rate));
}

/** What one answer shows that others took at once. */
export interface OthersBurst {
  /** The minimum that others took beyond what was expected, and how much more it may have been (`uncertainty`). */
  readonly units: number;
  readonly uncertainty: number;
  /** Of the call that was answered. */
  readonly cost: number;
}

/** A contested meter keeps as much free as others took at once; without a burst for long, less and less. */
export function noteOthersBurst(meter: Meter, { units, uncertainty, cost }: OthersBurst, now: number): void {
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

/** A call of this cost was refused that had room. */
export function noteContest(meter: Meter, cost: number, now: number): void {
  const { units = 0, allowance = 0 } = meter.contest ?? {};
  meter.contest = {
    units: Math.max(refusalMargin * units, units + cost, 2 * cost, keptDrainMs * drainRate(meter)),
    allowance: allowance + 2 * cost,
    at: now,
  };
}
