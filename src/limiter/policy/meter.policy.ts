/**
 * One dimension of a bucket: a level that rises with every grant and drains continuously.
 *
 * The model (recorded from live services): a call is admitted while `level + cost <= limit`, the level drains at
 * `limit / window`. Answers correct it (`meter-learning.policy.ts`).
 *
 * Owns: draining, room, what a grant takes and gets back. Does not own: which limit holds (`meter-quota.policy.ts`),
 * what answers mean, which calls wait, which lane is next. Pure; `now` is an argument.
 */
import { keptFree, netRate } from './meter-others.policy.ts';
import { drainRate, type InTransit, type Meter, type MeterMark } from './meter-state.policy.ts';
import { logUnits, loggedUnits, unlogUnits, windowWaitMs } from './window-log.policy.ts';

export {
  createMeter,
  drainRate,
  type InTransit,
  type Meter,
  type MeterMark,
  type Spacing,
} from './meter-state.policy.ts';

/**
 * Jitter between our sending and the upstream's counting, milliseconds: a fifth of the time in which one unit drains,
 * within these bounds. A slow meter can afford more of it, and a refusal there costs more.
 */
export const minJitterMs = 25;
export const maxJitterMs = 100;
/**
 * The most by which the first call of a burst may reach the upstream later than the last ones do, milliseconds, where
 * that is at most a sixtieth of the window. A meter that leaves empty rests so long: the upstream starts to drain when
 * the first call arrives, not when we let it go, and whoever starts a burst is busy just then. The answers end the rest.
 */
export const maxLatenessMs = 1_000;
export const windowsOfLateness = 60;
/** A call sent this long after the one before it cannot have been overtaken on the way, milliseconds. */
export const quietGapMs = 20;
/** A call among calls that leave at the pace of the meter reaches the upstream within this time of its grant, milliseconds. */
export const calmLatenessMs = 250;
/** Without a word of them the estimate of what others take is given up in about this time, milliseconds. */
export const othersMemoryMs = 360_000;
/** Calls that turn out more expensive than reserved fill a meter with what drains within so many windows at most. */
export const debtWindows = 2;
/** So much may be kept free in the end for each unit granted since the meter is contested. */
export const allowanceShare = 0.02;

/** Units that drain during the jitter. */
export function jitterUnits(meter: Meter): number {
  const rate = drainRate(meter);
  return rate * Math.min(maxJitterMs, Math.max(minJitterMs, 0.2 / rate));
}

/** How long a meter that left empty may drain here and not there, because the first call has not arrived. */
function latenessMs(meter: Meter): number {
  const jitterMs = Math.min(maxJitterMs, Math.max(minJitterMs, 0.2 / drainRate(meter)));
  return Math.max(jitterMs, Math.min(maxLatenessMs, meter.windowMs / windowsOfLateness));
}

/** Milliseconds until the meter drains. */
export const restMs = (meter: Meter, now: number): number => Math.max(0, meter.at - now);

/**
 * Used units at `now`, as long as nothing happens; a clock that stands still or steps back changes nothing. While no limit is
 * known, what was counted is forgotten in about the time of a window, so that a limit that becomes known does not find all
 * that ever was.
 */
export function levelAt(meter: Meter, now: number): number {
  if (meter.log !== null) return loggedUnits(meter.log, now);
  if (now <= meter.at) return meter.level;
  const sinceMs = now - meter.at;
  const drained =
    meter.limit === null ? meter.level * (sinceMs / (sinceMs + meter.windowMs)) : sinceMs * netRate(meter);
  return Math.max(0, meter.level - drained);
}

/** Something happens: the meter goes on from its level at `now`. */
export function drain(meter: Meter, now: number): void {
  if (now <= meter.at) return;
  const sinceMs = now - meter.at;
  meter.level = levelAt(meter, now);
  meter.others -= meter.others * (sinceMs / (sinceMs + othersMemoryMs));
  meter.at = now;
  if (meter.level === 0) meter.emptyAt = now;
}

/** A call's units, and those of all calls that wait for the same meter. */
export interface UnitDemand {
  readonly units: number;
  readonly waiting: number;
}

/**
 * Milliseconds until a call has room; 0 = now. A cost above the limit needs the meter empty. What others are expected to take
 * slows calls down, and no more: when everything would have drained but for them, one goes and finds out.
 */
export function roomInMs(meter: Meter, { units, waiting }: UnitDemand, now: number): number {
  const { limit } = meter;
  if (limit === null || units <= 0) return 0;
  const cost = Math.min(units, limit);
  if (meter.log !== null) return windowWaitMs(meter, cost, now);
  const usable = Math.max(cost, limit - keptFree(meter, waiting));
  const over = levelAt(meter, now) + cost - usable;
  if (over <= 0) return 0;
  const emptyInMs = Math.max(0, meter.at - now + meter.level / drainRate(meter));
  return Math.min(restMs(meter, now) + over / netRate(meter), emptyInMs);
}

/** Units that a granted call takes, and the earlier calls that may still be on their way when it arrives. */
export interface UnitsTaken {
  readonly units: number;
  readonly inTransit: readonly InTransit[];
}

/**
 * Takes the cost of a granted call and returns the mark that its lease keeps. No more than the limit, which is all that
 * an upstream counts: what a client writes into its call (`max_tokens`) would otherwise shut the meter for years.
 */
export function take(meter: Meter, { units, inTransit }: UnitsTaken, now: number): MeterMark {
  drain(meter, now);
  const cost = meter.limit === null ? units : Math.min(units, meter.limit);
  const { returned, contest } = meter;
  if (cost > 0 && meter.limit !== null) {
    const lateMs = latenessMs(meter) - meter.level / drainRate(meter);
    meter.at = Math.max(meter.at, now + lateMs);
  }
  meter.level += cost;
  logUnits(meter, cost, now);
  meter.granted += cost;
  if (contest !== null) {
    meter.contest = { ...contest, allowance: contest.allowance + cost * allowanceShare };
  }
  return { cost, granted: meter.granted, returned, drainsAt: meter.at, inTransit };
}

/** The upstream has spoken about this call, or it was never sent: it is no longer on its way. */
export function markAnswered(meter: Meter, mark: MeterMark): void {
  meter.answered += mark.cost;
}

/** A call that is no longer on its way brought no information about the meter. It arrived before `at`, if it did. */
export function markUnreported(meter: Meter, mark: MeterMark, at: number): void {
  const { units, at: until } = meter.unreported ?? { units: 0, at };
  meter.unreported = { units: units + mark.cost, at: Math.max(until, at) };
}

/** Takes units off the level, as far as there are any. */
export function refund(meter: Meter, units: number, now: number): void {
  drain(meter, now);
  meter.level = Math.max(0, meter.level - units);
}

/**
 * A call that reserved something (or nothing: `reserved` 0) at `grantedAt` has spent `spent` in all. What it reserved too much
 * goes back, unless the meter was empty in between: then it has drained. What it reserved too little is charged, no more of a
 * call than the limit, and together no more than drains within two windows: the upstream let the calls pass.
 */
export function settleUnits(
  meter: Meter,
  {
    reserved,
    spent,
    grantedAt,
  }: { readonly reserved: number; readonly spent: number; readonly grantedAt: number },
  now: number,
): void {
  drain(meter, now);
  const { limit, level } = meter;
  const counted = limit === null ? spent : Math.min(spent, limit);
  const back = reserved - counted;
  if (back > 0 && (meter.emptyAt ?? grantedAt) > grantedAt) return;
  const highest = limit === null ? level - back : Math.max(level, limit * debtWindows);
  meter.level = Math.max(0, Math.min(level - back, highest));
}

/** What a call reserved, and when. */
export interface Reserved {
  readonly mark: MeterMark;
  readonly grantedAt: number;
}

/**
 * Gives back what a call reserved that the upstream never counted. What has drained of it since `grantedAt` stays: but
 * for the reservation the meter might have been empty by then, with nothing to drain.
 */
export function giveUnitsBack(meter: Meter, { mark, grantedAt }: Reserved, now: number): void {
  const { cost } = mark;
  meter.returned += cost;
  unlogUnits(meter, cost, grantedAt);
  const hasRested = meter.at === mark.drainsAt && meter.at > now;
  refund(meter, hasRested ? cost : Math.max(0, cost - (now - grantedAt) * drainRate(meter)), now);
  // Nobody else is on the way who might be late.
  if (meter.level === 0) meter.at = now;
}
