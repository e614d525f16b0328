/** What `--fail-if` may ask of the figures: `refused > 0`, `p95 > 10`. */
import type { Figures } from './figures.ts';

export interface Condition {
  /** As it was written. */
  readonly text: string;
  /** In calls, seconds, or a share; `null` = there is none. */
  valueOf(figures: Figures): number | null;
  holds(value: number): boolean;
}

const seconds = (ms: number | null): number | null => (ms === null ? null : ms / 1_000);

const figures: Readonly<Record<string, Condition['valueOf']>> = {
  refused: ({ refused }) => refused,
  p50: ({ waitMs }) => seconds(waitMs.p50),
  p95: ({ waitMs }) => seconds(waitMs.p95),
  max: ({ waitMs }) => seconds(waitMs.max),
  utilisation: ({ utilisation }) => utilisation,
};

const comparisons: Readonly<Record<string, (value: number, bound: number) => boolean>> = {
  '>': (value, bound) => value > bound,
  '>=': (value, bound) => value >= bound,
  '<': (value, bound) => value < bound,
  '<=': (value, bound) => value <= bound,
};

/** `null` = it cannot be read. */
export function readCondition(text: string): Condition | null {
  const [, name = '', sign = '', digits] = /^\s*(\w+)\s*([<>]=?)\s*(\d+(?:\.\d+)?)\s*$/.exec(text) ?? [];
  const [valueOf, compare] = [figures[name], comparisons[sign]];
  if (valueOf === undefined || compare === undefined) return null;
  return { text: text.trim(), valueOf, holds: (value) => compare(value, Number(digits)) };
}

export const conditionForm = `--fail-if is like 'refused > 0' or 'p95 > 10' (seconds): one of ${Object.keys(figures).join(', ')}, and a number.`;
