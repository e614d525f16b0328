/**
 * Writes cells (`cell.ts`: what was counted in one minute), calls and the busiest workspaces as text for the shared store, and reads them again. The texts hold digests, labels
 * and numbers only.
 *
 * Owns: the format of the three texts. Keeps: a cell's text of another layout is read as `null`, never guessed at.
 */
import { emptyCell, type Cell } from './cell.ts';
import type { ActivityKey, LaneCalls } from './shared.ts';

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

/** `<activity key>:<waiting>:<in flight>` for each key, joined by commas. */
export function callsText(calls: ReadonlyMap<ActivityKey, LaneCalls>): string {
  return [...calls].map(([key, { waiting, inFlight }]) => `${key}:${waiting}:${inFlight}`).join(',');
}

/** Reads what {@link callsText} wrote; skips every part that has another form. */
export function callsOfText(text: unknown): readonly (readonly [ActivityKey, LaneCalls])[] {
  if (typeof text !== 'string') return [];
  return text.split(',').flatMap((part) => {
    const match = /^([0-9a-f]{32}):(\d{1,9}):(\d{1,9})$/.exec(part);
    return match === null
      ? []
      : [[match[1] ?? '', { waiting: Number(match[2]), inFlight: Number(match[3]) }] as const];
  });
}

/** `<label>:<busyness>` for each workspace, the busyness to a tenth of a call, joined by commas. */
export function busiestText(busiest: ReadonlyMap<string, number>): string {
  return [...busiest].map(([label, busy]) => `${label}:${Math.round(busy * 10) / 10}`).join(',');
}

/** Reads what {@link busiestText} wrote; skips every part that has another form. */
export function busiestOfText(text: unknown): readonly (readonly [string, number])[] {
  if (typeof text !== 'string') return [];
  return text.split(',').flatMap((part) => {
    const match = /^(w_[0-9a-f]{16}):(\d{1,12}(?:\.\d)?)$/.exec(part);
    return match === null ? [] : [[match[1] ?? '', Number(match[2])] as const];
  });
}
