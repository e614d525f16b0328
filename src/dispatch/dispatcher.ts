/** Sends calls, one attempt at a time, and the pools of connections that they use. A resend goes through admission again. */
import type { Call, CallBody, Caller, Feedback, InjectedField, ResponseHead, Route } from '../call.ts';
import { delay, type Clock } from '../clock.ts';
import type { Settings, UpstreamSettings } from '../config/settings.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { type AgentParts, createAgents, poolKeys, SocketPermits } from './agents.ts';
import type { CallDescription } from './estimate.policy.ts';
import { outgoingFields } from './fields.policy.ts';
import { type AttemptFacts, readForLearning, type ReadResponse } from './read-response.ts';
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
const poolsOf = (of: UpstreamSettings, parts: AgentParts) => ({
  agents: createAgents(of, parts),
  permits: new SocketPermits(of.maxSockets),
  of,
});
export type Pools = Readonly<ReturnType<typeof poolsOf>>;

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
  return new Map(
    Array.from(upstreams, ([name, upstream]) => {
      const known = former?.get(name);
      const goesOn = known !== undefined && poolKeys.every((key) => known.of[key] === upstream[key]);
      return [name, goesOn ? known : poolsOf(upstream, parts)];
    }),
  );
}

/** A follower waits this long for a predecessor that is not written, milliseconds. */
const maxHoldMs = 1_000;

/** Sends calls, each over the pools that it comes with. */
export class Dispatcher {
  readonly #clock: Clock;
  readonly #transport: Transport;
  /** What is called when the latest sending of a lane is ready to be written, or will never be. */
  readonly #followers = new Map<string, (() => void)[]>();

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#transport = new Transport(clock);
  }

  /**
   * Calls of one lane are written to the upstream in the order of their grants. A call on an open connection would otherwise overtake an
   * earlier call whose connection is still being made: connections are made at once, but a request is written only behind the request
   * before it, unless that one's connection takes longer than `maxHoldMs`.
   */
  send({ prepared, traceparent, credential, lane, signal }: Sending): Promise<AttemptResult> {
    const { call, caller, route, description, body, replacedFields = null, pools } = prepared;
    const { upstream, host, origin, pathAndQuery } = route;
    const { method } = call;
    const { length } = body.bytes;
    const ahead = this.#followers.get(lane);
    const followers: (() => void)[] = [];
    this.#followers.set(lane, followers);
    const onReady = (): void => {
      if (this.#followers.get(lane) === followers) this.#followers.delete(lane);
      for (const follow of followers) follow();
    };
    const request = {
      origin,
      method,
      pathAndQuery,
      fields: outgoingFields({
        call,
        route: { host, upstream, credential },
        dropFields: caller.keyFields,
        bodyBytes: length,
        traceparent,
        replacedFields,
      }),
      body: length > 0 ? body.bytes : null,
      agent: pools.agents.forOrigin(origin),
      timeouts: upstream.timeouts,
      signal,
      hold: ahead === undefined ? null : this.#atMost(ahead),
      kind: upstream.kind,
      dialect: upstream.dialect,
      callClass: description.callClass,
      line: (start: () => void) => pools.permits.enter(origin, caller.workspace, start),
      onReady,
    };
    return attempt(this.#transport, request, this.#clock);
  }

  #atMost(ahead: (() => void)[]): Promise<void> {
    const ready = new AbortController();
    ahead.push(() => ready.abort());
    return delay(this.#clock, maxHoldMs, ready.signal);
  }

  /** Cuts every exchange that is still going on, and closes these pools. */
  close(pools: PoolsByUpstream): void {
    this.#transport.close();
    for (const { agents } of pools.values()) agents.close();
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
export const statusOf = (result: {
  readonly head: Pick<ResponseHead, 'status'>;
  readonly feedback: Pick<Feedback, 'errorStatus'>;
}): number => result.feedback.errorStatus ?? result.head.status;

/** Sends once. Never rejects with anything but a bug. */
export async function attempt(
  transport: Pick<Transport, 'send'>,
  request: TransportAttempt & AttemptFacts,
  clock: Clock,
): Promise<AttemptResult> {
  /** When the request's bytes went out; the start of the attempt before that. */
  let sentAt = clock.monotonic();
  const onSent = (): void => void (sentAt = clock.monotonic());
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
