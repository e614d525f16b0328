/**
 * Sending, with everything it needs per upstream: pools, the transport, costs learned of GraphQL documents.
 *
 * Owns: the pools' lives over reloads. Does not own: who may send and when.
 */
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import { createAgents, type AgentParts } from './agents.ts';
import { attempt, type AttemptResult } from './attempt.ts';
import { SendOrder } from './send-order.ts';
import { SocketPermits } from './socket-permits.ts';
import { createTransport, type Transport } from './transport.ts';
import { UpstreamRequest, type Pools, type Sending } from './upstream-request.ts';

interface UpstreamPools extends Pools {
  readonly of: UpstreamSettings;
}

/** Sends calls, with the pools of the settings in use. */
export class Dispatcher {
  readonly #parts: AgentParts;
  readonly #transport: Transport;
  readonly #order: SendOrder;
  #pools = new Map<string, UpstreamPools>();

  constructor(settings: Settings, parts: AgentParts) {
    const { clock } = parts;
    this.#parts = parts;
    this.#transport = createTransport({ clock });
    this.#order = new SendOrder(clock);
    this.configure(settings);
  }

  send(sending: Sending): Promise<AttemptResult> {
    const pools = this.#poolsOf(sending.prepared.route.upstream);
    const request = new UpstreamRequest(sending, pools, this.#order.enter(sending.lane));
    return attempt(this.#transport, request, this.#parts.clock);
  }

  /** Takes over new settings: pools of changed or removed upstreams end when their last exchange does. */
  configure(next: Settings): void {
    const kept = new Map<string, UpstreamPools>();
    for (const [name, pool] of this.#pools) {
      const upstream = next.upstreams.get(name);
      if (upstream !== undefined && samePool(upstream, pool.of)) kept.set(name, pool);
    }
    this.#pools = kept;
    for (const upstream of next.upstreams.values()) this.#poolsOf(upstream);
  }

  close(): void {
    this.#transport.close();
    for (const { agents } of this.#pools.values()) agents.close();
  }

  #poolsOf(upstream: UpstreamSettings): UpstreamPools {
    const known = this.#pools.get(upstream.name);
    if (known !== undefined) return known;
    const permits = new SocketPermits(upstream.maxSockets);
    const agents = createAgents(upstream, this.#parts);
    const made = { agents, permits, clock: this.#parts.clock, of: upstream };
    this.#pools.set(upstream.name, made);
    return made;
  }
}

const samePool = (a: UpstreamSettings, b: UpstreamSettings): boolean =>
  JSON.stringify(a.allowPrivateAddresses) === JSON.stringify(b.allowPrivateAddresses) &&
  a.maxSockets === b.maxSockets &&
  a.caFile === b.caFile;
