/**
 * What others, who use the same quota without Sluice, take from a meter: a steady stream and bursts.
 *
 * The stream is the rise of the levels in responses that our own calls do not explain. It is an estimate, and reduces the rate at
 * which the meter drains. A burst shows when a call is refused that had room. From then on the meter is contested: it keeps as many
 * units free as others took at once.
 *
 * Owns: both estimates, and how much is kept free. Does not own: the level (`meter-learning.policy.ts`).
 * Invariant: without a refusal nothing is kept free; a single burst does not count as a stream. Pure.
 */
import { drainRate, type Meter } from './meter-state.policy.ts';

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
 * Notes that the level changed by `change` units more than expected within `sinceMs`, the time since the use of others was last
 * known. A rise shows that they take more, a fall that they take less.
 */
export function noteOthers(meter: Meter, change: number, sinceMs: number): void {
  if (sinceMs <= 0) return;
  const rate = drainRate(meter);
  const isReported = meter.fastestMs !== null;
  const rise = Math.min(change, rate * (isReported ? maxReportedRiseMs : maxUnreportedRiseMs));
  const others = meter.others + rise / (sinceMs + (isReported ? reportedMemoryMs : unreportedMemoryMs));
  meter.others = Math.max(0, Math.min(others, rate));
}

/** What one response shows that others took at once. */
export interface OthersBurst {
  /** The minimum that others took beyond what was expected, and how much more it may have been (`uncertainty`). */
  readonly units: number;
  readonly uncertainty: number;
  /** Units that the answered call took. */
  readonly cost: number;
}

/** Adjusts what a contested meter keeps free: to the largest burst of others, and to less after a long time without one. */
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

/** Notes that a call of this cost was refused although the model had room: the meter is contested. */
export function noteContest(meter: Meter, cost: number, now: number): void {
  const { units = 0, allowance = 0 } = meter.contest ?? {};
  meter.contest = {
    units: Math.max(refusalMargin * units, units + cost, 2 * cost, keptDrainMs * drainRate(meter)),
    allowance: allowance + 2 * cost,
    at: now,
  };
}
