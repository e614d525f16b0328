/** The upstream of the soak: does what it is asked, notes it in the ledger, and gets into trouble on request. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Random } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { serve } from '../cluster/upstream.ts';
import type { Ledger, Made } from './ledger.ts';

/** `throttling`: 429 · `failing`: 500 · `resetting`: cut before the work · `cutting`: after it · `slow`: 1.5 s later. */
export const troubles = ['throttling', 'failing', 'resetting', 'cutting', 'slow'] as const;
export type Trouble = (typeof troubles)[number];

export interface Upstream {
  /** Two, so that they can be two upstreams of a configuration. */
  readonly origins: readonly string[];
  trouble: Trouble | null;
  /** Refusals so far. */
  readonly throttled: number;
  stop(): void;
}

const retryAfterSeconds = 1;
const slowMs = 1_500;
const pieces = 5;

async function stream(response: ServerResponse): Promise<void> {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  for (let piece = 0; piece < pieces; piece += 1) {
    response.write(`data: ${piece}\n\n`);
    await pause(150);
  }
  response.end('data: [DONE]\n\n');
}

export async function startUpstream(ledger: Ledger, random: Random): Promise<Upstream> {
  let throttled = 0;
  async function respond(request: IncomingMessage, response: ServerResponse, made: Made): Promise<void> {
    const { trouble } = upstream;
    if (trouble === 'throttling') {
      throttled += 1;
      response.writeHead(429, { 'retry-after': String(retryAfterSeconds) }).end();
      return;
    }
    made.isFaulted ||= trouble !== null && trouble !== 'slow';
    if (trouble === 'failing') return void response.writeHead(500).end('{}');
    if (trouble === 'resetting') return void request.socket.resetAndDestroy();
    if (trouble === 'slow') await pause(slowMs);
    made.times += 1;
    if (trouble === 'cutting') {
      response.writeHead(200, { 'content-length': 1_000 }).write('cut');
      await pause(20);
      return void request.socket.resetAndDestroy();
    }
    await pause(20 + random.next() * 80);
    if (request.url?.startsWith('/stream') === true) await stream(response);
    else response.end('done');
  }
  const start = () =>
    serve((request, response) => respond(request, response, ledger.of(String(request.headers['x-nonce']))));
  const servers = [await start(), await start()];
  const upstream = {
    origins: servers.map(({ origin }) => origin),
    trouble: null as Trouble | null,
    get throttled() {
      return throttled;
    },
    stop: () => servers.forEach((server) => server.stop()),
  };
  return upstream;
}
