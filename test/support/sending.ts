/** One transport, one upstream and what a test needs to send between them. */
import type { Readable } from 'node:stream';
import { systemClock, type Clock } from '../../src/clock.ts';
import { createAgents } from '../../src/dispatch/agents.ts';
import { TransportError } from '../../src/dispatch/transport-error.ts';
import { Transport, type TransportAttempt } from '../../src/dispatch/transport.ts';
import { closers } from './closers.ts';
import { rawUpstream, type Script } from './raw-upstream.ts';

export type SendingWorld = Awaited<ReturnType<typeof sendingWorld>>;

export const patient = { connectMs: 100_000, headMs: 100_000, idleMs: 100_000, totalMs: 120_000 };

/** Closed after the test. */
export async function sendingWorld(script: Script, clock: Clock = systemClock) {
  const upstream = await rawUpstream(script);
  const agents = createAgents({ allowPrivateAddresses: true, maxSockets: 64, caFile: null }, { clock });
  const transport = new Transport(clock);
  closers.push(
    () => upstream.close(),
    () => agents.close(),
    () => transport.close(),
  );
  /** An attempt with harmless values for all that a test leaves out. */
  const attempt = (changes: Partial<TransportAttempt> = {}): TransportAttempt => ({
    origin: upstream.origin,
    method: 'GET',
    pathAndQuery: '/',
    fields: { host: 'upstream.test' },
    body: null,
    agent: agents.forOrigin(upstream.origin),
    timeouts: patient,
    signal: new AbortController().signal,
    ...changes,
  });
  const send = (changes?: Partial<TransportAttempt>) => transport.send(attempt(changes));
  return { upstream, transport, agents, attempt, send };
}

/** A body's bytes, one character each; rejects with what cut it. */
export async function text(body: Readable): Promise<string> {
  let all = '';
  for await (const chunk of body) all += Buffer.from(chunk).toString('latin1');
  return all;
}

/** The error of a sending that must fail. */
export async function failure(sending: Promise<unknown>): Promise<TransportError> {
  try {
    await sending;
  } catch (error) {
    if (error instanceof TransportError) return error;
    throw error;
  }
  throw new Error('it did not fail');
}
