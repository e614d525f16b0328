/**
 * A cell: what was counted for one workspace on one upstream in one minute. Owns the layout of a cell, the sum of two cells
 * ({@link addInto}) and their difference ({@link takeOut}); does not own to whom a cell belongs. Counts are added and
 * subtracted; the longest wait is a maximum, which both functions treat apart.
 */
import type { Costs } from '../call.ts';
import { heldByReasons, type HeldBy, type RefusalCode } from '../errors.ts';
import { outcomes, type CallOutcome } from '../telemetry/outcome.policy.ts';
import type { RecentPressure } from './shape.ts';

/**
 * Codes of the refusals whose outcome is `shed` (`errors.ts`), each counted apart. Cells are published as lists of numbers by
 * index: the order of this list is part of their layout.
 */
export const shedReasons = [
  'queue_full',
  'wait_too_long',
  'wait_expired',
  'day_quota_exhausted',
  'draining',
  'limiter_unavailable',
  'overloaded',
] as const satisfies readonly RefusalCode[];

/** Upper bounds of the wait histogram, milliseconds; one more bucket catches the rest. */
const waitBoundsMs = [
  5, 10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 45_000, 60_000, 75_000,
  120_000, 300_000, 600_000,
] as const;

const scalars = [
  'absorbed',
  'throttledRate',
  'throttledPermanent',
  'held',
  'waitSumMs',
  'waitMaxMs',
  'sent',
  'serviceSumMs',
  'upstreamRefused',
] as const;
type Scalar = (typeof scalars)[number];

/** Units that calls take from meters when they arrive, as far as they are counted. */
export const countedUnits = ['requests', 'tokens', 'input_tokens', 'output_tokens', 'cost'] as const;
export type CountedUnit = (typeof countedUnits)[number];

const columnNames = [
  ...outcomes,
  ...scalars,
  ...shedReasons,
  ...countedUnits,
  ...heldByReasons.map((reason) => `held_by_${reason}` as const),
] as const;
const indexOf = new Map<string, number>(columnNames.map((name, index) => [name, index]));
/** The column of the first bucket of the wait histogram. */
const firstBound = columnNames.length;
const columnCount = firstBound + waitBoundsMs.length + 1;
const columnOf = (name: string): number => indexOf.get(name) ?? -1;
// These columns are looked up once, because a wait is added for every call.
const [held, waitSum, waitMax] = [columnOf('held'), columnOf('waitSumMs'), columnOf('waitMaxMs')];

export type CellField =
  CallOutcome | Scalar | (typeof shedReasons)[number] | CountedUnit | `held_by_${HeldBy}`;

export interface Cell {
  /** Number of the minute since the Unix epoch. */
  readonly minute: number;
  /** One number for each column. */
  readonly counts: Float64Array;
  /** Arrivals in each of the minute's 60 seconds. */
  readonly seconds: Uint16Array;
}

export function emptyCell(minute: number): Cell {
  return { minute, counts: new Float64Array(columnCount), seconds: new Uint16Array(60) };
}

export function countOf(cell: Cell, field: CellField): number {
  return cell.counts[indexOf.get(field) ?? -1] ?? 0;
}

export function addCount(cell: Cell, field: CellField, by = 1): void {
  const index = indexOf.get(field);
  if (index !== undefined) cell.counts[index] = (cell.counts[index] ?? 0) + by;
}

/** Records how long a call was held. */
export function addWait(cell: Cell, waitedMs: number): void {
  const { counts } = cell;
  if (waitedMs >= 1) counts[held] = (counts[held] ?? 0) + 1;
  counts[waitSum] = (counts[waitSum] ?? 0) + waitedMs;
  if (waitedMs > (counts[waitMax] ?? 0)) counts[waitMax] = waitedMs;
  let index = firstBound;
  for (const bound of waitBoundsMs) {
    if (waitedMs <= bound) break;
    index += 1;
  }
  counts[index] = (counts[index] ?? 0) + 1;
}

/** Counts an arrival, and what its call takes from meters. */
export function addArrival(cell: Cell, second: number, costs: Costs): void {
  // A second with more than 65,535 arrivals is beyond any limit that could be replayed against.
  cell.seconds[second] = Math.min(65_535, (cell.seconds[second] ?? 0) + 1);
  for (const [index, unit] of unitColumns) {
    const units = costs[unit];
    if (units !== undefined) cell.counts[index] = (cell.counts[index] ?? 0) + units;
  }
}

const unitColumns = countedUnits.map((unit) => [columnOf(unit), unit] as const);

/** Calls that met no room: those refused for lack of it or of time, and throttled responses that reached clients. */
export const refusedIn = (cell: Cell): number =>
  refusedFields.reduce((sum, field) => sum + countOf(cell, field), 0);

const refusedFields = [
  'queue_full',
  'wait_too_long',
  'wait_expired',
  'day_quota_exhausted',
  'throttled',
] as const satisfies readonly CellField[];

/** Adds `from` to `into`, count for count. `into` keeps its minute. */
export function addInto(into: Cell, from: Cell): void {
  for (let i = 0; i < columnCount; i++) {
    const [a, b] = [into.counts[i] ?? 0, from.counts[i] ?? 0];
    into.counts[i] = i === waitMax ? Math.max(a, b) : a + b;
  }
  for (let i = 0; i < 60; i++)
    into.seconds[i] = Math.min(65_535, (into.seconds[i] ?? 0) + (from.seconds[i] ?? 0));
}

/**
 * `whole`, which is a sum, less those of its `parts` that are given. Where the longest wait of the whole may be that of a
 * part, the longest wait of the rest is not known: the upper bound of the last histogram bucket that still has calls stands
 * for it. No count becomes negative, also when a part was read a moment later than the whole.
 */
export function takeOut(whole: Cell, parts: readonly Cell[]): Cell {
  const rest = emptyCell(whole.minute);
  rest.counts.set(whole.counts);
  for (const part of parts) {
    for (let i = 0; i < columnCount; i++) {
      if (i !== waitMax) rest.counts[i] = Math.max(0, (rest.counts[i] ?? 0) - (part.counts[i] ?? 0));
    }
  }
  const longest = rest.counts.findLastIndex((n, i) => i >= firstBound && n > 0);
  const bound = longest < 0 ? 0 : (waitBoundsMs[longest - firstBound] ?? Infinity);
  // Sums of fractions depend on their order: what is left without any call is no wait.
  if (longest < 0) rest.counts[waitSum] = 0;
  rest.counts[waitMax] = Math.min(rest.counts[waitMax] ?? 0, bound);
  return rest;
}

/** True when nothing was counted: neither an arrival nor an end. */
export const isEmpty = ({ counts, seconds }: Cell): boolean =>
  counts.every((n) => n === 0) && seconds.every((n) => n === 0);

/**
 * The wait that a `share` (0 to 1) of the calls did not exceed, milliseconds: the upper bound of its histogram bucket, at
 * most the cell's longest wait.
 */
export function waitQuantile(cell: Cell, share: number): number {
  const counts = cell.counts.subarray(firstBound);
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total === 0) return 0;
  let seen = 0;
  for (const [i, n] of counts.entries()) {
    seen += n;
    if (seen >= share * total) return Math.min(waitBoundsMs[i] ?? Infinity, countOf(cell, 'waitMaxMs'));
  }
  return countOf(cell, 'waitMaxMs');
}

/** What `/activity` shows of the counts of some minutes, summed in one cell. Waits are rounded to milliseconds; reasons of refusals are listed only where there were any. */
export function recentOf(cell: Cell): RecentPressure {
  const byOutcome = Object.fromEntries(outcomes.map((outcome) => [outcome, countOf(cell, outcome)]));
  const calls = outcomes.reduce((sum, outcome) => sum + countOf(cell, outcome), 0);
  return {
    calls,
    outcomes: byOutcome,
    held: countOf(cell, 'held'),
    waitMs: {
      mean: calls > 0 ? Math.round(countOf(cell, 'waitSumMs') / calls) : 0,
      p50: Math.round(waitQuantile(cell, 0.5)),
      p95: Math.round(waitQuantile(cell, 0.95)),
      max: Math.round(countOf(cell, 'waitMaxMs')),
    },
    absorbed: countOf(cell, 'absorbed'),
    throttled: { rate: countOf(cell, 'throttledRate'), permanent: countOf(cell, 'throttledPermanent') },
    shed: Object.fromEntries(
      shedReasons.map((reason) => [reason, countOf(cell, reason)] as const).filter(([, n]) => n > 0),
    ),
  };
}
