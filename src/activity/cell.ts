/**
 * A cell: what was counted for one workspace on one upstream in one minute, and the cells of an hour. Owns the layout of a cell, in memory
 * and as text, the sum of two cells ({@link addInto}) and their difference ({@link takeOut}); does not own to whom a cell belongs. Counts
 * are added and subtracted; the longest wait is a maximum, which both functions treat apart.
 */
import type { Costs } from '../call.ts';
import { heldByReasons, roomRefusals, shedReasons, type HeldBy } from '../errors.ts';
import type { EndedFact } from '../telemetry/events.ts';
import { outcomes, type CallOutcome } from '../telemetry/outcome.policy.ts';

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

const refusedFields = [...roomRefusals, 'throttled'] as const;

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
  // Sums of fractions (of waits, of tokens) depend on their order: so little of a sum is nothing.
  for (const [i, sum] of whole.counts.entries()) if ((rest.counts[i] ?? 0) < sum * 1e-9) rest.counts[i] = 0;
  const longest = rest.counts.findLastIndex((n, i) => i >= firstBound && n > 0);
  const bound = longest < 0 ? 0 : (waitBoundsMs[longest - firstBound] ?? Infinity);
  rest.counts[waitMax] = Math.min(rest.counts[waitMax] ?? 0, bound);
  return rest;
}

/** True when nothing was counted: neither an arrival nor an end. */
export const isEmpty = ({ counts, seconds }: Cell): boolean =>
  counts.every((n) => n === 0) && seconds.every((n) => n === 0);

/**
 * The wait that a `share` (0 to 1) of the calls did not exceed, milliseconds: the upper bound of its histogram bucket, at
 * most the cell's longest wait, and at most what each of the others can have waited if they share the sum of all waits.
 */
function waitQuantile(cell: Cell, share: number): number {
  const counts = cell.counts.subarray(firstBound);
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total === 0) return 0;
  const longestMs = countOf(cell, 'waitMaxMs');
  const sharedMs = countOf(cell, 'waitSumMs') / ((1 - share) * total);
  let seen = 0;
  for (const [i, n] of counts.entries()) {
    seen += n;
    if (seen >= share * total) return Math.min(waitBoundsMs[i] ?? Infinity, longestMs, sharedMs);
  }
  return longestMs;
}

/** What `/activity` shows of the counts of some minutes, summed in one cell. Waits are rounded to milliseconds; reasons of refusals are listed only where there were any. */
export function recentOf(cell: Cell) {
  const byOutcome: Readonly<Record<string, number>> = Object.fromEntries(
    outcomes.map((outcome) => [outcome, countOf(cell, outcome)]),
  );
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

/** Counts a call that is over. */
export function addEnd(cell: Cell, fact: EndedFact): void {
  const { outcome, code, heldBy, isReserved = false, waitedMs, attempts, durationMs } = fact;
  addCount(cell, outcome);
  addWait(cell, waitedMs);
  if (attempts > 0) {
    addCount(cell, 'sent');
    addCount(cell, 'serviceSumMs', Math.max(0, durationMs - waitedMs));
  }
  if (code === 'upstream_refused') addCount(cell, 'upstreamRefused');
  if (heldBy !== null) addCount(cell, `held_by_${heldBy}`);
  if (outcome !== 'shed' || isReserved) return;
  const reason = shedReasons.find((each) => each === code);
  if (reason !== undefined) addCount(cell, reason);
}

export const minuteMs = 60_000;
/** Minutes kept: the running one and an hour of full ones. */
export const keptMinutes = 61;

/** The cells of the last hour, each of about 0.9 KB and made when first used. */
export class Minutes {
  readonly #cells: (Cell | undefined)[] = [];
  /** Changed since {@link takeChanged}. */
  readonly #changed = new Set<Cell>();
  /** Cell of the running minute: most facts find it here. */
  #current: Cell | null = null;
  readonly #keyOf: () => string;
  #key: string | null = null;

  /** `keyOf` makes the digest for the shared store. */
  constructor(keyOf: () => string) {
    this.#keyOf = keyOf;
  }

  /** Digest for the shared store, made when first asked for: it costs microseconds, and most are never needed. */
  get key(): string {
    return (this.#key ??= this.#keyOf());
  }

  /** The cell in which facts of this minute are counted already, or `null`: {@link begin} gives it then. */
  running(minute: number): Cell | null {
    return this.#current?.minute === minute ? this.#current : null;
  }

  /** The cell for facts of this minute, to be published next. */
  begin(minute: number): Cell {
    let cell = this.#cells[minute % keptMinutes];
    // A clock that stepped back far writes into the newer cell: such a call is counted, though in a later minute.
    if (cell === undefined || cell.minute < minute) {
      if (cell !== undefined) this.#changed.delete(cell);
      this.#cells[minute % keptMinutes] = cell = emptyCell(minute);
    }
    this.#changed.add(cell);
    this.#current = cell;
    return cell;
  }

  /** Cells from `fromMinute` on. */
  since(fromMinute: number): Cell[] {
    return this.#cells.flatMap((cell) => (cell !== undefined && cell.minute >= fromMinute ? [cell] : []));
  }

  /** Returns the cells that changed since the last call of this method. */
  takeChanged(): Cell[] {
    const cells = [...this.#changed];
    this.#changed.clear();
    this.#current = null;
    return cells;
  }

  /** These cells were taken and could not be published. */
  publishAgain(cells: readonly Cell[]): void {
    for (const cell of cells) if (this.#cells[cell.minute % keptMinutes] === cell) this.#changed.add(cell);
  }
}

/** Arrivals per second of the hour before `now` (wall clock), oldest first. `fromMinute`: the first minute of the cells. */
export function arrivalsPerSecond(
  cells: readonly Cell[],
  fromMinute: number,
  now: number,
): readonly number[] {
  const full = (keptMinutes - 1) * 60 + Math.floor((now % minuteMs) / 1_000) + 1;
  const seconds = Array.from({ length: full }, () => 0);
  for (const cell of cells) {
    const start = (cell.minute - fromMinute) * 60;
    for (const [i, n] of cell.seconds.entries()) {
      if (start + i < seconds.length) seconds[start + i] = (seconds[start + i] ?? 0) + n;
    }
  }
  return seconds.slice(-3_600);
}

/**
 * `<length>;<counts>;<seconds>`: the number of counts in this layout, then for each array its values that are not 0, as
 * `<index>:<value>` joined by commas. The text of a quiet minute is short. Values are rounded to three decimals.
 */
export function cellText({ counts, seconds }: Cell): string {
  return `${counts.length};${pairs(counts)};${pairs(seconds)}`;
}

function pairs(values: Float64Array | Uint16Array): string {
  const kept: string[] = [];
  for (const [index, value] of values.entries()) {
    if (value !== 0) kept.push(`${index}:${Math.round(value * 1_000) / 1_000}`);
  }
  return kept.join(',');
}

/** Reads what {@link cellText} wrote for `minute`; `null` = the text has another layout or format. */
export function cellOfText(minute: number, text: string): Cell | null {
  const cell = emptyCell(minute);
  const [length, counts, seconds, ...more] = text.split(';');
  if (Number(length) !== cell.counts.length || more.length > 0) return null;
  return fill(cell.counts, counts) && fill(cell.seconds, seconds) ? cell : null;
}

function fill(values: Float64Array | Uint16Array, text: string | undefined): boolean {
  if (text === undefined) return false;
  for (const pair of text === '' ? [] : text.split(',')) {
    const match = /^(\d{1,3}):(\d{1,15}(?:\.\d{1,3})?)$/.exec(pair);
    const index = Number(match?.[1] ?? values.length);
    if (index >= values.length) return false;
    values[index] = Number(match?.[2]);
  }
  return true;
}
