/**
 * What responses teach a meter.
 *
 * Only responses show the true level, and each of them describes the instant at which *its* call reached the upstream, somewhere
 * between our sending it and its response's head. So a response does not give a level but bounds, and the model is moved only as
 * far as the bounds demand: a single late or reordered response can neither open the bucket too far nor close it for nothing.
 *
 * Owns: what becomes of the model, and the upstream's refusals. Does not own: the bounds that a response proves
 * (`meter-bounds.policy.ts`), the model itself (`meter.policy.ts`), which limit holds (`meter-quota.policy.ts`), the estimate of
 * what others take (`meter-others.policy.ts`). Pure; `now` is an argument.
 */
import type { MeterReport } from '../../call.ts';
import { levelBounds, type Bounds, type Observation, type SeenLevel } from './meter-bounds.policy.ts';
import { netRate, noteContest, noteOthers, noteOthersBurst } from './meter-others.policy.ts';
import { drain, drainRate, restMs, type Meter, type MeterMark } from './meter.policy.ts';
import { applyReport, isHeldSlower, unusedUnits } from './meter-quota.policy.ts';
import { logReported, logStatedEnd } from './window-log.policy.ts';

/** A slower response raises the time of the fastest response by this factor, and at least by `minRiseMs`. */
const fastestRise = 1.01;
const minRiseMs = 0.05;
/** Upstreams state waits in whole seconds, rounded up. */
const waitGrainMs = 1_000;

/** What a response states of one meter, and how it was obtained. */
export interface Reported {
  readonly report: MeterReport;
  /** The lease's mark; `null` = its call took nothing from the meter. */
  readonly mark: MeterMark | null;
  readonly seen: Observation;
  /** Reported limits may raise a stated one. */
  readonly learn: boolean;
}

/**
 * Learns from one report. Limits: a newer response sets them, downwards always, upwards only when `learn`.
 * Level: moved into the bounds that the report proves.
 */
export function learnMeter(meter: Meter, { report, mark, seen, learn }: Reported, now: number): void {
  drain(meter, now);
  const isNewer = meter.reported === null || seen.sentAt >= meter.reported.sentAt;
  if (isNewer && report.limit > 0) {
    const windowMs = report.windowMs !== null && report.windowMs > 0 ? report.windowMs : null;
    const leftMs = report.resetMs ?? null;
    applyReport(
      meter,
      { limit: report.limit, windowMs, sentAt: seen.sentAt },
      { leftMs, learn, cost: mark?.cost ?? 0, now },
    );
  }
  const { resetMs = null } = report;
  if (resetMs !== null) logStatedEnd(meter, { sentAt: seen.sentAt, headAt: seen.headAt, leftMs: resetMs });
  if (report.level === null || meter.limit === null) return;
  if (meter.log !== null) return logReported(meter, report.level.lowest - unusedUnits(meter), now);
  learnLevel(meter, { level: report.level, mark, seen }, now);
  learnFastest(meter, seen);
  meter.heardAt = Math.max(meter.heardAt ?? seen.sentAt, seen.sentAt);
}

function learnLevel(meter: Meter, found: SeenLevel, now: number): void {
  const { level, mark, seen } = found;
  const { proved, likely, isInOrder, upper } = boundsInForce(meter, levelBounds(meter, found, now), now);
  const before = meter.level;
  const isFirst = meter.fastestMs === null;
  if (isFirst && meter.stated === null) move(meter, { lower: upper, upper }, now);
  else move(meter, { lower: Math.max(proved, Math.min(likely, upper)), upper: Math.max(proved, upper) }, now);
  const cost = mark?.cost ?? 0;
  const sinceMs = meter.heardAt === null ? 0 : seen.sentAt - meter.heardAt;
  // Before the first response the level was unknown; and a call that found the bucket closed shows no burst of others.
  if (isFirst || sinceMs <= 0 || isShut(meter, cost, seen.closedMs)) return;
  noteOthers(meter, changeByOthers(meter, { before, proved, isInOrder }), sinceMs);
  const units = (isInOrder ? likely : proved) - before;
  noteOthersBurst(meter, { units, uncertainty: level.highest - level.lowest, cost }, now);
}

/**
 * Units by which the level has changed because of others, from the level `before` the response.
 *
 * Responses that come out of order let the level rise by what is likely, and that counts calls twice that were granted later
 * and had arrived already. As long as no call that had room was refused (no contest), nobody else need be there: only what
 * is proved counts as a rise then. Otherwise a burst over several replicas would take its own calls for somebody else's.
 */
function changeByOthers(
  { level, contest }: Meter,
  {
    before,
    proved,
    isInOrder,
  }: { readonly before: number; readonly proved: number; readonly isInOrder: boolean },
): number {
  const isGuess = level > before && !isInOrder && contest === null;
  return (isGuess ? Math.min(level, Math.max(before, proved)) : level) - before;
}

/** True when the stated wait is over a second longer than the cost takes to drain: the bucket is not merely full, but closed. */
const isShut = (meter: Meter, cost: number, waitMs: number): boolean =>
  waitMs > waitGrainMs + cost / drainRate(meter);

/**
 * Moves the level into the bounds. Units that do not drain because the meter rests count as used; they are taken off first.
 */
function move(
  meter: Meter,
  { lower, upper }: { readonly lower: number; readonly upper: number },
  now: number,
): void {
  const rate = netRate(meter);
  const most = Math.max(0, Math.min(Math.max(heldAt(meter, now), lower), upper));
  meter.level = Math.min(Math.max(meter.level, lower), most);
  meter.at = now + (most - meter.level) / rate;
}

/** The level plus the units that would drain if the meter did not rest. */
const heldAt = (meter: Meter, now: number): number => meter.level + netRate(meter) * restMs(meter, now);

/** The fastest time falls at once and rises slowly: upstreams become slower at times, and calls of one bucket differ. */
function learnFastest(meter: Meter, { sentAt, headAt }: Observation): void {
  const tookMs = Math.max(0, headAt - sentAt);
  const known = meter.fastestMs;
  meter.fastestMs = known === null ? tookMs : Math.min(tookMs, known * fastestRise + minRiseMs);
}

/** Converts bounds of the upstream's level into bounds of the level under the quota in force. */
function boundsInForce(meter: Meter, bounds: Bounds, now: number): Bounds {
  const { proved, likely, upper } = bounds;
  const unused = unusedUnits(meter);
  const own = isHeldSlower(meter) ? heldAt(meter, now) : 0;
  return { ...bounds, proved: proved - unused, likely: likely - unused, upper: Math.max(upper, own) };
}

/** How a call was refused. */
export interface Refusal {
  /** Units that the call asked for. */
  readonly asked: number;
  /** Stated time until the upstream has room for the call, milliseconds. */
  readonly waitMs: number;
  /** The model had room for the call. */
  readonly hadRoom: boolean;
}

/**
 * The upstream refused a call of this cost. From then on the meter has room for such a call exactly at the stated time: not
 * earlier, and not later either, whatever others are expected to take until then.
 */
export function refused(meter: Meter, { asked, waitMs, hadRoom }: Refusal, now: number): void {
  if (meter.limit === null) return;
  drain(meter, now);
  const cost = Math.min(asked, meter.limit);
  const used = meter.limit - cost;
  if (hadRoom && meter.heardAt !== null && !isShut(meter, cost, waitMs)) {
    noteOthers(meter, Math.max(0, used - meter.level), now - meter.heardAt);
    noteContest(meter, cost, now);
  }
  const rate = netRate(meter);
  if (meter.level + rate * restMs(meter, now) < used + rate * waitMs) {
    meter.level = used;
    meter.at = now + waitMs;
  }
  // The response to a call that was sent before the refusal does not reflect it.
  meter.peak = { level: meter.level + unusedUnits(meter), at: meter.at, headAt: now };
  meter.heardAt = Math.max(meter.heardAt ?? now, now + waitMs);
}

/** Ends a refusal before its time: makes room for the refused call, whose response will state the true level. */
export function reopen(meter: Meter, now: number): void {
  if (meter.at <= now) return;
  meter.at = now;
  meter.peak = null;
  if (meter.heardAt !== null && meter.heardAt > now) meter.heardAt = now;
}
