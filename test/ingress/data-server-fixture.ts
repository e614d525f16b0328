/** A data server on a free port with a fake journey, and clients that are closed with it. */
import { afterEach } from '@jest/globals';
import type { Call, Outcome } from '../../src/call.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { ServerSettings } from '../../src/config/settings.ts';
import type { RefusalCode } from '../../src/errors.ts';
import { DataServer } from '../../src/ingress/data-server.ts';
import type { DataServerOptions } from '../../src/ingress/connections.ts';
import { connectRaw, type RawClient } from '../support/raw-client.ts';

const { server: usual } = parseSettings(
  "upstreams: { api: { origins: ['https://api.example'] } }\nworkspaces: { acme: { keys: [] } }",
  { path: 'test.yaml', env: {} },
);
export const serverSettings: ServerSettings = {
  ...usual,
  host: '127.0.0.1',
  port: 0,
  adminPort: 0,
  maxBodyBytes: 10_000,
  maxReplayBytes: 1_000,
  maxHeldBytes: 25_000,
  maxConnections: 1_000,
  maxOpenCalls: 1_000,
  maxEventLoopDelayMs: 100,
};

/** An outcome with nothing special about it. */
export const outcomeOf = (more: Partial<Outcome> = {}): Outcome => ({
  status: 200,
  throttled: false,
  fields: ['Content-Type', 'text/plain'],
  body: Buffer.from('fine'),
  record: { waitedMs: 0, attempts: 1, absorbed: 0, held: [] },
  rateLimit: null,
  shouldRetry: null,
  onEnd: () => {},
  ...more,
});

export type Fixture = Awaited<ReturnType<typeof startDataServer>>;

const cleanups: (() => Promise<void>)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

/** Starts a server whose journey is `handle`; closed, and checked for leaks, after the test. */
export async function startDataServer(
  handle: (call: Call) => Promise<Outcome> = () => Promise.resolve(outcomeOf()),
  more: Partial<DataServerOptions> = {},
) {
  /** Calls that reached the journey. */
  const calls: Call[] = [];
  const bugs: unknown[] = [];
  const requestRefusals: RefusalCode[] = [];
  const clients: RawClient[] = [];
  const data = new DataServer({
    settings: serverSettings,
    clock: systemClock,
    random: systemRandom,
    handle: (call) => {
      calls.push(call);
      return handle(call);
    },
    activity: () => Promise.resolve({ upstreams: [] }),
    credentialFields: () => new Set(['authorization', 'x-api-key']),
    onBug: (error) => bugs.push(error),
    onRequestRefused: ({ code }) => requestRefusals.push(code),
    onOverload: () => {},
    onShedding: () => {},
    load: null,
    lingerMs: 30,
    ...more,
  });
  const { port } = await data.listen();
  cleanups.push(async () => {
    for (const client of clients) client.socket.destroy();
    await data.close();
    await settled(() => data.stats().openCalls === 0 && data.stats().connections === 0);
    if (held(data) !== 0) throw new Error(`${held(data)} bytes still counted as held`);
  });
  const client = async (): Promise<RawClient> => {
    const opened = await connectRaw(port);
    clients.push(opened);
    return opened;
  };
  return { data, port, calls, bugs, requestRefusals, client };
}

/** Bytes of heads and bodies that a server holds. */
export function held(data: DataServer): number {
  const { heldBytes, headBytes } = data.stats();
  return heldBytes + headBytes;
}

/** Resolves once the condition holds; looks again in every turn of the event loop, for twenty seconds at most. */
export async function settled(condition: () => boolean): Promise<void> {
  const end = systemClock.monotonic() + 20_000;
  while (!condition()) {
    if (systemClock.monotonic() > end) throw new Error('the expected state was never reached');
    await new Promise((resolve) => setImmediate(resolve));
  }
}
