/**
 * The bounds that one response gives of a meter's level. The response describes the instant at which its call reached the upstream,
 * which lies between our sending the call and the response's head.
 *
 * Owns: the bounds. Does not own: how the model is moved (`meter-learning.policy.ts`). Pure; `now` is an argument.
 */
import type { MeterReport } from '../../call.ts';
import { netRate } from './meter-others.policy.ts';
import {
  calmLatenessMs,
  drainRate,
  jitterUnits,
  type InTransit,
  type Meter,
  type MeterMark,
  type Spacing,
} from './meter.policy.ts';

/** So many calls may be sent in addition to what has drained meanwhile before they count as a burst. */
export const burstToleranceCalls = 2;
/**
 * How much of the fastest response's time the upstream is taken to spend after the call has arrived: this share of it, or all but
 * `calmJitterMs` milliseconds, whichever is less.
 */
const answeringShare = 0.8;
const calmJitterMs = 50;

type Level = NonNullable<MeterReport['level']>;

/** When and how a response was obtained, on the store's clock. */
export interface Observation {
  readonly sentAt: number;
  readonly headAt: number;
  readonly spacing: Spacing;
  /** The response refused the call until this many milliseconds after it; 0 = no refusal. */
  readonly closedMs: number;
}

/** A reported level, the mark of its call, and how the response was obtained. */
export interface SeenLevel {
  readonly level: Level;
  readonly mark: MeterMark | null;
  readonly seen: Observation;
}

/** Bounds of the level now. */
export interface Bounds {
  /** The level if the call arrived as soon as it was sent, and no call granted later was counted yet. */
  readonly proved: number;
  /** `proved` plus the calls granted later: the level if calls arrive in the order in which they are sent. */
  readonly likely: number;
  /** True when no call was sent so shortly before or after this one that either may have overtaken the other. */
  readonly isInOrder: boolean;
  /** The level if the call arrived as late as its response allows, and every call without a response is still to be counted. */
  readonly upper: number;
}

/** GraphQL cost is reported at the end of the execution, after the refund, not at admission. */
export function levelBounds(meter: Meter, found: SeenLevel, now: number): Bounds {
  const { level, mark, seen } = found;
  const atEnd = meter.name === 'cost';
  const sinceMs = Math.max(0, now - (atEnd ? seen.headAt : seen.sentAt));
  // A stated level is rounded. While no earlier response bounds it, its lower end would let a call into a full bucket.
  const counted = meter.fastestMs === null ? level.highest : level.lowest;
  const proved = counted - drainRate(meter) * sinceMs;
  const upper = upperBound(meter, found, now);
  if (mark === null || atEnd) return { proved, likely: proved, isInOrder: false, upper };
  const later = meter.granted - mark.granted;
  const likely = counted - netRate(meter) * sinceMs + Math.max(0, later - (meter.returned - mark.returned));
  const isInOrder =
    seen.spacing !== 'crowded' &&
    mark.cost > 0 &&
    later <= drainRate(meter) * sinceMs + burstToleranceCalls * mark.cost;
  if (!isInOrder || seen.spacing !== 'calm') return { proved, likely, isInOrder, upper };
  const calm = calmUpper(meter, { highest: level.highest, inTransit: mark.inTransit, seen }, now) + later;
  return { proved, likely, isInOrder, upper: Math.min(upper, calm) };
}

/**
 * The upper bound: the level that the last of the answered calls found, plus every call without a response, plus the calls whose
 * response stated nothing, unless they had ended before. If the answered call took nothing from the meter, all calls may have
 * arrived after it. The upstream counts no more than its limit, however many units were reserved while the limit was unknown.
 */
function upperBound(meter: Meter, { level: { highest }, mark, seen }: SeenLevel, now: number): number {
  const isTimed = seen.spacing === 'calm' && mark !== null && meter.name !== 'cost';
  const sinceArrival = isTimed ? sinceArrivalMs(meter, seen, now) : Math.max(0, now - seen.headAt);
  const levelNow = Math.max(0, highest - netRate(meter) * sinceArrival);
  const limit = meter.limit ?? 0;
  if (mark === null) return levelNow + Math.min(limit, meter.granted) + jitterUnits(meter);
  if (meter.unreported !== null && seen.sentAt > meter.unreported.at) meter.unreported = null;
  const toCome = Math.max(0, meter.granted - meter.answered) + (meter.unreported?.units ?? 0);
  return (
    notePeak(meter, { level: levelNow, sentAt: seen.sentAt, headAt: seen.headAt }, now) +
    Math.min(limit, toCome) +
    jitterUnits(meter)
  );
}

/** The level that a response stated: as of now, and when its call was sent and its head came. */
interface ReportedLevel {
  readonly level: number;
  readonly sentAt: number;
  readonly headAt: number;
}

/**
 * Updates the peak: the highest level that may have been reached when the last of the answered calls arrived. It is the fullest
 * level stated by the response to this call or to any call that may have arrived after it. Returns the peak as of now.
 */
function notePeak(meter: Meter, { level, sentAt, headAt }: ReportedLevel, now: number): number {
  const known = meter.peak;
  const before =
    known === null || sentAt > known.headAt ? 0 : known.level - netRate(meter) * (now - known.at);
  if (level < before) return before;
  meter.peak = { level, at: now, headAt };
  return level;
}

/**
 * Minimum time since a calm call arrived, milliseconds. Its arrival was no later than `calmLatenessMs` allows, or than the time of
 * the fastest response leaves for it.
 */
function sinceArrivalMs(meter: Meter, { sentAt, headAt }: Observation, now: number): number {
  const sinceSent = Math.max(0, now - sentAt);
  const sinceHead = Math.max(0, now - headAt);
  const fastestMs = meter.fastestMs ?? 0;
  const answering = Math.max(fastestMs * answeringShare, fastestMs - calmJitterMs);
  return Math.max(sinceHead, Math.min(sinceSent - calmLatenessMs, sinceHead + answering));
}

/** The highest level that the response to a calm call states, and the calls that may not have arrived yet. */
interface SeenInCalm {
  readonly highest: number;
  readonly inTransit: readonly InTransit[];
  readonly seen: Observation;
}

/**
 * The highest level possible now, without the calls granted later. Calls granted shortly before this one may arrive after it,
 * because their replica was kept from sending them. The later this call itself was, the fewer such calls there are.
 */
function calmUpper(meter: Meter, { highest, inTransit, seen }: SeenInCalm, now: number): number {
  const rate = netRate(meter);
  const sinceSent = Math.max(0, now - seen.sentAt);
  const sinceArrival = sinceArrivalMs(meter, seen, now);
  let upper = Math.max(0, highest - rate * sinceArrival);
  let toCome = 0;
  for (const { grantedAt, units } of inTransit.toReversed()) {
    const arrivedAt = Math.max(sinceArrival, now - grantedAt - calmLatenessMs);
    if (arrivedAt > sinceSent) break;
    toCome += units;
    upper = Math.max(upper, Math.max(0, highest - rate * arrivedAt) + toCome);
  }
  return upper;
}
