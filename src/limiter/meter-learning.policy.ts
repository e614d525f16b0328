/**
 * What answers teach a meter.
 *
 * We hear of the true level only through answers, each of which describes the instant at which *its* call reached the
 * upstream, somewhere between our sending it and its answer's head. So an answer does not give a level but bounds, and
 * the model is moved only as far as the bounds demand: a single late or reordered answer can neither open the bucket
 * too far nor close it for nothing.
 *
 * Owns: the bounds that an answer proves, the estimate of what others take, the upstream's refusals. Refuses to own: the
 * model itself (`meter.policy.ts`). Pure; `now` is an argument.
 */
import type { MeterReport } from '../call.ts';
import {
  calmLatenessMs,
  drain,
  drainRate,
  fillAtMost,
  jitterUnits,
  largestReserveShare,
  othersMemoryMs,
  restMs,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';

/** So many calls more than what has drained since do not make a burst. */
const callsOfCalm = 2;
/** A slower answer raises what is taken for the fastest by this factor, and at least by so many milliseconds. */
const fastestRise = 1.01;
const leastRiseMs = 0.05;
/** Of the time of the fastest answer this share, or all but so many milliseconds, passes behind the arrival of a call. */
const answeringShare = 0.8;
const calmJitterMs = 50;
/** A place kept free because others drink from the bucket is used again after this long without a surprise. */
const reserveMemoryMs = 60_000;
/** Calls of one burst are all surprised by the same thing. */
const oneSurpriseMs = 1_000;

/** When and how an answer was obtained, on the store's clock. */
export interface Observation {
  readonly sentAt: number;
  readonly headAt: number;
  /** No other call was sent shortly before this one. */
  readonly quiet: boolean;
  /** Nor for a while: calls left at the pace of the meter. */
  readonly calm: boolean;
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
  if (first && meter.stated === 0) move(meter, upper, upper, now);
  else move(meter, lower, Math.max(lower, upper), now);
  learnFastest(meter, seen);
  meter.learnedAt = now;
}

/** Moves the level into the bounds. What the meter would not drain while it rests counts as used, and goes first. */
function move(meter: Meter, lower: number, upper: number, now: number): void {
  const rate = drainRate(meter);
  const held = meter.level + rate * restMs(meter, now);
  const most = Math.max(0, Math.min(Math.max(held, lower), upper));
  meter.level = Math.min(Math.max(meter.level, lower), most);
  meter.at = now + (most - meter.level) / rate;
}

/** Falls at once and rises slowly: upstreams get slower for a while, and one bucket has calls of several kinds. */
function learnFastest(meter: Meter, { sentAt, headAt }: Observation): void {
  const tookMs = Math.max(0, headAt - sentAt);
  const known = meter.fastestMs;
  meter.fastestMs = known < 0 ? tookMs : Math.min(tookMs, known * fastestRise + leastRiseMs);
}

function learnLimit(meter: Meter, report: MeterReport, seen: Observation, learn: boolean): void {
  if (seen.sentAt < meter.limitFrom || !(report.limit > 0)) return;
  meter.limitFrom = seen.sentAt;
  if (meter.limit === 0) fillAtMost(meter, report.limit);
  meter.limit = learn || meter.stated === 0 ? report.limit : Math.min(report.limit, meter.stated);
  if (report.windowMs !== null && report.windowMs > 0) {
    meter.windowMs = report.windowMs;
  }
  meter.reserve = Math.min(meter.reserve, meter.limit * largestReserveShare);
}

/**
 * Bounds of the level now. `lower`: the call arrived as soon as it was sent, and of the calls granted later none was
 * counted yet. `upper`: it arrived as late as its answer allows, and every call that was on its way is still to be
 * counted. Between quiet gaps the sending order is the arriving order: the later grants come on top of `lower`, and when
 * nothing has crowded for a while `upper` is narrow as well (`calmUpper`). While calls crowd nobody knows how late the
 * first of them was. GraphQL cost is reported at the end of the execution, after the refund, not at admission.
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
  // The upstream counts no more than its limit, whatever was asked for while nobody knew the limit.
  const onItsWay = Math.min(meter.limit, Math.max(0, meter.granted - mark.answered - mark.cost));
  const sinceHead = Math.max(0, now - seen.headAt);
  const late = Math.max(0, level.highest - rate * sinceHead) + onItsWay + jitter;
  if (meter.name === 'cost') return { lower: level.lowest - rate * sinceHead, upper: late };
  const sinceSent = Math.max(0, now - seen.sentAt);
  const lower = level.lowest - rate * sinceSent;
  const isInOrder = seen.quiet && mark.cost > 0 && later <= rate * sinceSent + callsOfCalm * mark.cost;
  if (!isInOrder) return { lower, upper: late };
  const counted = lower + Math.max(0, later - (meter.returned - mark.returned));
  if (!seen.calm) return { lower: counted, upper: late };
  return { lower: counted, upper: Math.min(late, calmUpper(meter, level.highest, mark, seen, now) + later) };
}

/**
 * The most that the level can be by now without the calls granted later. The call was not later than calls are in calm,
 * or than what the fastest answer leaves of its own time. Calls granted shortly before it may still have had to come,
 * because their replica was kept from sending them: the later this one was, the fewer of those.
 */
function calmUpper(meter: Meter, highest: number, mark: MeterMark, seen: Observation, now: number): number {
  const rate = drainRate(meter);
  const sinceSent = Math.max(0, now - seen.sentAt);
  const sinceHead = Math.max(0, now - seen.headAt);
  const answering = Math.max(meter.fastestMs * answeringShare, meter.fastestMs - calmJitterMs);
  const sinceArrival = Math.max(sinceHead, Math.min(sinceSent - calmLatenessMs, sinceHead + answering));
  let upper = Math.max(0, highest - rate * sinceArrival);
  let toCome = 0;
  for (let at = mark.behind.length - 1; at >= 0; at -= 1) {
    const { grantedAt, units } = mark.behind[at] ?? { grantedAt: 0, units: 0 };
    const arrivedAt = Math.max(sinceArrival, now - grantedAt - calmLatenessMs);
    if (arrivedAt > sinceSent) break;
    toCome += units;
    upper = Math.max(upper, Math.max(0, highest - rate * arrivedAt) + toCome);
  }
  return upper;
}

function noteSurprise(meter: Meter, surprise: number, cost: number, now: number): void {
  if (meter.learnedAt >= 0 && now > meter.learnedAt) {
    const sinceMs = now - meter.learnedAt;
    // Nobody takes more for long than drains; a gulp must not be read as a stream.
    const taken = Math.min(surprise / sinceMs, drainRate(meter));
    meter.others += (taken - meter.others) * (sinceMs / (sinceMs + othersMemoryMs));
  }
  if (cost > 0 && surprise > cost / 2) {
    surprised(meter, Math.max(meter.reserve, cost), now);
  } else if (meter.reserve > 0 && now - meter.surprisedAt > reserveMemoryMs) {
    keepFree(meter, meter.reserve - cost, now);
  }
}

/** One surprise is an accident, two within a minute are somebody else. What comes within a second is one. */
function surprised(meter: Meter, units: number, now: number): void {
  const sinceMs = meter.surprisedAt < 0 ? Infinity : now - meter.surprisedAt;
  if (sinceMs >= oneSurpriseMs) keepFree(meter, sinceMs <= reserveMemoryMs ? units : meter.reserve, now);
}

function keepFree(meter: Meter, units: number, now: number): void {
  meter.reserve = Math.max(0, Math.min(units, meter.limit * largestReserveShare));
  meter.surprisedAt = now;
}

/**
 * The upstream refused a call that the model had let through: somebody else drinks from the bucket. Keeps one more
 * place free when that happens again, and raises the level to what the refusal proves (`used = limit - cost + wait * rate`).
 */
export function refused(meter: Meter, cost: number, waitMs: number, surprising: boolean, now: number): void {
  if (meter.limit <= 0) return;
  drain(meter, now);
  if (surprising) surprised(meter, meter.reserve + cost, now);
  move(meter, meter.limit - cost + waitMs * drainRate(meter), Infinity, now);
}
