/** `sluice tail`: each call that ends, as one line. Owns the words of a line; the fields are those of the log (`telemetry/call-record.ts`). */
import { z } from 'zod';
import { askAdmin, eventsOf, refusedByAdmin } from './admin-port.ts';
import type { CliIo } from './io.ts';

export interface TailCommand {
  readonly admin: string;
  /** The fields as they come, one JSON object a line. */
  readonly isJson: boolean;
}

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

/** Ends when the stream does, or when nobody reads its lines any more: exit code 0; 1 where there is none. */
export async function runTail({ admin, isJson }: TailCommand, io: CliIo): Promise<number> {
  const response = await askAdmin(admin, { path: '/calls', init: { signal: io.readerGone } }, io);
  if (response === null) return 1;
  if (!response.ok || response.body === null) {
    io.err(refusedByAdmin(admin, `The response has status ${response.status}.`));
    return 1;
  }
  for await (const call of eventsOf(response.body, 'call'))
    io.out(isJson ? JSON.stringify(call) : lineOf(call));
  if (!io.readerGone.aborted) io.err('Sluice has ended the stream.');
  return 0;
}

/** As `12:00:05 200 ok openai w_0123456789abcdef POST 1.2 s (waited 0.9 s [closed 0.9 s], 2 attempts, 1 absorbed)`. */
export function lineOf(said: unknown): string {
  const { data: call } = endedCall.safeParse(said);
  // Of another version of Sluice.
  if (call === undefined) return JSON.stringify(said);
  const why = [
    ...(call.code === null ? [] : [call.code]),
    ...(call.heldBy === null ? [] : [`held by ${call.heldBy}`]),
    ...(call.reason === null ? [] : [call.reason]),
    ...(call.waitedMs < 10 ? [] : [`waited ${inSeconds(call.waitedMs)}${causesOf(call.heldMs)}`]),
    ...(call.attempts > 1 ? [`${call.attempts} attempts`] : []),
    ...(call.absorbed > 0 ? [`${call.absorbed} absorbed`] : []),
  ];
  const words = [
    call.time.slice(11, 19),
    call.status,
    call.outcome,
    call.upstream,
    call.workspace,
    call.method,
    inSeconds(call.durationMs),
  ];
  return `${words.join(' ')}${why.length === 0 ? '' : ` (${why.join(', ')})`}`;
}

/** What held the call, as ` [closed 0.8 s, tokens 100 ms]`. */
function causesOf(heldMs: Readonly<Record<string, number>> = {}): string {
  const causes = Object.entries(heldMs).map(([cause, ms]) => `${cause} ${inSeconds(ms)}`);
  return causes.length === 0 ? '' : ` [${causes.join(', ')}]`;
}

const inSeconds = (ms: number): string =>
  ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`;
