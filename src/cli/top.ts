/** `sluice top`: whether traffic can be raised, and the busiest workspaces on their upstreams, drawn again every two seconds. */
import { z } from 'zod';
import { systemClock } from '../clock.ts';
import { askAdmin, refusedByAdmin } from './admin-port.ts';
import type { CliIo, Screen } from './io.ts';

export interface TopCommand {
  readonly admin: string;
  /** One picture, and no more. */
  readonly isOnce: boolean;
  /** What `/activity` says, as it is, once. */
  readonly isJson: boolean;
}

const everyMs = 2_000;
const path = '/activity?window=5m';

/** The worst first. */
const tones = ['red', 'amber', 'blue', 'grey', 'green'] as const;
const ceiling = z.object({ limit: z.number(), remaining: z.number() }).nullable();
const activity = z.object({
  answer: z.object({
    sentence: z.string(),
    rest: z.string(),
    heldBy: z.string(),
    wrongNow: z.string(),
  }),
  upstreams: z.array(
    z.object({ upstream: z.string(), answer: z.object({ tone: z.enum(tones), text: z.string() }) }),
  ),
  replicas: z.number(),
  workspaces: z.array(
    z.object({
      workspace: z.string(),
      upstreams: z.array(
        z.object({
          upstream: z.string(),
          ceilings: z.object({ perMinute: ceiling }).optional(),
          waiting: z.number().nullish(),
          inFlight: z.number().nullish(),
          nextSlotMs: z.number().nullish(),
          recent: z.object({
            calls: z.number(),
            absorbed: z.number(),
            outcomes: z.object({ throttled: z.number() }),
            shed: z.record(z.string(), z.number()),
            waitMs: z.object({ p95: z.number() }).nullish(),
          }),
        }),
      ),
    }),
  ),
});

/** Runs until it is interrupted, or once where nobody watches. Exit code 1 where no Sluice answers. */
export async function runTop({ admin, isOnce, isJson }: TopCommand, io: CliIo): Promise<number> {
  const drawsAgain = io.terminals.out !== null && !isOnce && !isJson;
  for (;;) {
    const response = await askAdmin(admin, { path }, io);
    if (response === null) return 1;
    if (!response.ok) {
      io.err(refusedByAdmin(admin, `The response has status ${response.status}.`));
      return 1;
    }
    const said: unknown = await response.json().catch(() => null);
    const read = activity.safeParse(said);
    if (!read.success) {
      io.err(refusedByAdmin(admin, 'The response is nothing that this version of Sluice says.'));
      return 1;
    }
    const picture = isJson ? JSON.stringify(said) : table(read.data, drawsAgain ? io.terminals.out : null);
    io.out(drawsAgain ? `${clearScreen}${picture}` : picture);
    if (!drawsAgain) return 0;
    await new Promise<void>((resolve) => void systemClock.after(everyMs, resolve));
  }
}

/** Cursor home, and everything below it empty. */
const clearScreen = '\u001b[H\u001b[2J';

type Activity = z.infer<typeof activity>;
type Row = { readonly workspace: string } & Activity['workspaces'][number]['upstreams'][number];

const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`;
/** Head, and what stands below it. */
const columns: readonly (readonly [head: string, cell: (row: Row) => string | number])[] = [
  ['workspace', ({ workspace }) => workspace],
  ['upstream', ({ upstream }) => upstream],
  ['waiting', ({ waiting }) => waiting ?? 0],
  ['in flight', ({ inFlight }) => inFlight ?? 0],
  [
    'left',
    ({ ceilings: { perMinute } = {} }) => (perMinute ? `${perMinute.remaining} of ${perMinute.limit}` : '–'),
  ],
  ['next slot', ({ nextSlotMs }) => (typeof nextSlotMs === 'number' ? seconds(nextSlotMs) : '–')],
  ['calls', ({ recent }) => recent.calls],
  ['p95 wait', ({ recent }) => seconds(recent.waitMs?.p95 ?? 0)],
  ['absorbed', ({ recent }) => recent.absorbed],
  // As on the page, a refusal that keeps the call's position does not count.
  [
    'refused',
    ({ recent: { outcomes, shed } }) => Object.values(shed).reduce((sum, n) => sum + n, outcomes.throttled),
  ],
];
/** Columns that a narrow terminal does without, the first first. */
const spared = ['absorbed', 'in flight', 'p95 wait', 'next slot', 'left', 'calls'];

/**
 * Whether traffic can be raised, and a row for each workspace on each upstream, those that wait most first. On a screen no line is wider,
 * and there are not more of them than it shows.
 */
export function table({ answer, upstreams, replicas, workspaces }: Activity, screen: Screen | null): string {
  const rows = workspaces
    .flatMap(({ workspace, upstreams }) => upstreams.map((each) => ({ workspace, ...each })))
    .toSorted((a, b) => (b.waiting ?? 0) - (a.waiting ?? 0) || b.recent.calls - a.recent.calls);
  const of = replicas === 1 ? '1 replica' : `${replicas} replicas`;
  const widest = Math.max(0, ...upstreams.map(({ upstream }) => upstream.length));
  const width = screen?.columns ?? Infinity;
  const lines = [
    `Sluice, ${of}, the last 5 minutes`,
    '',
    ...wrapped(`Can we raise traffic? ${[answer.sentence, answer.rest].join(' ').trim()}`, width),
    ...wrapped(`  Held by    ${answer.heldBy}`, width),
    ...wrapped(`  Wrong now  ${answer.wrongNow}`, width),
    '',
    ...upstreams
      .toSorted((a, b) => tones.indexOf(a.answer.tone) - tones.indexOf(b.answer.tone))
      .map(({ upstream, answer: { text } }) => `  ${upstream.padEnd(widest)}  ${text}`),
    '',
    ...(rows.length === 0 ? ['No workspace has called.'] : aligned(rows, width)),
  ];
  // The last line of a screen stays free for the cursor.
  const fit = screen === null ? lines.length : Math.max(2, screen.rows - 1);
  const more = lines.length - fit + 1;
  const shown = more > 1 ? [...lines.slice(0, fit - 1), `… ${more} more lines: sluice top --once`] : lines;
  return shown.map((line) => (line.length > width ? `${line.slice(0, width - 1)}…` : line)).join('\n');
}

function aligned(rows: readonly Row[], width: number): readonly string[] {
  const all = columns.map(([head, cell], at) => {
    const cells = [head, ...rows.map((row) => String(cell(row)))];
    const widest = Math.max(...cells.map(({ length }) => length));
    return {
      head,
      widest,
      cells: cells.map((text) => (at < 2 ? text.padEnd(widest) : text.padStart(widest))),
    };
  });
  const left = [...spared];
  let shown = all;
  while (left.length > 0 && shown.reduce((sum, { widest }) => sum + widest + 2, -2) > width) {
    const gone = left.shift();
    shown = shown.filter(({ head }) => head !== gone);
  }
  return [null, ...rows].map((_row, at) => shown.map(({ cells }) => cells[at] ?? '').join('  '));
}

/** Lines no wider than this, broken at spaces; those after the first stand below its text. */
function wrapped(text: string, width: number): readonly string[] {
  if (text.length <= width) return [text];
  const end = text.lastIndexOf(' ', width);
  const indent = ' '.repeat(13);
  if (end <= indent.length) return [text];
  return [text.slice(0, end), ...wrapped(indent + text.slice(end + 1), width)];
}
