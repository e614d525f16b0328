/** Commands that ask the admin port of a running Sluice: `tail`, `top`, `open`, `pause` and `resume`. Owns the words for the terminal. */
import { EventSourceParserStream } from 'eventsource-parser/stream';
import { z } from 'zod';
import type { AllActivity, LaneActivity } from '../activity/activity.ts';
import { duration as wordsOf } from '../activity/answer.policy.ts';
import { systemClock } from '../clock.ts';
import { table, UsageError, type CliIo, type Screen } from './io.ts';

/** A path below the address of an admin port, which may itself lie below a path. @throws UsageError */
export function adminUrl(admin: string, path: string): URL {
  const url = URL.parse(`.${path}`, admin.replace(/\/*$/, '/'));
  if (url !== null && /^https?:$/.test(url.protocol)) return url;
  throw new UsageError('--admin is a URL such as http://127.0.0.1:9090.');
}

export const nobodyAt = (admin: string): string =>
  `No Sluice answers at ${admin}: name its admin port with --admin http://HOST:PORT.`;

/** Says that the response is none of an admin port, or a refusal. */
export const refusedByAdmin = (admin: string, said: string): string =>
  `${said}\nAsked was ${admin}: --admin http://HOST:PORT names the admin port of a Sluice.`;

const problem = z.object({ detail: z.string() });

/** The response of success; `null` = there is none, which is said on standard error. */
async function askAdmin(
  { admin, path, ...init }: RequestInit & { readonly admin: string; readonly path: string },
  { err }: CliIo,
): Promise<Response | null> {
  const response = await fetch(adminUrl(admin, path), init).catch(() => null);
  if (response?.ok === true) return response;
  const said = problem.safeParse(await response?.json().catch(() => null)).data?.detail;
  const words = said ?? `The response has status ${response?.status}.`;
  err(response === null ? nobodyAt(admin) : refusedByAdmin(admin, words));
  return null;
}

const done = {
  open: 'what its responses had closed is open again, on all replicas',
  pause: 'paused: nobody is sent, on all replicas within a second',
  resume: 'the pause is over, on all replicas within a second',
} as const;

/**
 * Exit code 0, or 1 when it was not done.
 * @param options `seconds` of a pause; `admin`: `http://host:port` of any replica's admin port
 */
export async function runControl(
  verb: keyof typeof done,
  options: { readonly upstream: string; readonly seconds?: number; readonly admin: string },
  io: CliIo,
): Promise<number> {
  const { upstream, seconds, admin } = options;
  const query = seconds === undefined ? '' : `?seconds=${seconds}`;
  const path = `/upstreams/${encodeURIComponent(upstream)}/${verb}${query}`;
  const token = io.env['SLUICE_ADMIN_TOKEN'] ?? '';
  const headers = { 'Sluice-Admin': 'yes', ...(token === '' ? {} : { authorization: `Bearer ${token}` }) };
  const response = await askAdmin({ admin, path, method: 'POST', headers }, io);
  if (response === null) return 1;
  const isChanged = !(await response.text()).includes('not_paused');
  io.out(`${upstream}: ${isChanged ? done[verb] : 'was not paused'}`);
  return 0;
}

/** What a line of `tail` shows of the log's fields (`telemetry/call-record.ts`). */
type EndedCallLine = Readonly<
  Record<'time' | 'workspace' | 'upstream' | 'method' | 'outcome', string> &
    Record<'status' | 'waitedMs' | 'attempts' | 'absorbed' | 'durationMs', number> &
    Record<'code' | 'heldBy' | 'reason', string | null>
> & { readonly heldMs?: Readonly<Record<string, number>> };

/**
 * Prints each call that ends, as one line. Ends when the stream does, or when nobody reads its lines any more: exit code 0; 1 where there
 * is none.
 * @param options `json`: the fields as they come, one JSON object a line
 */
export async function runTail(
  { admin, json }: { readonly admin: string; readonly json: boolean },
  io: CliIo,
): Promise<number> {
  const { body } = (await askAdmin({ admin, path: '/calls', signal: io.readerGone }, io)) ?? {};
  if (!body) return 1;
  const events = body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  try {
    for await (const { event, data } of events)
      if (event === 'call') io.out(json ? data : lineOf(JSON.parse(data) as EndedCallLine));
  } catch {
    // A process that ends cuts its connections.
  }
  if (!io.readerGone.aborted) io.err('Sluice has ended the stream.');
  return 0;
}

/** As `12:00:05 200 ok openai w_0123456789abcdef POST 1.2 s (waited 0.9 s [closed 0.9 s], 2 attempts, 1 absorbed)`. */
export function lineOf(call: EndedCallLine): string {
  const causes = Object.entries(call.heldMs ?? {}).map(([cause, ms]) => `${cause} ${duration(ms)}`);
  const held = causes.length === 0 ? '' : ` [${causes.join(', ')}]`;
  const why = [
    call.code,
    call.heldBy === null ? null : `held by ${call.heldBy}`,
    call.reason,
    call.waitedMs < 10 ? null : `waited ${duration(call.waitedMs)}${held}`,
    call.attempts > 1 ? `${call.attempts} attempts` : null,
    call.absorbed > 0 ? `${call.absorbed} absorbed` : null,
  ].filter((words) => words !== null);
  const { time, status, outcome, upstream, workspace, method, durationMs } = call;
  const words = [time.slice(11, 19), status, outcome, upstream, workspace, method, duration(durationMs)];
  return `${words.join(' ')}${why.length === 0 ? '' : ` (${why.join(', ')})`}`;
}

const duration = (ms: number): string => (ms < 1_000 ? `${Math.round(ms)} ms` : inSeconds(ms));
const inSeconds = (ms = 0): string => `${(ms / 1_000).toFixed(1)} s`;
/** "3.4 s", "23 h 46 min". */
const inWords = (ms: number): string => wordsOf(ms).replaceAll('\u00a0', ' ');

const everyMs = 2_000;
/** Cursor home, and everything below it empty. */
const clearScreen = '\u001b[H\u001b[2J';

/**
 * Whether traffic can be raised, and the busiest workspaces on their upstreams, drawn again every two seconds until it is interrupted, or
 * once where nobody watches. Exit code 1 where no Sluice answers.
 * @param options `once`: one picture, and no more; `json`: what `/activity` says, as it is, once
 */
export async function runTop(
  { admin, once, json }: { readonly admin: string; readonly once: boolean; readonly json: boolean },
  io: CliIo,
): Promise<number> {
  const drawsAgain = io.terminals.out !== null && !once && !json;
  for (;;) {
    const response = await askAdmin({ admin, path: '/activity?window=5m' }, io);
    if (response === null) return 1;
    try {
      const said = (await response.json()) as AllActivity;
      const shown = json ? JSON.stringify(said) : picture(said, drawsAgain ? io.terminals.out : null);
      io.out(drawsAgain ? `${clearScreen}${shown}` : shown);
    } catch {
      io.err(refusedByAdmin(admin, 'The response is nothing that this version of Sluice says.'));
      return 1;
    }
    if (!drawsAgain) return 0;
    await new Promise<void>((resolve) => void systemClock.after(everyMs, resolve));
  }
}

/** The worst first. */
const tones = ['red', 'amber', 'blue', 'grey', 'green'];

/** Without what is known of a workspace only where it has called this replica. */
type Lane = Pick<LaneActivity, 'upstream' | 'recent'> & Partial<LaneActivity>;

const heads = 'workspace,upstream,waiting,in flight,left,next slot,calls,p95 wait,absorbed,refused'.split(
  ',',
);

function rowOf({ workspace, ...lane }: { readonly workspace: string } & Lane): readonly string[] {
  const { ceilings: { perMinute, perDay } = {}, nextSlotMs, recent } = lane;
  const left = perMinute ?? perDay;
  // As on the page, a refusal that keeps the call's position does not count.
  const refused = Object.values(recent.shed).reduce((sum, n) => sum + n, recent.outcomes['throttled'] ?? 0);
  return [
    workspace,
    lane.upstream,
    lane.waiting ?? 0,
    lane.inFlight ?? 0,
    left ? `${left.remaining} of ${left.limit}` : '–',
    typeof nextSlotMs === 'number' ? inWords(nextSlotMs) : '–',
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
export function picture({ answer, upstreams, replicas, workspaces }: AllActivity, screen: Screen | null) {
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
  // The last line of a screen stays free for the cursor.
  return lines
    .slice(0, screen.rows - 1)
    .map((line) => line.slice(0, screen.columns))
    .join('\n');
}
