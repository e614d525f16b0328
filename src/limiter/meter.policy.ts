/**
 * One dimension of a bucket: a level that rises with every grant and drains continuously.
 *
 * The model (recorded from live services): a call is admitted while `level + cost <= limit`, the level drains at
 * `limit / window`. Answers correct it (`meter-learning.policy.ts`).
 *
 * Owns: draining, room, what a grant takes and gets back. Refuses to own: which limit holds (`meter-quota.policy.ts`),
 * what answers mean, who waits, whose turn it is. Pure; `now` is an argument.
 */
import type { MeterName } from '../call.ts';

/**
 * Jitter between our sending and the upstream's counting, milliseconds: a fifth of the time in which one unit drains,
 * within these bounds. A slow meter can afford more of it, and a refusal there costs more.
 */
export const leastJitterMs = 25;
export const mostJitterMs = 100;
/**
 * The most by which the first call of a burst may reach the upstream later than the last ones do, milliseconds, where
 * that is at most a sixtieth of the window. A meter that leaves empty rests so long: the upstream starts to drain when
 * the first call arrives, not when we let it go, and whoever starts a burst is busy just then. The answers end the rest.
 */
export const mostLatenessMs = 1_000;
export const windowsOfLateness = 60;
/** A call sent this long after the one before it cannot have been overtaken on the way, milliseconds. */
export const quietGapMs = 20;
/** A call among calls that leave at the pace of the meter reaches the upstream within this time of its grant, milliseconds. */
export const calmLatenessMs = 250;
/** Time constant of the estimate of what others take from the meter, milliseconds. */
export const othersMemoryMs = 10_000;
/** Most of the limit that may be kept free for others. */
export const largestReserveShare = 0.1;

/** Without a word of the upstream or the operator a window is taken to be this long, milliseconds. */
const minuteMs = 60_000;
const dayMs = 86_400_000;

/** `limit` units in each window of this length, milliseconds. */
export interface Quota {
  readonly limit: number;
  readonly windowMs: number;
}

/** What the upstream's answers told of its quota. */
export interface ReportedQuota {
  readonly limit: number;
  /** `null`: no answer told. */
  readonly windowMs: number | null;
  /** Sending time of the newest call whose answer told the limit. */
  readonly sentAt: number;
}

export interface Meter {
  readonly name: MeterName;
  /** Units per window in force, which follows from `stated` and `reported`; `null`: nobody knows, nobody is held back. */
  limit: number | null;
  /** Window in force, milliseconds; while no limit is known, the one that it is taken to be counted over. */
  windowMs: number;
  /** Quota stated by the operator; `null`: none. */
  stated: Quota | null;
  /** Quota told by answers; `null`: none told any. */
  reported: ReportedQuota | null;
  /** Used units at `at`. Before `at` nothing drains: the first call of a burst may not have arrived. */
  level: number;
  at: number;
  /** Units granted, and units of granted calls whose answers are known, since the beginning. */
  granted: number;
  answered: number;
  /** Units of granted calls that the upstream did not count, since the beginning. */
  returned: number;
  /** Units kept free because somebody else uses the quota too. */
  reserve: number;
  /** Estimated consumption of others, units per millisecond. */
  others: number;
  /** When an answer last told the level; `null`: never. */
  learnedAt: number | null;
  /** When the upstream was last fuller than the model without our doing; `null`: never. */
  surprisedAt: number | null;
  /** About the shortest time between a call and its answer's head, milliseconds; `null`: no answer yet. */
  fastestMs: number | null;
}

/** Position of the meter's counters when a lease was granted. */
export interface MeterMark {
  readonly cost: number;
  /** `granted` right after this grant. */
  readonly granted: number;
  /** `answered` and `returned` at this grant. */
  readonly answered: number;
  readonly returned: number;
  /** When the meter was to drain on right after this grant, as it seemed then. */
  readonly drainsAt: number;
  /** Units of the calls granted within `calmLatenessMs` before that had no answer then, oldest first; of calm calls only. */
  readonly behind: readonly Behind[];
}

/** A call that may have to arrive yet when one granted later does. */
export interface Behind {
  readonly grantedAt: number;
  readonly units: number;
}

export function createMeter(name: MeterName, now: number): Meter {
  return {
    name,
    limit: null,
    windowMs: assumedWindowMs(name),
    stated: null,
    reported: null,
    level: 0,
    at: now,
    granted: 0,
    answered: 0,
    returned: 0,
    reserve: 0,
    others: 0,
    learnedAt: null,
    surprisedAt: null,
    fastestMs: null,
  };
}

/** Length of the window of a meter as its name says it, milliseconds. */
export const assumedWindowMs = (name: MeterName): number => (name.endsWith('_day') ? dayMs : minuteMs);

/** Units drained per millisecond; 0 while no limit is known. */
export const drainRate = (meter: Meter): number => (meter.limit === null ? 0 : meter.limit / meter.windowMs);

/** Units that drain during the jitter. */
export function jitterUnits(meter: Meter): number {
  const rate = drainRate(meter);
  return rate * Math.min(mostJitterMs, Math.max(leastJitterMs, 0.2 / rate));
}

/** How long a meter that left empty may drain here and not there, because the first call has not arrived. */
function latenessMs(meter: Meter): number {
  const jitterMs = Math.min(mostJitterMs, Math.max(leastJitterMs, 0.2 / drainRate(meter)));
  return Math.max(jitterMs, Math.min(mostLatenessMs, meter.windowMs / windowsOfLateness));
}

/** Milliseconds until the meter drains. */
export const restMs = (meter: Meter, now: number): number => Math.max(0, meter.at - now);

/**
 * Brings the level to `now`; a clock that stands still or steps back changes nothing. While no limit is known, what was
 * counted is forgotten in about the time of a window, so that a limit that becomes known does not find all that ever was.
 */
export function drain(meter: Meter, now: number): void {
  if (now <= meter.at) return;
  const sinceMs = now - meter.at;
  const drained =
    meter.limit === null ? meter.level * (sinceMs / (sinceMs + meter.windowMs)) : sinceMs * drainRate(meter);
  meter.level = Math.max(0, meter.level - drained);
  meter.at = now;
}

/** Milliseconds until a call of this cost has room; 0 = now. A cost above the limit needs the meter empty. */
export function roomInMs(meter: Meter, cost: number, now: number): number {
  if (meter.limit === null || cost <= 0) return 0;
  drain(meter, now);
  const usable = meter.limit - meter.reserve;
  const over = meter.level + othersSince(meter, now) + Math.min(cost, usable) - usable;
  if (over <= 0) return 0;
  const rate = drainRate(meter);
  // What others are expected to take slows us down; it never holds an empty meter shut, for nothing would refute it.
  const whenEmpty = meter.level / rate;
  return restMs(meter, now) + Math.min(over / Math.max(rate - meter.others, rate / 4), whenEmpty);
}

function othersSince(meter: Meter, now: number): number {
  if (meter.limit === null || meter.learnedAt === null || meter.others <= 0) return 0;
  const expected = meter.others * Math.min(Math.max(0, now - meter.learnedAt), othersMemoryMs);
  return Math.min(expected, meter.limit * largestReserveShare);
}

/**
 * Takes the cost of a granted call and returns the mark that its lease keeps. No more than the limit, which is all that
 * an upstream counts: what a client writes into its call (`max_tokens`) would otherwise shut the meter for years.
 */
export function take(meter: Meter, asked: number, now: number, behind: readonly Behind[] = []): MeterMark {
  drain(meter, now);
  const cost = meter.limit === null ? asked : Math.min(asked, meter.limit);
  const { answered, returned } = meter;
  if (cost > 0 && meter.limit !== null) {
    const lateMs = latenessMs(meter) - meter.level / drainRate(meter);
    meter.at = Math.max(meter.at, now + lateMs);
  }
  meter.level += cost;
  meter.granted += cost;
  return { cost, granted: meter.granted, answered, returned, drainsAt: meter.at, behind };
}

/** The upstream has spoken about this call, or it was never sent: it is no longer on its way. */
export function markAnswered(meter: Meter, mark: MeterMark): void {
  meter.answered += mark.cost;
}

/** Gives units back: the call cost less than reserved (negative `units` when it cost more). */
export function refund(meter: Meter, units: number, now: number): void {
  drain(meter, now);
  meter.level = Math.max(0, meter.level - units);
}

/**
 * Gives back what a call reserved that the upstream never counted. What has drained of it since `grantedAt` stays: but
 * for the reservation the meter might have been empty by then, with nothing to drain.
 */
export function giveUnitsBack(meter: Meter, mark: MeterMark, grantedAt: number, now: number): void {
  const { cost } = mark;
  meter.returned += cost;
  const hasRested = meter.at === mark.drainsAt && meter.at > now;
  refund(meter, hasRested ? cost : Math.max(0, cost - (now - grantedAt) * drainRate(meter)), now);
  // Nobody else is on the way who might be late.
  if (meter.level === 0) meter.at = now;
}
