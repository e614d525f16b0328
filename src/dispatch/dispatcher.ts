/** Sends calls, one attempt at a time, and the pools of connections that they use. A resend goes through admission again. */
import type { Readable } from 'node:stream';
import type { CallSignal } from '../call-abort.ts';
import type { Call, CallBody, Caller, Feedback, InjectedField, ResponseHead, Route } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { type AgentParts, type Agents, createAgents } from './agents.ts';
import type { CallDescription } from './estimate.policy.ts';
import { type AttemptFacts, type BodyFeedback, readForLearning } from './read-response.ts';
import { outgoingFields, passesCookies } from './request-fields.policy.ts';
import { SocketPermits } from './socket-permits.ts';
import { bodyError, TransportError } from './transport-error.ts';
import { Transport, type TransportAttempt } from './transport.ts';

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

/** What the sendings to one upstream share, with the settings that it was made of. */
export interface Pools {
  readonly agents: Agents;
  readonly permits: SocketPermits;
  readonly of: UpstreamSettings;
}

/** By name of the upstream. */
export type PoolsByUpstream = ReadonlyMap<string, Pools>;

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
  const poolsOf = (of: UpstreamSettings): Pools => {
    const known = former?.get(of.name);
    if (known !== undefined && samePool(of, known.of)) return known;
    return { agents: createAgents(of, parts), permits: new SocketPermits(of.maxSockets), of };
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
    this.#transport = new Transport(clock);
    this.#order = new SendOrder(clock);
  }

  send(sending: Sending): Promise<AttemptResult> {
    return attempt(this.#transport, this.#requestOf(sending), this.#clock);
  }

  /** Cuts every exchange that is still going on, and closes these pools. */
  close(pools: PoolsByUpstream): void {
    this.#transport.close();
    for (const { agents } of pools.values()) agents.close();
  }

  #requestOf({ prepared, traceparent, credential, lane, signal }: Sending): AttemptRequest {
    const { call, caller, route, description, body, replacedFields = null, pools } = prepared;
    const { upstream, host, origin, pathAndQuery } = route;
    const { agents, permits } = pools;
    const clock = this.#clock;
    const order = this.#order.enter(lane);
    const { length } = body.bytes;
    const request = {
      origin,
      method: call.method,
      pathAndQuery,
      fields: outgoingFields({
        rawFields: call.rawFields,
        route: { host, upstream, credential },
        passesCookies: passesCookies(call, upstream),
        dropFields: caller.keyFields,
        method: call.method,
        bodyBytes: length,
        traceparent,
        replacedFields,
      }),
      body: length > 0 ? body.bytes : null,
      agent: agents.forOrigin(origin),
      timeouts: upstream.timeouts,
      signal,
      hold: order.before,
      kind: upstream.kind,
      dialect: upstream.dialect,
      callClass: description.callClass,
      sentAt: clock.monotonic(),
      line: (start: () => void) => permits.enter(origin, caller.workspace, start),
      onReady: () => order.release(),
      onSent() {
        request.sentAt = clock.monotonic();
      },
    };
    return request;
  }
}

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const maxHoldMs = 1_000;

/**
 * Calls of one lane are written to the upstream in the order of their grants. A call on an open connection would otherwise
 * overtake an earlier call whose connection is still being made: connections are made at once, but a request is written only
 * behind the request before it, unless that one's connection takes longer than `maxHoldMs`.
 */
class SendOrder {
  readonly #clock: Clock;
  readonly #last = new Map<string, Place>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Enters as the last of the lane. `before` resolves when the request may be written; `null` = now. `release`: the next request of the
   * lane may be written behind this one, because this one is on its way to the connection, or will never be written; a second report
   * does nothing.
   */
  enter(lane: string): { readonly before: Promise<void> | null; release(): void } {
    const ahead = this.#last.get(lane);
    const place: Place = { releaseNext: null };
    this.#last.set(lane, place);
    return {
      before: ahead === undefined ? null : this.#until(ahead),
      release: () => {
        if (this.#last.get(lane) === place) this.#last.delete(lane);
        place.releaseNext?.();
      },
    };
  }

  #until(ahead: Place): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(maxHoldMs, resolve);
      ahead.releaseNext = () => {
        cancel();
        resolve();
      };
    });
  }
}

/** `releaseNext` lets the next sending of the lane be written; `null` = none waits. */
interface Place {
  releaseNext: (() => void) | null;
}

// One sending of a call: fields out, response's head in, and what the response teaches

/** What is sent and how its response is read. */
export interface AttemptRequest extends TransportAttempt, AttemptFacts {
  readonly onReady: () => void;
  /** When the request's bytes went out, monotonic milliseconds; the start of the attempt before that. */
  readonly sentAt: number;
}

export type AttemptResult =
  | {
      readonly kind: 'answered';
      readonly head: ResponseHead;
      /** Complete bytes, or the stream that delivers them. */
      readonly body: Buffer | Readable;
      readonly feedback: Feedback;
      /** The lesson with its ages as of now. */
      readonly lesson: () => Lesson;
      /** What the rest of the body teaches; `null` = all is known. */
      readonly bodyFeedback: BodyFeedback | null;
    }
  | {
      readonly kind: 'failed';
      readonly error: TransportError;
    };

/** The status as which a response counts: its own, or that of an error inside it. */
export const statusOf = ({
  head,
  feedback,
}: {
  readonly head: Pick<ResponseHead, 'status'>;
  readonly feedback: Pick<Feedback, 'errorStatus'>;
}): number => feedback.errorStatus ?? head.status;

/** Sends once. Never rejects with anything but a bug. */
export async function attempt(
  transport: Pick<Transport, 'send'>,
  request: AttemptRequest,
  clock: Clock,
): Promise<AttemptResult> {
  try {
    const response = await transport.send(request);
    // A body that broke in the packet of its head: nothing of the response has gone on to the client yet.
    if (response.body.errored !== null) throw bodyError(response.body.errored);
    const headAt = clock.monotonic();
    const read = await readForLearning(response, request, clock);
    const lesson = (): Lesson => {
      const now = clock.monotonic();
      return { feedback: read.feedback, sentAgoMs: now - request.sentAt, headAgoMs: now - headAt };
    };
    return {
      kind: 'answered',
      head: response.head,
      body: read.body,
      feedback: read.feedback,
      lesson,
      bodyFeedback: read.bodyFeedback,
    };
  } catch (error) {
    if (error instanceof TransportError) return { kind: 'failed', error };
    throw error;
  } finally {
    // A request that was never ready must not hold back those behind it.
    request.onReady();
  }
}
