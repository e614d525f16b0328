/**
 * The data of one meter, as plain values.
 *
 * Owns: what is kept and what each value means. Does not own: every change of it (`meter.policy.ts`,
 * `meter-quota.policy.ts`, `meter-learning.policy.ts`, `meter-others.policy.ts`).
 */
import type { Costs, MeterName } from '../../call.ts';

// Names

/** All meters, in the order in which both stores visit them. */
export const meterNames: readonly MeterName[] = [
  'requests',
  'tokens',
  'requests_day',
  'tokens_day',
  'cost',
  'images',
  'requests_burst',
  'requests_hour',
  'input_tokens',
  'output_tokens',
];

/** Further windows of requests: a call takes from them what it takes from `requests`, where the bucket has them. */
export const requestWindows: readonly MeterName[] = ['requests_burst', 'requests_hour'];

/** Windows of requests that are shorter than a day. */
export const windowNames: readonly MeterName[] = ['requests', ...requestWindows];

/** All meters of which each call takes the same, by the length of their windows. */
export const callWindows: readonly MeterName[] = ['requests', 'requests_day', ...requestWindows];

/** Meter names and units of a call's costs, without the zeros. */
export function costEntries(costs: Costs): [MeterName, number][] {
  const entries: [MeterName, number][] = [];
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units > 0) entries.push([name, units]);
  }
  return entries;
}

/** Without a word of the upstream or the operator a window is taken to be this long, milliseconds. */
export const minuteMs = 60_000;
export const dayMs = 86_400_000;

/** `limit` units in each window of this length, milliseconds. */
export interface Quota {
  readonly limit: number;
  readonly windowMs: number;
}

/** What the upstream's responses stated of its quota. */
export interface ReportedQuota {
  readonly limit: number;
  /** `null`: no response stated it. */
  readonly windowMs: number | null;
  /** Sending time of the newest call whose response stated the limit. */
  readonly sentAt: number;
}

export interface Meter {
  /** Changes when its window is described under another name. */
  name: MeterName;
  /** Units per window in force, which follows from `stated` and `reported`; `null`: nobody knows, nobody is held back. */
  limit: number | null;
  /** Window in force, milliseconds; while no limit is known, the one that it is taken to be counted over. */
  windowMs: number;
  /** Quota stated by the operator; `null`: none. */
  stated: Quota | null;
  /** Quota stated by responses; `null`: none stated any. */
  reported: ReportedQuota | null;
  /** Used units at `at`. Before `at` nothing drains: the first call of a burst may not have arrived. */
  level: number;
  at: number;
  /** Units granted, and units of granted calls whose responses are known, since the beginning. */
  granted: number;
  answered: number;
  /** Units of granted calls that the upstream did not count, since the beginning. */
  returned: number;
  /** Estimated consumption of others, units per millisecond. */
  others: number;
  /** The last instant up to which the use of others is known; `null` = it was never known. */
  heardAt: number | null;
  /** Others have been in our way, so that units are kept free for them; `null`: they have not for long. */
  contest: Contest | null;
  /**
   * From the responses; or, where none stated a level, how full the meter was when a stated limit was lowered below what was
   * counted. `null`: neither.
   */
  peak: PeakLevel | null;
  /** Calls that ended without telling the level; `null`: every later call that was answered arrived behind them. */
  unreported: Unreported | null;
  /** About the shortest time between a call and its response's head, milliseconds; `null`: no response stated the level yet. */
  fastestMs: number | null;
  /** When the meter was last found empty: what was reserved before has drained by then. `null`: never. */
  emptyAt: number | null;
  /** What was granted of late, where the operator describes the window; `null`: the level drains continuously. */
  log: WindowLog | null;
  /** Under which name leases hold their marks of it, where that is another one; `null`: its own. */
  heldAs: MeterName | null;
}

/** Sends of one slot, which are forgotten together. */
export interface SendSlot {
  readonly since: number;
  /** When the units stop counting. */
  readonly until: number;
  readonly units: number;
}

/** `rolling`: each window of this length. `fixed`: windows that begin at whole multiples of it since the epoch. */
export type CountedWindow = 'rolling' | 'fixed';

export interface WindowLog {
  readonly counts: CountedWindow;
  /** When the epoch of the clock was, on the clock of the store, milliseconds. Fixed windows begin at multiples of it. */
  readonly epochAt: number;
  /** Oldest first. */
  readonly slots: readonly SendSlot[];
}

export interface Contest {
  /** The most that others were seen to take unexpectedly, and a margin. */
  readonly units: number;
  /** Units that may be kept free for them though nobody waits. */
  readonly allowance: number;
  /** When others were last in our way, or the units were last taken back. */
  readonly at: number;
}

/** The fullest that the bucket can have been when the last of the answered calls arrived. */
export interface PeakLevel {
  readonly level: number;
  /** The level drains from then on. */
  readonly at: number;
  /** When the head of the response arrived: a call that was sent later arrived later than the call it answers. */
  readonly headAt: number;
}

/** Units that may have been counted behind calls that were sent until then. */
export interface Unreported {
  readonly units: number;
  readonly at: number;
}

/**
 * How close in time to other calls of its bucket a call was granted. Calls granted close together may overtake each other on
 * their way to the upstream, so a response to one of them proves less about the order in which they were counted.
 */
export type Spacing =
  /** Another call was granted within the quiet gap before this one. */
  | 'crowded'
  /** No call was granted within the quiet gap before this one. */
  | 'quiet'
  /** As `quiet`, and the last crowded call was granted so long ago that it must have arrived upstream. */
  | 'calm';

/** Position of the meter's counters when a lease was granted. */
export interface MeterMark {
  readonly cost: number;
  /** `granted` right after this grant. */
  readonly granted: number;
  /** `returned` at this grant. */
  readonly returned: number;
  /** When the meter was to drain on right after this grant, as it seemed then. */
  readonly drainsAt: number;
  /** Units of the calls granted within `calmLatenessMs` before that had no response then, oldest first; of calm calls only. */
  readonly inTransit: readonly InTransit[];
}

/** A call that was granted earlier and may still be on its way when a later one arrives. */
export interface InTransit {
  readonly grantedAt: number;
  readonly units: number;
}

/** @param marks the name under which leases are to hold their marks of it, where another meter may hold its own */
export function createMeter(name: MeterName, now: number, marks: MeterName = name): Meter {
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
    others: 0,
    heardAt: null,
    contest: null,
    peak: null,
    unreported: null,
    fastestMs: null,
    emptyAt: null,
    log: null,
    heldAs: marks === name ? null : marks,
  };
}

/** The name under which leases hold their marks of the meter. No two meters of a bucket have the same. */
export const markName = ({ name, heldAs }: Meter): MeterName => heldAs ?? name;

/** A name for the marks of a new meter that no other one has: its own, if it is free. */
export const freeMarkName = (others: readonly Meter[], name: MeterName): MeterName =>
  [name, ...windowNames].find((each) => others.every((other) => markName(other) !== each)) ?? name;

/** Length of the window of a meter as its name says it, milliseconds. */
export const assumedWindowMs = (name: MeterName): number => (name.endsWith('_day') ? dayMs : minuteMs);

/** Units drained per millisecond; 0 while no limit is known. */
export const drainRate = (meter: Meter): number => (meter.limit === null ? 0 : meter.limit / meter.windowMs);
