/**
 * One minute of one workspace on one upstream, in numbers. Owns the layout of a cell, how two are added and what is left
 * of one without another; does not own whose it is. Counts add up, the longest wait does not: those that know it are
 * {@link addInto} and {@link takeOut}.
 */
import { outcomes, type CallOutcome } from '../telemetry/outcome.policy.ts';
import type { RefusalCode } from '../errors.ts';

/** Reasons of refusals kept apart; every refusal of the shed family. Cells are sent as lists by index: this list is part of their layout. */
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
] as const;
type Scalar = (typeof scalars)[number];

const names = [...outcomes, ...scalars, ...shedReasons] as const;
const indexOf = new Map<string, number>(names.map((name, index) => [name, index]));
const firstBound = names.length;
const length = firstBound + waitBoundsMs.length + 1;
const columnOf = (name: string): number => indexOf.get(name) ?? -1;
// Found once: waits are added for every call.
const [held, waitSum, waitMax] = [columnOf('held'), columnOf('waitSumMs'), columnOf('waitMaxMs')];

export type CellField = CallOutcome | Scalar | (typeof shedReasons)[number];

/** A minute. `minute` counts from the Unix epoch; `seconds` are arrivals per second of it. */
export interface Cell {
  readonly minute: number;
  readonly counts: Float64Array;
  readonly seconds: Uint16Array;
}

export function emptyCell(minute: number): Cell {
  return { minute, counts: new Float64Array(length), seconds: new Uint16Array(60) };
}

export function read(cell: Cell, field: CellField): number {
  return cell.counts[indexOf.get(field) ?? -1] ?? 0;
}

export function add(cell: Cell, field: CellField, by = 1): void {
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

export function addArrival(cell: Cell, second: number): void {
  // A second with more than 65,535 arrivals is beyond any limit that could be replayed against.
  cell.seconds[second] = Math.min(65_535, (cell.seconds[second] ?? 0) + 1);
}

/** Adds `from` to `into`, minute for minute. */
export function addInto(into: Cell, from: Cell): void {
  for (let i = 0; i < length; i++) {
    const [a, b] = [into.counts[i] ?? 0, from.counts[i] ?? 0];
    into.counts[i] = i === waitMax ? Math.max(a, b) : a + b;
  }
  for (let i = 0; i < 60; i++)
    into.seconds[i] = Math.min(65_535, (into.seconds[i] ?? 0) + (from.seconds[i] ?? 0));
}

/**
 * What is left of `whole`, a sum, without the `parts` of it. The longest wait that is left is not known where it was one
 * of a part: it is then the bound of the longest waits left, which it does not exceed. No count is ever negative, also
 * when a part was read a moment later than the whole.
 */
export function takeOut(whole: Cell, parts: readonly Cell[]): Cell {
  const rest = emptyCell(whole.minute);
  rest.counts.set(whole.counts);
  for (const part of parts) {
    for (let i = 0; i < length; i++) {
      if (i !== waitMax) rest.counts[i] = Math.max(0, (rest.counts[i] ?? 0) - (part.counts[i] ?? 0));
    }
  }
  const longest = rest.counts.findLastIndex((n, i) => i >= firstBound && n > 0);
  const bound = longest < 0 ? 0 : (waitBoundsMs[longest - firstBound] ?? Infinity);
  rest.counts[waitMax] = Math.min(rest.counts[waitMax] ?? 0, bound);
  return rest;
}

/** True when nothing was counted: neither an arrival nor an end. */
export const isEmpty = ({ counts, seconds }: Cell): boolean =>
  counts.every((n) => n === 0) && seconds.every((n) => n === 0);

/** Wait that `share` (0 to 1) of the calls did not exceed, milliseconds: the bound of its bucket, never above the longest seen. */
export function waitQuantile(cell: Cell, share: number): number {
  const counts = cell.counts.subarray(firstBound);
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total === 0) return 0;
  let seen = 0;
  for (const [i, n] of counts.entries()) {
    seen += n;
    if (seen >= share * total) return Math.min(waitBoundsMs[i] ?? Infinity, read(cell, 'waitMaxMs'));
  }
  return read(cell, 'waitMaxMs');
}
