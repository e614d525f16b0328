/** One transport, one upstream and what a test needs to send between them. */
import type { Readable } from 'node:stream';
import { afterEach } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { createAgents } from '../../src/dispatch/agents.ts';
import { TransportError } from '../../src/dispatch/transport-error.ts';
import { Transport, type TransportAttempt } from '../../src/dispatch/transport.ts';
import { rawUpstream, type Script } from './raw-upstream.ts';

export type SendingWorld = Awaited<ReturnType<typeof sendingWorld>>;

export const patient = { connectMs: 100_000, headMs: 100_000, idleMs: 100_000, totalMs: 120_000 };

async function sendingWorld(script: Script, clock: Clock = systemClock) {
  const upstream = await rawUpstream(script);
  const agents = createAgents({ allowPrivateAddresses: true, maxSockets: 64, caFile: null }, { clock });
  const transport = new Transport(clock);
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
  return {
    upstream,
    transport,
    agents,
    attempt,
    send: (changes?: Partial<TransportAttempt>) => transport.send(attempt(changes)),
    async close() {
      transport.close();
      agents.close();
      await upstream.close();
    },
  };
}

/** Opens worlds; after each test those that it opened are closed. */
export function sendingWorlds(): (script: Script, clock?: Clock) => Promise<SendingWorld> {
  const worlds: SendingWorld[] = [];
  afterEach(async () => {
    for (const opened of worlds.splice(0)) await opened.close();
  });
  return async (script, clock) => {
    const opened = await sendingWorld(script, clock);
    worlds.push(opened);
    return opened;
  };
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
