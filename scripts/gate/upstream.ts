/** The upstream of the gate: two origins that note every request, and a token that they may demand. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { serve } from '../cluster/upstream.ts';

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
  /** Requests of the same lane in flight when it arrived, itself included. */
  readonly inFlight: number;
}

export interface GateUpstream {
  readonly origins: Readonly<Record<Lane, string>>;
  readonly executed: readonly Executed[];
  /** Nonces of the serial calls that are in flight now. */
  readonly serialInFlight: ReadonlySet<string>;
  /** Whether a token is valid; others get 401 and no work is done. Every token is valid by default. */
  isValid: (token: string) => boolean;
  stop(): void;
}

/** How long the work takes, milliseconds. */
const workMs: Readonly<Record<Lane, number>> = { open: 30, serial: 150 };

export async function startUpstream(): Promise<GateUpstream> {
  const executed: Executed[] = [];
  const inFlight: Readonly<Record<Lane, Set<string>>> = { open: new Set(), serial: new Set() };
  let serial = 0;

  async function respond(lane: Lane, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const token = String(request.headers.authorization).replace('Bearer ', '');
    if (!upstream.isValid(token)) return void response.writeHead(401).end('{"error":"invalid_token"}');
    const nonce = String(request.headers['x-nonce']);
    serial += 1;
    const stamp = `${nonce}#${serial}`;
    inFlight[lane].add(stamp);
    response.once('close', () => inFlight[lane].delete(stamp));
    executed.push({
      nonce,
      lane,
      serial,
      arrivedAt: systemClock.monotonic(),
      inFlight: inFlight[lane].size,
    });
    await pause(workMs[lane]);
    // Over for the upstream before the gateway can know it and send the next one.
    inFlight[lane].delete(stamp);
    if (request.url?.endsWith('/stream') !== true) return void response.end(stamp);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${stamp}\n\n`);
    await pause(100);
    response.end('data: [DONE]\n\n');
  }

  const start = (lane: Lane) => serve((request, response) => respond(lane, request, response));
  const [open, serialized] = [await start('open'), await start('serial')];
  const upstream: GateUpstream = {
    origins: { open: open.origin, serial: serialized.origin },
    executed,
    get serialInFlight() {
      return new Set([...inFlight.serial].map((stamp) => stamp.split('#')[0] ?? ''));
    },
    isValid: () => true,
    stop: () => [open, serialized].forEach((one) => one.stop()),
  };
  return upstream;
}
