/** `sluice top`: whether traffic can be raised, and the busiest workspaces on their upstreams, drawn again every two seconds. */
import type { AllActivity, LaneActivity } from '../activity/activity.ts';
import { systemClock } from '../clock.ts';
import { askAdmin, refusedByAdmin } from './admin-port.ts';
import { table, type CliIo, type Screen } from './io.ts';

const everyMs = 2_000;
const path = '/activity?window=5m';

/** The worst first. */
const tones = ['red', 'amber', 'blue', 'grey', 'green'];

/**
 * Runs until it is interrupted, or once where nobody watches. Exit code 1 where no Sluice answers.
 * @param options `once`: one picture, and no more; `json`: what `/activity` says, as it is, once
 */
export async function runTop(
  { admin, once, json }: { readonly admin: string; readonly once: boolean; readonly json: boolean },
  io: CliIo,
): Promise<number> {
  const drawsAgain = io.terminals.out !== null && !once && !json;
  for (;;) {
    const response = await askAdmin(admin, { path }, io);
    if (response === null) return 1;
    const said: unknown = await response.json().catch(() => null);
    const shown = json ? JSON.stringify(said) : drawn(said, drawsAgain ? io.terminals.out : null);
    if (shown === null || said === null) {
      io.err(refusedByAdmin(admin, 'The response is nothing that this version of Sluice says.'));
      return 1;
    }
    io.out(drawsAgain ? `${clearScreen}${shown}` : shown);
    if (!drawsAgain) return 0;
    await new Promise<void>((resolve) => void systemClock.after(everyMs, resolve));
  }
}

/** `null`: it is nothing of this version of Sluice. */
function drawn(said: unknown, screen: Screen | null): string | null {
  try {
    return picture(said as AllActivity, screen);
  } catch {
    return null;
  }
}

/** Cursor home, and everything below it empty. */
const clearScreen = '\u001b[H\u001b[2J';

/** Without what is known of a workspace only where it has called this replica. */
type Lane = Pick<LaneActivity, 'upstream' | 'recent'> & Partial<LaneActivity>;

const heads = [
  'workspace',
  'upstream',
  'waiting',
  'in flight',
  'left',
  'next slot',
  'calls',
  'p95 wait',
  'absorbed',
  'refused',
];
const inSeconds = (ms = 0): string => `${(ms / 1_000).toFixed(1)} s`;

function rowOf({ workspace, ...lane }: { readonly workspace: string } & Lane): readonly string[] {
  const { ceilings: { perMinute } = {}, nextSlotMs, recent } = lane;
  // As on the page, a refusal that keeps the call's position does not count.
  const refused = Object.values(recent.shed).reduce((sum, n) => sum + n, recent.outcomes['throttled'] ?? 0);
  return [
    workspace,
    lane.upstream,
    lane.waiting ?? 0,
    lane.inFlight ?? 0,
    perMinute ? `${perMinute.remaining} of ${perMinute.limit}` : '–',
    typeof nextSlotMs === 'number' ? inSeconds(nextSlotMs) : '–',
    recent.calls,
    inSeconds(recent.waitMs?.p95),
    recent.absorbed,
    refused,
  ].map(String);
}

/**
 * Whether traffic can be raised, and a row for each workspace on each upstream, those that wait most first. What a screen has no room for
 * is cut off.
 */
export function picture(
  { answer, upstreams, replicas, workspaces }: AllActivity,
  screen: Screen | null,
): string {
  const rows = workspaces
    .flatMap(({ workspace, upstreams }) => upstreams.map((lane: Lane) => ({ workspace, ...lane })))
    .toSorted((a, b) => (b.waiting ?? 0) - (a.waiting ?? 0) || b.recent.calls - a.recent.calls);
  const lines = [
    `Sluice, ${replicas === 1 ? '1 replica' : `${replicas} replicas`}, the last 5 minutes`,
    '',
    `Can we raise traffic? ${answer.sentence} ${answer.rest}`.trim(),
    `  Held by    ${answer.heldBy}`,
    `  Wrong now  ${answer.wrongNow}`,
    '',
    ...table(
      [],
      upstreams
        .toSorted((a, b) => tones.indexOf(a.answer.tone) - tones.indexOf(b.answer.tone))
        .map(({ upstream, answer: { text } }) => [`  ${upstream}`, text]),
    ),
    '',
    ...(rows.length === 0 ? ['No workspace has called.'] : table(heads, rows.map(rowOf))),
  ];
  if (screen === null) return lines.join('\n');
  const { columns, rows: height } = screen;
  // The last line of a screen stays free for the cursor.
  const hidden = lines.splice(Math.max(1, height - 2)).length;
  if (hidden > 0) lines.push(`… ${hidden} more lines: sluice top --once`);
  return lines.map((line) => (line.length > columns ? `${line.slice(0, columns - 1)}…` : line)).join('\n');
}
