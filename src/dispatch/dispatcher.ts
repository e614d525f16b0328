/**
 * Sending, with everything it needs per upstream: pools, the transport, costs learned of GraphQL documents.
 *
 * Owns: the pools' lives over reloads. Does not own: who may send and when.
 */
import type { Call, CallBody, Caller, InjectedField, Route } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import { createAgents, type AgentParts, type Agents } from './agents.ts';
import { attempt, type AttemptResult } from './attempt.ts';
import type { CallDescription } from './estimate.policy.ts';
import { outgoingFields } from './fields.policy.ts';
import { SendOrder } from './send-order.ts';
import { SocketPermits } from './socket-permits.ts';
import { createTransport, type Transport } from './transport.ts';

/** Our name in `Via`; a call that already carries it came back to us. */
export const pseudonym = 'sluice';

/** A call that can be sent, also repeatedly. */
export interface SendableCall {
  readonly call: Call;
  /** The workspace shares the sockets of an upstream with others by its weight. */
  readonly caller: Caller;
  readonly route: Route;
  readonly description: CallDescription;
  readonly body: CallBody;
}

/** What one attempt needs beside the call itself. */
export interface AttemptInput {
  readonly traceparent: string | null;
  /** The injected credential; `null` when the client brings its own. */
  readonly credential: InjectedField | null;
  /** The lane whose order of sending is kept. */
  readonly lane: string;
  /** Ends the exchange: nobody wants the response any more. */
  readonly signal: CallSignal;
}

interface Pools {
  readonly agents: Agents;
  readonly permits: SocketPermits;
  readonly of: UpstreamSettings;
}

/** Sends calls, with the pools of the settings in use. */
export class Dispatcher {
  readonly #parts: AgentParts;
  readonly #transport: Transport;
  readonly #order: SendOrder;
  #pools = new Map<string, Pools>();

  constructor(settings: Settings, parts: AgentParts) {
    const { clock } = parts;
    this.#parts = parts;
    this.#transport = createTransport({ clock });
    this.#order = new SendOrder(clock);
    this.configure(settings);
  }

  send(
    { call, caller, route, description, body: { bytes } }: SendableCall,
    { lane, traceparent, credential, signal }: AttemptInput,
  ): Promise<AttemptResult> {
    const { upstream } = route;
    const { id: workspace, weight } = caller.workspace;
    const { agents, permits } = this.#poolsOf(upstream);
    return attempt(
      this.#transport,
      {
        origin: route.origin,
        method: call.method,
        pathAndQuery: route.pathAndQuery,
        fields: outgoingFields({
          rawFields: call.rawFields,
          route: { host: route.host, upstream, credential },
          dropFields: caller.keyFields,
          method: call.method,
          bodyBytes: bytes.length,
          pseudonym,
          traceparent,
        }),
        body: bytes.length > 0 ? bytes : null,
        agent: agents.forOrigin(route.origin),
        line: (start) => permits.enter(route.origin, { workspace, weight }, start),
        timeouts: upstream.timeouts,
        signal,
      },
      {
        kind: upstream.kind,
        dialect: upstream.dialect,
        callClass: description.callClass,
        method: call.method,
        pathAndQuery: route.pathAndQuery,
      },
      this.#order.enter(lane),
      this.#parts.clock,
    );
  }

  /** Takes over new settings: pools of changed or removed upstreams end when their last exchange does. */
  configure(next: Settings): void {
    const kept = new Map<string, Pools>();
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

  #poolsOf(upstream: UpstreamSettings): Pools {
    const known = this.#pools.get(upstream.name);
    if (known !== undefined) return known;
    const permits = new SocketPermits(upstream.maxSockets);
    const made = { agents: createAgents(upstream, this.#parts), permits, of: upstream };
    this.#pools.set(upstream.name, made);
    return made;
  }
}

const samePool = (a: UpstreamSettings, b: UpstreamSettings): boolean =>
  JSON.stringify(a.allowPrivateAddresses) === JSON.stringify(b.allowPrivateAddresses) &&
  a.maxSockets === b.maxSockets &&
  a.caFile === b.caFile;
