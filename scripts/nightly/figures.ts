/**
 * What the nightly run measures, and how it compares with what was last committed. A part of the run records its figures one by
 * one; the run collects them, prints them beside the committed ones, and with `--write` puts them in their place.
 */
import { appendFileSync } from 'node:fs';

/** One measurement. Less is better, of every figure. */
export interface Figure {
  /** What was measured, in words that stay the same from run to run. */
  readonly name: string;
  readonly value: number;
  /** One that begins with `×` says that the figure is a ratio within one run, which carries over to other machines. */
  readonly unit: string;
}

/** The figures of one part, and where they come from. */
export interface Measured {
  /** Number and model of the processors. */
  readonly machine: string;
  readonly node: string;
  /** As `2026-01-31`. */
  readonly day: string;
  /** Processes that wanted to run when the part began, on average over a minute: a machine with more than processors is busy. */
  readonly load: number;
  readonly figures: readonly Figure[];
}

/** The committed figures, by the name of the part that measured them: parts may come from several runs. */
export type Measurements = Readonly<Record<string, Measured>>;

/** The variable of the environment that names the file into which a part records its figures. */
export const figuresVariable = 'SLUICE_FIGURES';

/** Leaves figures for the nightly run; does nothing where a part runs by itself. */
export function record(...figures: readonly Figure[]): void {
  const file = process.env[figuresVariable];
  if (file === undefined) return;
  appendFileSync(file, figures.map((figure) => `${JSON.stringify(figure)}\n`).join(''));
}

/** The figures that {@link record} has left in a text. */
export const figuresIn = (text: string): readonly Figure[] =>
  text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Figure);

/** Parts that measured something replace their figures of before; the others keep theirs. */
export const merged = (committed: Measurements, now: Measurements): Measurements => ({
  ...committed,
  ...Object.fromEntries(Object.entries(now).filter(([, { figures }]) => figures.length > 0)),
});

/**
 * So much worse than before a figure gets a remark, as a share of the former value: what the load of a shared machine changes by itself
 * is less. A ratio within one run changes little with the machine, an absolute figure much.
 */
const remarkable = { ratio: 0.1, absolute: 0.25 };

/** One figure beside its committed value. */
export interface Compared {
  readonly name: string;
  readonly unit: string;
  /** `null`: none is committed. */
  readonly before: number | null;
  /** `null`: it was not measured this time. */
  readonly now: number | null;
  /** Empty where there is nothing to remark. */
  readonly remark: string;
}

/** The figures of one part beside the committed ones of the same name and unit; absolute figures only where both are of one machine. */
export function compare(now: Measured, committed: Measured | null): readonly Compared[] {
  const keyOf = ({ name, unit }: Figure): string => `${name}, ${unit}`;
  const former = new Map(committed?.figures.map((figure) => [keyOf(figure), figure]));
  const compared = now.figures.map((figure): Compared => {
    const before = former.get(keyOf(figure))?.value ?? null;
    const remark = remarkOn(figure, before, committed?.machine === now.machine);
    return { name: figure.name, unit: figure.unit, before, now: figure.value, remark };
  });
  for (const figure of now.figures) former.delete(keyOf(figure));
  const gone = [...former.values()].map(({ name, unit, value: before }): Compared => {
    return { name, unit, before, now: null, remark: 'not measured' };
  });
  return [...compared, ...gone];
}

function remarkOn({ unit, value }: Figure, before: number | null, isSameMachine: boolean): string {
  if (before === null) return 'new';
  const isRatio = unit.startsWith('×');
  if (!isRatio && !isSameMachine) return 'of another machine';
  const share = isRatio ? remarkable.ratio : remarkable.absolute;
  return value > before * (1 + share) ? `WORSE by more than ${100 * share} %` : '';
}

/** Where and when, in words. */
export const originOf = ({ machine, node, day, load }: Measured): string =>
  `${day}, ${machine}, load ${load}, Node ${node}`;

/** Three digits say enough. */
const digits = (value: number | null): string => {
  if (value === null) return '–';
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
};

/** Rows of the table that {@link tableHead} begins. */
export const rowsOf = (part: string, compared: readonly Compared[]): readonly string[] =>
  compared.map(({ name, unit, before, now, remark }) => {
    const ratio = before === null || now === null || before === 0 ? '–' : (now / before).toFixed(2);
    return `| ${[part, `${name}, ${unit}`, digits(before), digits(now), ratio, remark].join(' | ')} |`;
  });

export const tableHead = '| part | figure | committed | now | ratio | remark |\n|---|---|---|---|---|---|';
