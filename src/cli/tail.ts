/** `sluice tail`: each call that ends, as one line. Owns the words of a line; the fields are those of the log (`telemetry/call-record.ts`). */
import { z } from 'zod';
import { askAdmin, eventsOf } from './admin-port.ts';
import type { CliIo } from './io.ts';

const endedCall = z.object({
  time: z.string(),
  workspace: z.string(),
  upstream: z.string(),
  method: z.string(),
  outcome: z.string(),
  status: z.number(),
  code: z.string().nullable(),
  heldBy: z.string().nullable(),
  reason: z.string().nullable(),
  waitedMs: z.number(),
  heldMs: z.record(z.string(), z.number()).optional(),
  attempts: z.number(),
  absorbed: z.number(),
  durationMs: z.number(),
});

/**
 * Ends when the stream does, or when nobody reads its lines any more: exit code 0; 1 where there is none.
 * @param options `json`: the fields as they come, one JSON object a line
 */
export async function runTail(
  { admin, json }: { readonly admin: string; readonly json: boolean },
  io: CliIo,
): Promise<number> {
  const response = await askAdmin(admin, { path: '/calls', init: { signal: io.readerGone } }, io);
  if (response?.body === undefined || response.body === null) return 1;
  for await (const call of eventsOf(response.body, 'call'))
    io.out(json ? JSON.stringify(call) : lineOf(call));
  if (!io.readerGone.aborted) io.err('Sluice has ended the stream.');
  return 0;
}

/** As `12:00:05 200 ok openai w_0123456789abcdef POST 1.2 s (waited 0.9 s [closed 0.9 s], 2 attempts, 1 absorbed)`. */
export function lineOf(said: unknown): string {
  const { data: call } = endedCall.safeParse(said);
  // Of another version of Sluice.
  if (call === undefined) return JSON.stringify(said);
  const causes = Object.entries(call.heldMs ?? {}).map(([cause, ms]) => `${cause} ${inSeconds(ms)}`);
  const held = causes.length === 0 ? '' : ` [${causes.join(', ')}]`;
  const why = [
    call.code,
    call.heldBy === null ? null : `held by ${call.heldBy}`,
    call.reason,
    call.waitedMs < 10 ? null : `waited ${inSeconds(call.waitedMs)}${held}`,
    call.attempts > 1 ? `${call.attempts} attempts` : null,
    call.absorbed > 0 ? `${call.absorbed} absorbed` : null,
  ].filter((words) => words !== null);
  const { time, status, outcome, upstream, workspace, method, durationMs } = call;
  const words = [time.slice(11, 19), status, outcome, upstream, workspace, method, inSeconds(durationMs)];
  return `${words.join(' ')}${why.length === 0 ? '' : ` (${why.join(', ')})`}`;
}

const inSeconds = (ms: number): string =>
  ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`;
