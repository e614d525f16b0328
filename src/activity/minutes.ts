/**
 * The cells of the last hour, one for each minute. Owns in which cell a fact is counted and which cells are kept; does not
 * own whose cells they are.
 */
import type { EndedFact } from '../telemetry/events.ts';
import { addCount, addWait, emptyCell, shedReasons, type Cell } from './cell.ts';
import type { ActivityKey } from './shared.ts';

export const minuteMs = 60_000;
/** Minutes kept: the running one and an hour of full ones. */
export const keptMinutes = 61;

/** Minutes counted one by one, each in a cell of about 0.9 KB that is made when first used. */
export class Minutes {
  readonly #cells: (Cell | undefined)[] = [];
  /** Minutes changed since {@link takeChanged}. */
  readonly #changed = new Set<number>();
  /** Cell of the running minute: most facts find it here. */
  #current: Cell | null = null;
  readonly #keyOf: () => ActivityKey;
  #key: ActivityKey | null = null;

  /** `keyOf` makes the digest for the shared store. */
  constructor(keyOf: () => ActivityKey) {
    this.#keyOf = keyOf;
  }

  /** Digest for the shared store, made when first asked for: it costs microseconds, and most are never needed. */
  get key(): ActivityKey {
    return (this.#key ??= this.#keyOf());
  }

  /** The cell in which facts of this minute are counted already, or `null`: {@link begin} gives it then. */
  running(minute: number): Cell | null {
    return this.#current?.minute === minute ? this.#current : null;
  }

  /** The cell for facts of this minute, to be published next. */
  begin(minute: number): Cell {
    const index = minute % keptMinutes;
    let cell = this.#cells[index];
    // A clock that stepped back far writes into the newer cell: such a call is counted, though in a later minute.
    if (cell === undefined || cell.minute < minute) this.#cells[index] = cell = emptyCell(minute);
    this.#changed.add(cell.minute);
    this.#current = cell;
    return cell;
  }

  /** Cells from `fromMinute` on. */
  since(fromMinute: number): Cell[] {
    return this.#cells.flatMap((cell) => (cell !== undefined && cell.minute >= fromMinute ? [cell] : []));
  }

  hasSince(fromMinute: number): boolean {
    return this.#cells.some((cell) => cell !== undefined && cell.minute >= fromMinute);
  }

  /** Returns the cells that changed since the last call of this method. */
  takeChanged(): Cell[] {
    const cells = [...this.#changed].flatMap((minute) => {
      const cell = this.#cells[minute % keptMinutes];
      return cell?.minute === minute ? [cell] : [];
    });
    this.#changed.clear();
    this.#current = null;
    return cells;
  }
}

/** Counts a call that is over. */
export function addEnd(cell: Cell, fact: EndedFact): void {
  const { outcome, code, heldBy, waitedMs, attempts, durationMs } = fact;
  addCount(cell, outcome);
  addWait(cell, waitedMs);
  if (attempts > 0) {
    addCount(cell, 'sent');
    addCount(cell, 'serviceSumMs', Math.max(0, durationMs - waitedMs));
  }
  if (code === 'upstream_refused') addCount(cell, 'upstreamRefused');
  if (heldBy !== null) addCount(cell, `held_by_${heldBy}`);
  if (outcome !== 'shed') return;
  const reason = shedReasons.find((each) => each === code);
  if (reason !== undefined) addCount(cell, reason);
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
