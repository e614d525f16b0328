/**
 * A cell: what was counted in one minute, under one name ({@link CellName}). Counts are added and subtracted; the longest wait is a maximum,
 * which {@link Cell.addAll} and {@link without} treat apart.
 */
import type { Costs } from '../call.ts';
import { heldByReasons, roomRefusals, shedReasons } from '../errors.ts';
import { outcomes, type EndedFact } from '../telemetry/events.ts';
import { minuteMs } from '../time-units.ts';

/** Upper bounds of the wait histogram but for the last, which has none; milliseconds. */
const waitBoundsMs = [
  5, 10, 25, 50, 100, 250, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 2e4, 3e4, 45e3, 6e4, 75e3, 12e4, 3e5, 6e5,
];

/** Bounds with the names of their counts. */
const waitFields = [...waitBoundsMs, Infinity].map((bound) => ({ bound, field: `wait_${bound}` }));

/** Units that calls take from meters when they arrive, as far as they are counted. */
export const countedUnits = ['requests', 'tokens', 'input_tokens', 'output_tokens', 'cost'] as const;

/**
 * What is counted: outcomes, codes of refusals, units taken, `held_by_` a cause, `wait_` a bound of the histogram, and what {@link Cell} names.
 * Other replicas publish it by these names.
 */
type CellField = string;

/** Calls that met no room: those refused for lack of it or of time, and throttled responses that reached clients. */
const refusedFields = [...roomRefusals, 'throttled'] as const;

/** What was counted, and the arrivals in each of the minute's 60 seconds. */
export interface Counted {
  readonly counts: Readonly<Record<CellField, number>>;
  readonly seconds: ArrayLike<number>;
}

export class Cell {
  /** Number of the minute since the Unix epoch. */
  readonly minute: number;
  readonly counts: Record<CellField, number> = {};
  readonly seconds = new Uint32Array(60);
  /** Whose calls were counted, on this replica; `null` = those of several, or others'. Stays in this process. */
  readonly workspaceId: string | null;

  constructor(minute: number, workspaceId: string | null = null) {
    this.minute = minute;
    this.workspaceId = workspaceId;
  }

  of(field: CellField): number {
    return this.counts[field] ?? 0;
  }

  add(field: CellField, by = 1): void {
    this.counts[field] = field === 'waitMaxMs' ? Math.max(this.of(field), by) : this.of(field) + by;
  }

  /** What other replicas are told. */
  toJSON(): Counted {
    return { counts: this.counts, seconds: [...this.seconds] };
  }

  /** Adds what was counted elsewhere. */
  addAll({ counts, seconds }: Counted): void {
    for (const [field, n] of Object.entries(counts)) this.add(field, n);
    for (let i = 0; i < 60; i++) this.seconds[i] = (this.seconds[i] ?? 0) + (seconds[i] ?? 0);
  }

  /** Counts an arrival, and what its call takes from meters. */
  arrived(second: number, costs: Costs): void {
    this.seconds[second] = (this.seconds[second] ?? 0) + 1;
    for (const unit of countedUnits) if (costs[unit] !== undefined) this.add(unit, costs[unit]);
  }

  /** Counts a call that is over. */
  ended({ outcome, code, heldBy, isReserved = false, waitedMs, attempts, durationMs }: EndedFact): void {
    this.add('ended');
    this.add(outcome);
    if (waitedMs >= 1) this.add('held');
    this.add('waitSumMs', waitedMs);
    this.add('waitMaxMs', waitedMs);
    this.add(waitFields.find(({ bound }) => waitedMs <= bound)?.field ?? 'wait_Infinity');
    if (attempts > 0) {
      this.add('sent');
      this.add('serviceSumMs', Math.max(0, durationMs - waitedMs));
    }
    if (code === 'upstream_refused') this.add('upstreamRefused');
    if (heldBy !== null) this.add(`held_by_${heldBy}`);
    if (outcome === 'shed' && code !== null && !isReserved) this.add(code);
  }

  get arrivals(): number {
    return this.seconds.reduce((sum, n) => sum + n, 0);
  }

  get refused(): number {
    return refusedFields.reduce((sum, field) => sum + this.of(field), 0);
  }

  /** Refused for want of room: what an operator's pause refused says nothing of limits. */
  get refusedForRoom(): number {
    return Math.max(0, this.refused - this.of('held_by_paused'));
  }

  /** Refused calls by what held them. */
  get heldBy() {
    return this.#positive(heldByReasons, 'held_by_');
  }

  /** What `/activity` shows: waits in whole milliseconds, reasons of refusals only where there were any. */
  get recent() {
    const calls = this.of('ended');
    return {
      calls,
      outcomes: Object.fromEntries(outcomes.map((outcome) => [outcome, this.of(outcome)])),
      held: this.of('held'),
      waitMs: {
        mean: calls > 0 ? Math.round(this.of('waitSumMs') / calls) : 0,
        p50: Math.round(this.#waitOf(0.5)),
        p95: Math.round(this.#waitOf(0.95)),
        max: Math.round(this.of('waitMaxMs')),
      },
      absorbed: this.of('absorbed'),
      throttled: { rate: this.of('throttledRate'), permanent: this.of('throttledPermanent') },
      shed: this.#positive(shedReasons),
    };
  }

  #positive<Name extends string>(names: readonly Name[], prefix = '') {
    const counted = names.map((name) => [name, this.of(prefix + name)] as const).filter(([, n]) => n > 0);
    return Object.fromEntries(counted) as Partial<Record<Name, number>>;
  }

  /** The wait that a `share` (0 to 1) of the calls did not exceed, milliseconds: the upper bound of its histogram bucket, or the longest wait. */
  #waitOf(share: number): number {
    let seen = 0;
    const found = waitFields.find(({ field }) => (seen += this.of(field)) >= share * this.of('ended'));
    return Math.min(found?.bound ?? Infinity, this.of('waitMaxMs'));
  }
}

export function sumOf(cells: Iterable<Cell>, minute = 0): Cell {
  const sum = new Cell(minute);
  for (const cell of cells) sum.addAll(cell);
  return sum;
}

/**
 * The counts of `whole` less those of its `parts`; `null` = nothing is left. Its longest wait may be that of a part: the upper bound of the
 * last histogram bucket that still has calls stands for it. No count is negative, also when a part was read a moment later than the whole.
 */
export function without(whole: Cell, parts: readonly Cell[]): Cell | null {
  const rest = new Cell(whole.minute);
  for (const [field, n] of Object.entries(whole.counts)) {
    const left = parts.reduce((sum, part) => sum - part.of(field), n);
    // Sums of fractions (of waits, of tokens) depend on their order: so little of a sum is nothing.
    if (field !== 'waitMaxMs' && left > n * 1e-9) rest.add(field, left);
  }
  const bound = waitFields.findLast(({ field }) => rest.of(field) > 0)?.bound ?? 0;
  rest.add('waitMaxMs', Math.min(whole.of('waitMaxMs'), bound));
  return Object.values(rest.counts).some((n) => n > 0) ? rest : null;
}

/** What the last minutes of an upstream met: the running one is the last. `now`: Unix milliseconds. */
export function lastMinuteOf(byMinute: readonly Cell[], now: number) {
  const [before, running] = byMinute.slice(-2);
  const second = Math.floor((now % minuteMs) / 1_000);
  const earlier = before?.seconds.slice(second + 1).reduce((sum, n) => sum + n, 0) ?? 0;
  const latest = sumOf(byMinute.slice(-2));
  return {
    /** Calls that came in the last 60 seconds. */
    calls: earlier + (running?.arrivals ?? 0),
    /** All below: in the running minute and the one before. Calls refused, and by what held them. */
    refused: latest.refused,
    heldBy: latest.heldBy,
    /** Calls that failed on the upstream's side. */
    failed: latest.of('failed'),
    /** Calls that the upstream answered with a success, and with an error. */
    succeeded: latest.of('ok'),
    errors: latest.of('upstream_error'),
    /** When these minutes began, Unix milliseconds. */
    since: (before?.minute ?? 0) * minuteMs,
  };
}

/** What the last hour of an upstream met. */
export function hourOf(byMinute: readonly Cell[]) {
  const cell = sumOf(byMinute);
  const lastWith = (count: (cell: Cell) => number): number | null => {
    const last = byMinute.findLast((each) => count(each) > 0);
    return last === undefined ? null : last.minute * minuteMs;
  };
  return {
    calls: cell.arrivals,
    refused: cell.refused,
    /** Calls that Sluice answered in the stead of an upstream that refuses for good. */
    answeredInstead: cell.of('upstreamRefused'),
    longestWaitMs: Math.round(cell.of('waitMaxMs')),
    heldBy: cell.heldBy,
    /** When calls were last refused, Unix milliseconds, to the minute; `null` = never in the hour. */
    refusedAt: lastWith((each) => each.refused),
    /** When the upstream last throttled a call, likewise. */
    throttledAt: lastWith((each) => each.of('throttledRate')),
  };
}
