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
  jitterUnits,
  largestReserveShare,
  othersMemoryMs,
  restMs,
  type Meter,
  type MeterMark,
} from './meter.policy.ts';
import { applyReport } from './meter-quota.policy.ts';

/** So many calls more than what has drained since do not make a burst. */
export const callsOfCalm = 2;
/** A slower answer raises what is taken for the fastest by this factor, and at least by so many milliseconds. */
export const fastestRise = 1.01;
export const leastRiseMs = 0.05;
/** Of the time of the fastest answer this share, or all but so many milliseconds, passes behind the arrival of a call. */
export const answeringShare = 0.8;
export const calmJitterMs = 50;
/** A place kept free because others drink from the bucket is used again after this long without a surprise. */
export const reserveMemoryMs = 60_000;
/** Calls of one burst are all surprised by the same thing. */
export const oneSurpriseMs = 1_000;

type Level = NonNullable<MeterReport['level']>;

/** When and how an answer was obtained, on the store's clock. */
export interface Observation {
  readonly sentAt: number;
  readonly headAt: number;
  /** No other call was sent shortly before this one. */
  readonly quiet: boolean;
  /** Nor for a while: calls left at the pace of the meter. */
  readonly calm: boolean;
  /** The upstream refused the call for want of what this meter counts. */
  readonly refused: boolean;
}

/** What a report is about: the lease's mark (`null`: its call took nothing from the meter), and how it was obtained. */
export interface Answered {
  readonly mark: MeterMark | null;
  readonly seen: Observation;
}

/**
 * Learns from one report. Limits: a newer answer sets them, downwards always, upwards only when `learn`.
 * Level: moved into the bounds that the report proves.
 */
export function learnMeter(
  meter: Meter,
  report: MeterReport,
  { mark, seen }: Answered,
  { learn, now }: { readonly learn: boolean; readonly now: number },
): void {
  const first = meter.learnedAt === null;
  drain(meter, now);
  const isNewer = meter.reported === null || seen.sentAt >= meter.reported.sentAt;
  if (isNewer && report.limit > 0) {
    const windowMs = report.windowMs !== null && report.windowMs > 0 ? report.windowMs : null;
    const leftMs = report.resetMs ?? null;
    applyReport(meter, { limit: report.limit, windowMs, sentAt: seen.sentAt }, { leftMs, learn, now });
  }
  if (report.level === null || meter.limit === null) return;
  const { lower, upper } = levelBounds(meter, report.level, { mark, seen }, now);
  const surprise = first ? 0 : Math.max(0, lower - meter.level);
  noteSurprise(meter, { surprise, cost: mark?.cost ?? 0, refused: seen.refused }, now);
  if (first && meter.stated === null) move(meter, upper, upper, now);
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
  meter.fastestMs = known === null ? tookMs : Math.min(tookMs, known * fastestRise + leastRiseMs);
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
  level: Level,
  { mark, seen }: Answered,
  now: number,
): { lower: number; upper: number } {
  const rate = drainRate(meter);
  const sinceHead = Math.max(0, now - seen.headAt);
  const late = Math.max(0, level.highest - rate * sinceHead) + onItsWay(meter, mark) + jitterUnits(meter);
  if (meter.name === 'cost') return { lower: level.lowest - rate * sinceHead, upper: late };
  const sinceSent = Math.max(0, now - seen.sentAt);
  const lower = level.lowest - rate * sinceSent;
  if (mark === null || mark.cost <= 0 || !seen.quiet) return { lower, upper: late };
  const later = meter.granted - mark.granted;
  if (later > rate * sinceSent + callsOfCalm * mark.cost) return { lower, upper: late };
  const counted = lower + Math.max(0, later - (meter.returned - mark.returned));
  if (!seen.calm) return { lower: counted, upper: late };
  return {
    lower: counted,
    upper: Math.min(late, calmUpper(meter, level.highest, { mark, seen }, now) + later),
  };
}

/**
 * Units that may arrive after this call: those of every call without an answer when it was granted, and of every later
 * one. A call that took nothing cannot tell what was on its way. The upstream counts no more than its limit, whatever was
 * asked for while nobody knew the limit.
 */
function onItsWay(meter: Meter, mark: MeterMark | null): number {
  const arrived = mark === null ? 0 : mark.answered + mark.cost;
  return Math.min(meter.limit ?? 0, Math.max(0, meter.granted - arrived));
}

/**
 * The most that the level can be by now without the calls granted later. The call was not later than calls are in calm,
 * or than what the fastest answer leaves of its own time. Calls granted shortly before it may still have had to come,
 * because their replica was kept from sending them: the later this one was, the fewer of those.
 */
function calmUpper(
  meter: Meter,
  highest: number,
  { mark, seen }: { readonly mark: MeterMark; readonly seen: Observation },
  now: number,
): number {
  const rate = drainRate(meter);
  const sinceSent = Math.max(0, now - seen.sentAt);
  const sinceHead = Math.max(0, now - seen.headAt);
  const fastestMs = meter.fastestMs ?? 0;
  const answering = Math.max(fastestMs * answeringShare, fastestMs - calmJitterMs);
  const sinceArrival = Math.max(sinceHead, Math.min(sinceSent - calmLatenessMs, sinceHead + answering));
  let upper = Math.max(0, highest - rate * sinceArrival);
  let toCome = 0;
  for (const { grantedAt, units } of mark.behind.toReversed()) {
    const arrivedAt = Math.max(sinceArrival, now - grantedAt - calmLatenessMs);
    if (arrivedAt > sinceSent) break;
    toCome += units;
    upper = Math.max(upper, Math.max(0, highest - rate * arrivedAt) + toCome);
  }
  return upper;
}

/**
 * A refusal does not count for the estimate of what others take: it says when there is room again, and an upstream that closes for
 * everybody says that it is full although nobody took anything.
 */
function noteSurprise(
  meter: Meter,
  {
    surprise,
    cost,
    refused: isRefusal,
  }: { readonly surprise: number; readonly cost: number; readonly refused: boolean },
  now: number,
): void {
  if (!isRefusal && meter.learnedAt !== null && now > meter.learnedAt) {
    const sinceMs = now - meter.learnedAt;
    // Nobody takes more for long than drains; a gulp must not be read as a stream.
    const taken = Math.min(surprise / sinceMs, drainRate(meter));
    meter.others += (taken - meter.others) * (sinceMs / (sinceMs + othersMemoryMs));
  }
  if (cost > 0 && surprise > cost / 2) {
    surprised(meter, Math.max(meter.reserve, cost), now);
  } else if (meter.reserve > 0 && meter.surprisedAt !== null && now - meter.surprisedAt > reserveMemoryMs) {
    keepFree(meter, meter.reserve - cost, now);
  }
}

/** One surprise is an accident, two within a minute are somebody else. What comes within a second is one. */
function surprised(meter: Meter, units: number, now: number): void {
  const sinceMs = meter.surprisedAt === null ? null : now - meter.surprisedAt;
  if (sinceMs !== null && sinceMs < oneSurpriseMs) return;
  keepFree(meter, sinceMs !== null && sinceMs <= reserveMemoryMs ? units : meter.reserve, now);
}

function keepFree(meter: Meter, units: number, now: number): void {
  meter.reserve = Math.max(0, Math.min(units, (meter.limit ?? 0) * largestReserveShare));
  meter.surprisedAt = now;
}

/** How a call was refused. */
export interface Refusal {
  /** Time until it has room, as the upstream says, milliseconds. */
  readonly waitMs: number;
  /** The model had room for it: somebody else drinks from the bucket. */
  readonly surprising: boolean;
}

/**
 * The upstream refused a call of this cost. Raises the level to what that proves (`used = limit - cost + wait * rate`).
 * Keeps one more place free when surprises follow each other.
 */
export function refused(meter: Meter, asked: number, { waitMs, surprising }: Refusal, now: number): void {
  if (meter.limit === null) return;
  drain(meter, now);
  const cost = Math.min(asked, meter.limit);
  if (surprising) surprised(meter, meter.reserve + cost, now);
  move(meter, meter.limit - cost + waitMs * drainRate(meter), Infinity, now);
}
