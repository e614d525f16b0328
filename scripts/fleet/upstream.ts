/**
 * An upstream of two origins, one for calls side by side and one for a serialized lane, that notes every request of which it does the
 * work, may demand a token, and gets into trouble on request.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { serve } from './http.ts';

/** `open`: calls side by side, under a ceiling · `serial`: one call in flight. */
export type Lane = 'open' | 'serial';

/** One request that the upstream did the work of. */
export interface Executed {
  /** The name of its call; the idempotency key where it has one. */
  readonly nonce: string;
  readonly lane: Lane;
  /** Counts all requests from 1; the response repeats it, so a client can say which request answered it. */
  readonly serial: number;
  /** Monotonic milliseconds. */
  readonly arrivedAt: number;
  /** When its response was complete; `Infinity` until then. */
  endedAt: number;
  /** Requests of the same lane in flight when it arrived, itself included. */
  readonly inFlight: number;
}

/** `throttling`: 429 · `failing`: 500 · `resetting`: cut before the work · `cutting`: after it · `slow`: 1.5 s later. */
export const troubles = ['throttling', 'failing', 'resetting', 'cutting', 'slow'] as const;

export interface Upstream {
  readonly origins: Readonly<Record<Lane, string>>;
  readonly executed: readonly Executed[];
  /** Calls of which the upstream broke off, or refused, an attempt. */
  readonly faulted: ReadonlySet<string>;
  /** Nonces of the serial calls that are in flight now. */
  readonly serialInFlight: readonly string[];
  trouble: (typeof troubles)[number] | null;
  /** Whether a token is valid; others get 401 and no work is done. Every token is valid by default. */
  isValid: (token: string) => boolean;
  stop(): void;
}

/** @param workMs how long the work takes, milliseconds */
export async function startUpstream(
  workMs: Readonly<Record<Lane, number>> = { open: 30, serial: 150 },
): Promise<Upstream> {
  const executed: Executed[] = [];
  const faulted = new Set<string>();
  const inFlight: Readonly<Record<Lane, Set<Executed>>> = { open: new Set(), serial: new Set() };

  async function respond(lane: Lane, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const token = String(request.headers.authorization).replace('Bearer ', '');
    if (!upstream.isValid(token)) return void response.writeHead(401).end('{"error":"invalid_token"}');
    const nonce = String(request.headers['x-nonce']);
    const { trouble } = upstream;
    if (trouble === 'throttling') return void response.writeHead(429, { 'retry-after': '1' }).end();
    if (trouble !== null && trouble !== 'slow') faulted.add(nonce);
    if (trouble === 'failing') return void response.writeHead(500).end('{}');
    if (trouble === 'resetting') return void request.socket.resetAndDestroy();
    if (trouble === 'slow') await pause(1_500);
    const arrivedAt = systemClock.monotonic();
    const serial = executed.length + 1;
    const one = { nonce, lane, serial, arrivedAt, endedAt: Infinity, inFlight: inFlight[lane].size + 1 };
    executed.push(one);
    inFlight[lane].add(one);
    response.once('close', () => inFlight[lane].delete(one));
    if (trouble === 'cutting') {
      response.writeHead(200, { 'content-length': 1_000 }).write('cut');
      await pause(20);
      return void request.socket.resetAndDestroy();
    }
    await pause(workMs[lane]);
    // Over for the upstream before the gateway can know it and send the next one.
    inFlight[lane].delete(one);
    one.endedAt = systemClock.monotonic();
    const stamp = `${nonce}#${serial}`;
    if (request.url?.endsWith('/stream') !== true) return void response.end(stamp);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${stamp}\n\n`);
    await pause(100);
    response.end('data: [DONE]\n\n');
  }

  const start = (lane: Lane) => serve((request, response) => respond(lane, request, response));
  const servers = { open: await start('open'), serial: await start('serial') };
  const upstream: Upstream = {
    origins: { open: servers.open.origin, serial: servers.serial.origin },
    executed,
    faulted,
    get serialInFlight() {
      return [...inFlight.serial].map(({ nonce }) => nonce);
    },
    trouble: null,
    isValid: () => true,
    stop: () => Object.values(servers).forEach((server) => server.stop()),
  };
  return upstream;
}
