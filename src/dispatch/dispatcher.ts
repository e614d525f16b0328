/** Sends calls, one attempt at a time, and the pools of connections that they use. A resend goes through admission again. */
import type { Call, CallBody, Caller, Feedback, InjectedField, ResponseHead, Route } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { type AgentParts, type Agents, createAgents } from './agents.ts';
import type { CallDescription } from './estimate.policy.ts';
import { type AttemptFacts, readForLearning, type ReadResponse } from './read-response.ts';
import { outgoingFields, passesCookies } from './fields.policy.ts';
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
  readonly signal: AbortSignal;
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

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const maxHoldMs = 1_000;

/** Sends calls, each over the pools that it comes with. */
export class Dispatcher {
  readonly #clock: Clock;
  readonly #transport: Transport;
  /** Resolve when the latest sending of a lane is ready to be written, or will never be. */
  readonly #written = new Map<string, Promise<void>>();

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#transport = new Transport(clock);
  }

  async send({ prepared, traceparent, credential, lane, signal }: Sending): Promise<AttemptResult> {
    const { call, caller, route, description, body, replacedFields = null, pools } = prepared;
    const { upstream, host, origin, pathAndQuery } = route;
    const { agents, permits } = pools;
    const { method } = call;
    const { length } = body.bytes;
    const { before, release } = this.#enter(lane);
    const request = {
      origin,
      method,
      pathAndQuery,
      fields: outgoingFields({
        rawFields: call.rawFields,
        route: { host, upstream, credential },
        passesCookies: passesCookies(call, upstream),
        dropFields: caller.keyFields,
        method,
        bodyBytes: length,
        traceparent,
        replacedFields,
      }),
      body: length > 0 ? body.bytes : null,
      agent: agents.forOrigin(origin),
      timeouts: upstream.timeouts,
      signal,
      hold: before,
      kind: upstream.kind,
      dialect: upstream.dialect,
      callClass: description.callClass,
      line: (start: () => void) => permits.enter(origin, caller.workspace, start),
      onReady: release,
    };
    // A request that was never written must not hold back those behind it.
    return attempt(this.#transport, request, this.#clock).finally(release);
  }

  /** Cuts every exchange that is still going on, and closes these pools. */
  close(pools: PoolsByUpstream): void {
    this.#transport.close();
    for (const { agents } of pools.values()) agents.close();
  }

  /**
   * Calls of one lane are written to the upstream in the order of their grants. A call on an open connection would otherwise overtake an
   * earlier call whose connection is still being made: connections are made at once, but a request is written only when `before`
   * resolves (`null` = now), behind the request before it, unless that one's connection takes longer than `maxHoldMs`.
   */
  #enter(lane: string): { readonly before: Promise<void> | null; readonly release: () => void } {
    const ahead = this.#written.get(lane);
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#written.set(lane, promise);
    const release = (): void => {
      if (this.#written.get(lane) === promise) this.#written.delete(lane);
      resolve();
    };
    if (ahead === undefined) return { before: null, release };
    const late = Promise.withResolvers<void>();
    const cancel = this.#clock.after(maxHoldMs, late.resolve);
    return { before: Promise.race([ahead, late.promise]).finally(cancel), release };
  }
}

// One sending of a call: fields out, response's head in, and what the response teaches

export type AttemptResult =
  | (ReadResponse & {
      readonly kind: 'answered';
      readonly head: ResponseHead;
      /** The lesson with its ages as of now. */
      readonly lesson: () => Lesson;
    })
  | { readonly kind: 'failed'; readonly error: TransportError };

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
  request: TransportAttempt & AttemptFacts,
  clock: Clock,
): Promise<AttemptResult> {
  /** When the request's bytes went out; the start of the attempt before that. */
  let sentAt = clock.monotonic();
  const onSent = (): void => {
    sentAt = clock.monotonic();
    request.onSent?.();
  };
  try {
    const response = await transport.send({ ...request, onSent });
    // A body that broke in the packet of its head: nothing of the response has gone on to the client yet.
    if (response.body.errored !== null) throw bodyError(response.body.errored);
    const headAt = clock.monotonic();
    const read = await readForLearning(response, request, clock);
    const lesson = (): Lesson => {
      const now = clock.monotonic();
      return { feedback: read.feedback, sentAgoMs: now - sentAt, headAgoMs: now - headAt };
    };
    return { kind: 'answered', head: response.head, lesson, ...read };
  } catch (error) {
    if (error instanceof TransportError) return { kind: 'failed', error };
    throw error;
  }
}
