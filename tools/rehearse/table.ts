/** The figures before and after as a table for people. */
import type { Figures, Report } from './figures.ts';

const heads = ['', 'calls', 'refused', 'wait p50', 'p95', 'max', 'busiest minute', 'used'];

export function tableOf(before: Report, after: Report): string {
  const sections = [
    ['upstream', before.upstreams, after.upstreams],
    ['workspace', before.workspaces, after.workspaces],
  ] as const;
  return sections.map(([kind, was, is]) => sectionOf(kind, was, is)).join('\n\n');
}

type ByName = Readonly<Record<string, Figures>>;

/** The busiest come first. */
function sectionOf(kind: string, before: ByName, after: ByName): string {
  const names = Object.keys(after).toSorted((a, b) => (after[b]?.calls ?? 0) - (after[a]?.calls ?? 0));
  const rows = names.flatMap((name) => [
    [name, 'before', ...cellsOf(before[name])],
    ['', 'after', ...cellsOf(after[name])],
  ]);
  const all = [[kind, ...heads], ...rows];
  const widths = [kind, ...heads].map((_, at) => Math.max(...all.map((row) => row[at]?.length ?? 0)));
  const lineOf = (row: readonly string[]): string =>
    row
      .map((cell, at) => (at < 2 ? cell.padEnd(widths[at] ?? 0) : cell.padStart(widths[at] ?? 0)))
      .join('  ')
      .trimEnd();
  return all.map(lineOf).join('\n');
}

function cellsOf(figures: Figures | undefined): string[] {
  if (figures === undefined) return heads.slice(1).map(() => '–');
  const { calls, refused, waitMs, busiestMinute, utilisation } = figures;
  return [
    String(calls),
    String(refused),
    ...[waitMs.p50, waitMs.p95, waitMs.max].map((ms) => (ms === null ? '–' : `${(ms / 1_000).toFixed(1)} s`)),
    String(busiestMinute),
    utilisation === null ? '–' : `${Math.round(utilisation * 100)} %`,
  ];
}
