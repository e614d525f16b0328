/**
 * One dimension of a bucket: a level that rises with every grant and drains continuously, and what the upstream's
 * answers teach about it.
 *
 * The model (recorded from live services): a call is admitted while `level + cost <= limit`, the level drains at
 * `limit / window`. We hear of the true level only through answers, each of which describes the instant at which
 * *its* call reached the upstream, somewhere between our sending it and its answer's head. So an answer does not give
 * a level but bounds, and the model is moved only as far as the bounds demand: a single late or reordered answer can
 * neither open the bucket too far nor close it for nothing.
 *
 * Owns: draining, room, learning. Refuses to own: who waits, whose turn it is. Pure; `now` is an argument.
 */
import type { MeterName, MeterReport } from '../call.ts';
import type { MeterSetting } from './limiter.ts';

/**
 * Jitter between our sending and the upstream's counting, milliseconds: a fifth of the time in which one unit drains,
 * within these bounds. Charged when a meter leaves empty: the upstream starts to drain when the call arrives, not when we
 * let it go. A slow meter can afford more of it, and a refusal there costs more.
 */
export const leastJitterMs = 25;
export const mostJitterMs = 100;
/** A call sent this long after the one before it cannot have been overtaken on the way, milliseconds. */
export const quietGapMs = 20;
/** Time constant of the estimate of what others take from the meter, milliseconds. */
const othersMemoryMs = 10_000;
/** A place kept free because others drink from the bucket is used again after this long without a surprise. */
const reserveMemoryMs = 60_000;
/** Most of the limit that may be kept free for others. */
const largestReserveShare = 0.1;

export interface Meter {
  readonly name: MeterName;
  /** Units per window; 0 = nobody knows yet, the meter holds nobody back. */
  limit: number;
  windowMs: number;
  /** Limit stated by the operator; 0 = none. */
  stated: number;
  /** Used units at `at`. */
  level: number;
  at: number;
  /** Units granted, and units of granted calls whose answers are known, since the beginning. */
  granted: number;
  answered: number;
  /** Units kept free because somebody else uses the quota too. */
  reserve: number;
  /** Estimated consumption of others, units per millisecond. */
  others: number;
  /** When an answer last spoke of this meter; -1 = never. */
  learnedAt: number;
  surprisedAt: number;
  /** Sending time of the newest answer that set the limit. */
  limitFrom: number;
}

/** Position of the meter's counters when a lease was granted. */
export interface MeterMark {
  readonly cost: number;
  /** `granted` right after this grant. */
  readonly granted: number;
  /** `answered` at this grant. */
  readonly answered: number;
}

export function createMeter(name: MeterName, now: number): Meter {
  return {
    name,
    limit: 0,
    windowMs: 60_000,
    stated: 0,
    level: 0,
    at: now,
    granted: 0,
    answered: 0,
    reserve: 0,
    others: 0,
    learnedAt: -1,
    surprisedAt: now,
    limitFrom: -1,
  };
}

/** Units drained per millisecond. */
const drainRate = (meter: Meter): number => meter.limit / meter.windowMs;

/** Units that drain during the jitter. */
function jitterUnits(meter: Meter): number {
  const rate = drainRate(meter);
  return rate * Math.min(mostJitterMs, Math.max(leastJitterMs, 0.2 / rate));
}

/** Brings the level to `now`; a clock that stands still or steps back changes nothing. */
export function drain(meter: Meter, now: number): void {
  if (now <= meter.at) return;
  meter.level = Math.max(0, meter.level - (now - meter.at) * drainRate(meter));
  meter.at = now;
}

/** Applies what the operator states, until an answer has taught better; a stated limit that shrinks applies at once. */
export function applySetting(meter: Meter, setting: MeterSetting, learn: boolean, now: number): void {
  if (meter.stated === setting.limit) return;
  drain(meter, now);
  meter.stated = setting.limit;
  if (meter.learnedAt < 0) {
    meter.limit = setting.limit;
    meter.windowMs = setting.windowMs;
  } else if (!learn && meter.limit > setting.limit) {
    meter.limit = setting.limit;
  }
}

/** Milliseconds until a call of this cost has room; 0 = now. A cost above the limit needs the meter empty. */
export function roomInMs(meter: Meter, cost: number, now: number): number {
  if (meter.limit <= 0 || cost <= 0) return 0;
  drain(meter, now);
  const usable = meter.limit - meter.reserve;
  const over = meter.level + othersSince(meter, now) + Math.min(cost, usable) - usable;
  if (over <= 0) return 0;
  const rate = drainRate(meter);
  // What others are expected to take slows us down; it never holds an empty meter shut, for nothing would refute it.
  const whenEmpty = meter.level / rate;
  return Math.min(over / Math.max(rate - meter.others, rate / 4), whenEmpty);
}

function othersSince(meter: Meter, now: number): number {
  if (meter.learnedAt < 0 || meter.others <= 0) return 0;
  const expected = meter.others * Math.min(Math.max(0, now - meter.learnedAt), othersMemoryMs);
  return Math.min(expected, meter.limit * largestReserveShare);
}

/** Takes the cost of a granted call and returns the mark that its lease keeps. */
export function take(meter: Meter, cost: number, now: number): MeterMark {
  drain(meter, now);
  const answered = meter.answered;
  if (cost > 0) meter.level = Math.max(meter.level, jitterUnits(meter));
  meter.level += cost;
  meter.granted += cost;
  return { cost, granted: meter.granted, answered };
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
export function giveUnitsBack(meter: Meter, cost: number, grantedAt: number, now: number): void {
  refund(meter, Math.max(0, cost - (now - grantedAt) * drainRate(meter)), now);
}

/** When and how an answer was obtained, on the store's clock. */
export interface Observation {
  readonly sentAt: number;
  readonly headAt: number;
  /** No other call was sent shortly before this one. */
  readonly quiet: boolean;
}

/**
 * Learns from one report. Limits: a newer answer sets them, downwards always, upwards only when `learn`.
 * Level: moved into the bounds that the report proves.
 */
export function learnMeter(
  meter: Meter,
  report: MeterReport,
  mark: MeterMark,
  seen: Observation,
  learn: boolean,
  now: number,
): void {
  const first = meter.learnedAt < 0;
  drain(meter, now);
  learnLimit(meter, report, seen, learn);
  if (report.level === null || meter.limit <= 0) return;
  const { lower, upper } = levelBounds(meter, report.level, mark, seen, now);
  const surprise = first ? 0 : Math.max(0, lower - meter.level);
  noteSurprise(meter, surprise, mark.cost, now);
  if (first && meter.stated === 0) meter.level = Math.max(0, upper);
  else meter.level = Math.max(0, Math.min(Math.max(meter.level, lower), Math.max(lower, upper)));
  meter.learnedAt = now;
}

function learnLimit(meter: Meter, report: MeterReport, seen: Observation, learn: boolean): void {
  if (seen.sentAt < meter.limitFrom || !(report.limit > 0)) return;
  meter.limitFrom = seen.sentAt;
  meter.limit = learn || meter.stated === 0 ? report.limit : Math.min(report.limit, meter.stated);
  if (report.windowMs !== null && report.windowMs > 0) {
    meter.windowMs = report.windowMs;
  }
  meter.reserve = Math.min(meter.reserve, meter.limit * largestReserveShare);
}

/**
 * Bounds of the level now. `lower`: the call arrived as soon as it was sent, and of the calls granted later none was
 * counted yet. `upper`: it arrived as late as its answer allows, and every call that was on its way is still to be
 * counted. After a quiet gap the sending order is the arriving order: then exactly the later grants come on top.
 * GraphQL cost is reported at the end of the execution, after the refund, not at admission.
 */
function levelBounds(
  meter: Meter,
  level: { readonly lowest: number; readonly highest: number },
  mark: MeterMark,
  seen: Observation,
  now: number,
): { lower: number; upper: number } {
  const rate = drainRate(meter);
  const jitter = jitterUnits(meter);
  const later = meter.granted - mark.granted;
  const onItsWay = Math.max(0, meter.granted - mark.answered - mark.cost);
  const sinceHead = Math.max(0, now - seen.headAt);
  const late = Math.max(0, level.highest - rate * sinceHead) + onItsWay + jitter;
  if (meter.name === 'cost') return { lower: level.lowest - rate * sinceHead, upper: late };
  const sinceSent = Math.max(0, now - seen.sentAt);
  const lower = level.lowest - rate * sinceSent;
  if (!seen.quiet) return { lower, upper: late };
  const inOrder = Math.max(0, level.highest - rate * sinceSent) + later + jitter;
  return { lower: lower + later, upper: Math.min(late, inOrder) };
}

function noteSurprise(meter: Meter, surprise: number, cost: number, now: number): void {
  if (meter.learnedAt >= 0 && now > meter.learnedAt) {
    const sinceMs = now - meter.learnedAt;
    meter.others += (surprise / sinceMs - meter.others) * (sinceMs / (sinceMs + othersMemoryMs));
    meter.others = Math.min(meter.others, drainRate(meter));
  }
  if (cost > 0 && surprise > cost / 2) {
    keepFree(meter, Math.max(meter.reserve, cost), now);
  } else if (meter.reserve > 0 && now - meter.surprisedAt > reserveMemoryMs) {
    keepFree(meter, meter.reserve - cost, now);
  }
}

function keepFree(meter: Meter, units: number, now: number): void {
  meter.reserve = Math.max(0, Math.min(units, meter.limit * largestReserveShare));
  meter.surprisedAt = now;
}

/**
 * The upstream refused a call that the model had let through: somebody else drinks from the bucket. Keeps one more
 * place free and raises the level to what the refusal proves (`used = limit - cost + wait * rate`).
 */
export function refused(meter: Meter, cost: number, waitMs: number, surprising: boolean, now: number): void {
  if (meter.limit <= 0) return;
  drain(meter, now);
  if (surprising) keepFree(meter, meter.reserve + cost, now);
  meter.level = Math.max(meter.level, meter.limit - cost + waitMs * drainRate(meter));
}
