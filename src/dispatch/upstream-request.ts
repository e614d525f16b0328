/**
 * The request of one sending of a call: what goes onto the wire, when it may, and by what its response is read.
 *
 * Owns: putting that together once, in one object that goes from the dispatcher to the last byte of the response. Does not own:
 * which fields are sent (`fields.policy.ts`), sending (`transport.ts`).
 */
import type { Call, CallBody, Caller, InjectedField, Route } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import type { Agents, Pool } from './agents.ts';
import type { CallDescription } from './estimate.policy.ts';
import { outgoingFields, type OutgoingFields } from './fields.policy.ts';
import type { AttemptFacts } from './read-response.ts';
import type { OrderedSending } from './send-order.ts';
import type { SocketPermit, SocketPermits } from './socket-permits.ts';
import type { TransportAttempt } from './transport.ts';

/** Our name in `Via`; a call that already carries it came back to us. */
export const pseudonym = 'sluice';

/** Cookies of a client pass on `/via`, where each upstream has its own path; one jar for all of `/proxy` would show them to others. */
export const passesCookies = (
  { form }: Pick<Call, 'form'>,
  { cookies }: Pick<Route['upstream'], 'cookies'>,
): boolean => form === 'via' || cookies === 'pass';

/** A call that can be sent, also repeatedly. */
export interface SendableCall {
  readonly call: Call;
  /** The workspace shares the sockets of an upstream with others by its weight. */
  readonly caller: Caller;
  readonly route: Route;
  readonly description: CallDescription;
  readonly body: CallBody;
  /** Values that go upstream in the place of the client's own, by lower-case name of the field. */
  readonly replacedFields?: ReadonlyMap<string, string> | null;
  readonly pools: Pools;
}

/** One sending of a call, as whoever may send it describes it. */
export interface Sending {
  readonly prepared: SendableCall;
  readonly traceparent: string | null;
  /** The injected credential; `null` when the client brings its own. */
  readonly credential: InjectedField | null;
  /** The lane whose order of sending is kept. */
  readonly lane: string;
  /** Ends the exchange: nobody wants the response any more. */
  readonly signal: CallSignal;
}

/** What the sendings to one upstream share. */
export interface Pools {
  readonly agents: Agents;
  readonly permits: SocketPermits;
  readonly clock: Clock;
}

/** What is sent and how its response is read. */
export interface AttemptRequest extends TransportAttempt, AttemptFacts {
  readonly onReady: () => void;
  /** When the request's bytes went out, monotonic milliseconds; the start of the attempt before that. */
  readonly sentAt: number;
}

/** A class: its functions are not made for each attempt. */
export class UpstreamRequest implements AttemptRequest {
  readonly origin: string;
  readonly method: string;
  readonly pathAndQuery: string;
  readonly fields: OutgoingFields;
  readonly body: Buffer | null;
  readonly agent: Pool;
  readonly timeouts: AttemptRequest['timeouts'];
  readonly signal: CallSignal;
  readonly hold: Promise<void> | null;
  readonly kind: AttemptFacts['kind'];
  readonly dialect: AttemptFacts['dialect'];
  readonly callClass: string;
  sentAt: number;
  readonly #caller: Caller;
  readonly #pools: Pools;
  readonly #order: OrderedSending;

  constructor(sending: Sending, order: OrderedSending) {
    const { prepared, traceparent, credential, signal } = sending;
    const { call, caller, route, description, body, replacedFields = null, pools } = prepared;
    const { upstream, host, origin, pathAndQuery } = route;
    const { method, rawFields } = call;
    const { length } = body.bytes;
    this.origin = origin;
    this.method = method;
    this.pathAndQuery = pathAndQuery;
    this.fields = outgoingFields({
      rawFields,
      route: { host, upstream, credential },
      passesCookies: passesCookies(call, upstream),
      dropFields: caller.keyFields,
      method,
      bodyBytes: length,
      pseudonym,
      traceparent,
      replacedFields,
    });
    this.body = length > 0 ? body.bytes : null;
    this.agent = pools.agents.forOrigin(origin);
    this.timeouts = upstream.timeouts;
    this.signal = signal;
    this.hold = order.before;
    this.kind = upstream.kind;
    this.dialect = upstream.dialect;
    this.callClass = description.callClass;
    this.sentAt = pools.clock.monotonic();
    this.#caller = caller;
    this.#pools = pools;
    this.#order = order;
  }

  line(start: () => void): SocketPermit {
    const { id: workspace, weight } = this.#caller.workspace;
    return this.#pools.permits.enter(this.origin, { workspace, weight }, start);
  }

  onReady(): void {
    this.#order.release();
  }

  onSent(): void {
    this.sentAt = this.#pools.clock.monotonic();
  }
}
