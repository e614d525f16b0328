/**
 * One dimension of a bucket: a level that rises with every grant and drains continuously.
 *
 * The model (recorded from live services): a call is admitted while `level + cost <= limit`, the level drains at
 * `limit / window`. Responses correct it (`meter-learning.policy.ts`).
 *
 * Owns: draining, room, what a grant takes and gets back. Does not own: which limit holds (`meter-quota.policy.ts`),
 * what responses mean, which calls wait, which lane is next. Pure; `now` is an argument.
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
 * Jitter between our sending and the upstream's counting, milliseconds: the time in which this part of a unit
 * drains, within these bounds. A slow meter can afford more of it, and a refusal there costs more.
 */
const jitterUnitShare = 0.2;
export const minJitterMs = 25;
export const maxJitterMs = 100;
/**
 * How much longer the first call of a burst may take to the upstream than the last ones, milliseconds; at most a sixtieth of the
 * window. After the first call on an empty meter, the meter rests this long before it drains: the upstream starts to drain when the
 * call arrives, not when we send it, and a process that starts a burst is busy just then. Responses end the rest.
 */
export const maxLatenessMs = 1_000;
const windowsOfLateness = 60;
/** A call sent this long after the one before it cannot have been overtaken on the way, milliseconds. */
export const quietGapMs = 20;
/** A call among calls that leave at the pace of the meter reaches the upstream within this time of its grant, milliseconds. */
export const calmLatenessMs = 250;
/** In about this time the estimate of what others take falls to 0 if no response shows them, milliseconds. */
const othersMemoryMs = 360_000;
/** How full a meter may get, in windows of draining, when calls turn out more expensive than was reserved. */
const debtWindows = 2;
/** The allowance of a contested meter: units that may be kept free for each unit granted since it is contested. */
const allowanceShare = 0.02;

/** Units that drain during the jitter. */
export function jitterUnits(meter: Meter): number {
  const rate = drainRate(meter);
  return rate * Math.min(maxJitterMs, Math.max(minJitterMs, jitterUnitShare / rate));
}

/** How long a meter may drain here but not at the upstream, because the first call has not arrived there. */
function latenessMs(meter: Meter): number {
  const jitterMs = Math.min(maxJitterMs, Math.max(minJitterMs, jitterUnitShare / drainRate(meter)));
  return Math.max(jitterMs, Math.min(maxLatenessMs, meter.windowMs / windowsOfLateness));
}

/** Milliseconds until the meter drains. */
export const restMs = (meter: Meter, now: number): number => Math.max(0, meter.at - now);

/**
 * Used units at `now` if nothing else happens. A clock that stands still or steps back changes nothing. While no limit is known,
 * counted units fade in about the time of a window: otherwise a limit that becomes known would find every unit ever counted.
 */
export function levelAt(meter: Meter, now: number): number {
  if (meter.log !== null) return loggedUnits(meter.log, now);
  if (now <= meter.at) return meter.level;
  const sinceMs = now - meter.at;
  const drained =
    meter.limit === null ? meter.level * (sinceMs / (sinceMs + meter.windowMs)) : sinceMs * netRate(meter);
  return Math.max(0, meter.level - drained);
}

/** Brings the level up to `now`, before anything else changes the meter. */
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
 * Milliseconds until a call has room; 0 = now. A cost above the limit needs the meter empty. What others are expected to take only
 * delays calls: once the meter would be empty without them, one call is sent to find out.
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
 * Takes the cost of a granted call and returns the mark that its lease keeps. At most the limit is taken, because an upstream
 * counts no more: a value that a client writes into its call (`max_tokens`) could otherwise close the meter for years.
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

/** Notes that the call is no longer on its way: the upstream has answered it, or it was never sent. */
export function markAnswered(meter: Meter, mark: MeterMark): void {
  meter.answered += mark.cost;
}

/** Notes that the response to a call stated nothing of the meter. If the call arrived upstream, it did so before `at`. */
export function markUnreported(meter: Meter, mark: MeterMark, at: number): void {
  const { units, at: until } = meter.unreported ?? { units: 0, at };
  meter.unreported = { units: units + mark.cost, at: Math.max(until, at) };
}

/** Lowers the level by `units`, at most to 0. */
export function refund(meter: Meter, units: number, now: number): void {
  drain(meter, now);
  meter.level = Math.max(0, meter.level - units);
}

/**
 * Corrects the meter by what a call has spent, which reserved `reserved` units (perhaps 0) at `grantedAt`. If it reserved too
 * much, the difference goes back, unless the meter was empty in between: then it has drained. If it reserved too little, the
 * difference is charged: per call at most the limit, and in all at most what drains within two windows, because the upstream let
 * the calls pass.
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
  // A limit that was lowered since the grant has cut the level off, and with it what was reserved beyond the limit.
  const back = (limit === null ? reserved : Math.min(reserved, limit)) - counted;
  if (back > 0 && (meter.emptyAt ?? grantedAt) > grantedAt) return;
  const highest = limit === null ? level - back : Math.max(level, limit * debtWindows);
  meter.level = Math.max(0, Math.min(level - back, highest));
}

/**
 * The highest level that the upstream can have now, by its responses or by what was counted here when the limit was lowered; 0 =
 * neither is known.
 * @param answered units of a call whose response is being learned from: it is no longer on its way, and not in the levels yet
 */
export function levelThere(meter: Meter, answered: number, now: number): number {
  const { peak, unreported } = meter;
  if (peak === null) return 0;
  const counted = peak.level + onTheWay(meter) + answered + (unreported?.units ?? 0);
  return Math.max(0, counted - netRate(meter) * Math.max(0, now - peak.at));
}

/** Units of granted calls whose responses are not known. */
export const onTheWay = ({ granted, answered }: Meter): number => Math.max(0, granted - answered);

/** What a call reserved, and when. */
export interface Reserved {
  readonly mark: MeterMark;
  readonly grantedAt: number;
}

/**
 * Units that were in the meter all the time since the grant of this mark: those that the level has beyond what was granted later.
 * Where responses tell the level, it may have others' units in it; 0 = none that is known of.
 */
const heldThroughout = ({ level, granted, heardAt }: Meter, mark: MeterMark): number =>
  heardAt === null ? level - (granted - mark.granted) : 0;

/**
 * Gives back the units of a call that the upstream never counted and that counts as on its way. Those that have drained since
 * `grantedAt` do not come back where the meter might have been empty without the reservation: then nothing would have drained. Nor do
 * those that a limit, lowered since then, has cut off the level: without them as much would be left of it.
 */
export function giveUnitsBack(meter: Meter, { mark, grantedAt }: Reserved, now: number): void {
  const { cost } = mark;
  meter.returned += cost;
  unlogUnits(meter, cost, grantedAt);
  const hasRested = meter.at === mark.drainsAt && meter.at > now;
  drain(meter, now);
  const left = Math.max(cost - (now - grantedAt) * drainRate(meter), heldThroughout(meter, mark));
  const isCut = meter.reported === null && meter.peak !== null && meter.peak.at >= grantedAt;
  const leftWithout = isCut ? Math.min(meter.level, levelThere(meter, 0, now) - cost) : 0;
  refund(meter, hasRested ? cost : Math.max(0, Math.min(cost, left)), now);
  meter.level = Math.max(meter.level, leftWithout);
  // No other call is on its way that might arrive late.
  if (meter.level === 0) meter.at = now;
}
