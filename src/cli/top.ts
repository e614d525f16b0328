/** `sluice top`: whether traffic can be raised, and the busiest workspaces on their upstreams, drawn again every two seconds. */
import { z } from 'zod';
import { systemClock } from '../clock.ts';
import { askAdmin, refusedByAdmin } from './admin-port.ts';
import type { CliIo } from './io.ts';

export interface TopCommand {
  readonly admin: string;
  /** One picture, and no more. */
  readonly isOnce: boolean;
  /** What `/activity` says, as it is, once. */
  readonly isJson: boolean;
}

const everyMs = 2_000;
const path = '/activity?window=5m';

const ceiling = z.object({ limit: z.number(), remaining: z.number() }).nullable();
const activity = z.object({
  answer: z.object({
    sentence: z.string(),
    rest: z.string(),
    heldBy: z.string(),
    wrongNow: z.string(),
  }),
  upstreams: z.array(z.object({ upstream: z.string(), answer: z.object({ text: z.string() }) })),
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
            outcomes: z.object({ shed: z.number() }),
            waitMs: z.object({ p95: z.number() }).nullish(),
          }),
        }),
      ),
    }),
  ),
});

/** Runs until it is interrupted, or once where nobody watches. Exit code 1 where no Sluice answers. */
export async function runTop({ admin, isOnce, isJson }: TopCommand, io: CliIo): Promise<number> {
  const drawsAgain = io.terminals.out && !isOnce && !isJson;
  for (;;) {
    const response = await askAdmin(admin, { path }, io);
    if (response === null) return 1;
    if (!response.ok) {
      io.err(refusedByAdmin(admin, `The response has status ${response.status}.`));
      return 1;
    }
    const said: unknown = await response.json();
    const picture = isJson ? JSON.stringify(said) : table(activity.parse(said));
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
  ['refused', ({ recent }) => recent.outcomes.shed],
];

/** Whether traffic can be raised, and a row for each workspace on each upstream, those that wait most first. */
export function table({ answer, upstreams, replicas, workspaces }: Activity): string {
  const heads = columns.map(([head]) => head);
  const rows = workspaces
    .flatMap(({ workspace, upstreams }) => upstreams.map((each) => ({ workspace, ...each })))
    .toSorted((a, b) => (b.waiting ?? 0) - (a.waiting ?? 0) || b.recent.calls - a.recent.calls)
    .map((row) => columns.map(([, cell]) => String(cell(row))));
  const widths = heads.map((head, at) => Math.max(head.length, ...rows.map((row) => row[at]?.length ?? 0)));
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, at) => (at < 2 ? cell.padEnd(widths[at] ?? 0) : cell.padStart(widths[at] ?? 0)))
      .join('  ');
  const of = replicas === 1 ? '1 replica' : `${replicas} replicas`;
  const widest = Math.max(0, ...upstreams.map(({ upstream }) => upstream.length));
  return [
    `Sluice, ${of}, the last 5 minutes`,
    '',
    `Can we raise traffic? ${[answer.sentence, answer.rest].join(' ').trim()}`,
    `  Held by    ${answer.heldBy}`,
    `  Wrong now  ${answer.wrongNow}`,
    '',
    ...upstreams.map(({ upstream, answer: { text } }) => `  ${upstream.padEnd(widest)}  ${text}`),
    '',
    ...(rows.length === 0 ? ['No workspace has called.'] : [line(heads), ...rows.map(line)]),
  ].join('\n');
}
