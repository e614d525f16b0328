/**
 * Sending, and the pools of connections that it uses.
 *
 * Owns: the pools' lives over reloads. Does not own: who may send and when.
 */
import type { Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { attempt, type AttemptResult } from './attempt.ts';
import { SendOrder } from './send-order.ts';
import { SocketPermits } from './socket-permits.ts';
import { createTransport, type Transport } from './transport.ts';
import { UpstreamRequest, type Pools, type Sending } from './upstream-request.ts';

/** Pools of one upstream, with the settings that they were made of. */
interface UpstreamPools extends Pools {
  readonly of: UpstreamSettings;
}

/** By name of the upstream. */
export type PoolsByUpstream = ReadonlyMap<string, UpstreamPools>;

/**
 * The pools of these upstreams. Pools of an upstream that has not changed go on; others end when their last exchange does.
 * @param former those in use
 * @throws Error where a file of certificates cannot be read
 */
export function createPools(
  upstreams: Settings['upstreams'],
  parts: AgentParts,
  former: PoolsByUpstream | null = null,
): PoolsByUpstream {
  const { clock } = parts;
  const poolsOf = (of: UpstreamSettings): UpstreamPools => {
    const known = former?.get(of.name);
    if (known !== undefined && samePool(of, known.of)) return known;
    return { agents: createAgents(of, parts), permits: new SocketPermits(of.maxSockets), clock, of };
  };
  return new Map(Array.from(upstreams, ([name, upstream]) => [name, poolsOf(upstream)]));
}

const samePool = (a: UpstreamSettings, b: UpstreamSettings): boolean =>
  JSON.stringify(a.allowPrivateAddresses) === JSON.stringify(b.allowPrivateAddresses) &&
  a.maxSockets === b.maxSockets &&
  a.caFile === b.caFile;

/** Sends calls, each over the pools that it comes with. */
export class Dispatcher {
  readonly #clock: Clock;
  readonly #transport: Transport;
  readonly #order: SendOrder;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#transport = createTransport({ clock });
    this.#order = new SendOrder(clock);
  }

  send(sending: Sending): Promise<AttemptResult> {
    const request = new UpstreamRequest(sending, this.#order.enter(sending.lane));
    return attempt(this.#transport, request, this.#clock);
  }

  /** Cuts every exchange that is still going on, and closes these pools. */
  close(pools: PoolsByUpstream): void {
    this.#transport.close();
    for (const { agents } of pools.values()) agents.close();
  }
}
