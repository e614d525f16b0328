/**
 * Repeats of a call get the response of the call that they repeat: while it is held or in flight they join it, afterwards they get
 * what was kept of its response.
 *
 * Owns: which call a repeat belongs to, and what is remembered of calls. Does not own: what makes a repeat
 * (`journey/repeat-key.ts`), how clients share a response (`shared-call.ts`).
 * A call that is no repeat and cannot be repeated does not come here (`gateway.ts`).
 * Keeps: without a key, the response of a call is given to another one only when all clients of the first have left it, and once.
 */
import type { Audience, Outcome, ResponseHead } from '../call.ts';
import { delay, type Clock, type Random } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { keyEnded } from '../errors.ts';
import type { CreateMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { Claims, leftKeptMs, type LeftCall } from './claims.ts';
import { KeptBody, KeptResponses } from './kept-responses.ts';
import { assertSameCall, noResponse, type CallResult, type KeptResponse, type RepeatKey } from './repeat.ts';
import { SharedCall, type Client } from './shared-call.ts';

/**
 * A client may be seen to leave a little later than its repeat comes, on another connection: a repeat looks again so often whether the call
 * was left. Looks are counted and not time, in which a process may be kept from seeing anything.
 */
const furtherLooks = 5;
/** Milliseconds. */
const lookEveryMs = 50;

export interface RepeatsParts {
  readonly clock: Clock;
  readonly random: Pick<Random, 'hex'>;
  readonly telemetry: Pick<Telemetry, 'count'>;
  /** As configured now. */
  readonly settings: () => IdempotencySettings;
  /** Shares what is known of calls with the other replicas; `null` = there are none. */
  readonly createMap: CreateMap | null;
}

/** Makes the call. `arrivedAt`: its position, which is that of the call that it repeats if it does; monotonic milliseconds. */
export type MakeCall = (audience: Audience, arrivedAt: number) => Promise<Outcome>;

/** A client's call that may be a repeat, or may be repeated. */
interface IncomingCall extends Client {
  readonly key: RepeatKey;
  /** Position of this call where it repeats none, monotonic milliseconds. */
  readonly arrivedAt: number;
  /** The fields of an upstream's response in the form of this client's call: links lead back the way it came. */
  readonly fieldsFor: (head: ResponseHead, addsRateLimit: boolean) => readonly string[];
  /** What is held of the call stays counted, also when its client leaves, until the returned function is called. */
  readonly retain: () => () => void;
}

export class Repeats {
  readonly #parts: RepeatsParts;
  /** Opaque name of this replica, new with every start. */
  readonly #replica: string;
  /** Who makes a call, over all replicas. */
  readonly #claims: Claims;
  readonly #kept: KeptResponses;
  /** Calls under way by name. */
  readonly #held = new Map<string, SharedCall>();
  #unnamedCalls = 0;

  constructor(parts: RepeatsParts) {
    const { clock, random, settings } = parts;
    this.#parts = parts;
    this.#replica = random.hex(8);
    this.#claims = new Claims({ ...parts, replica: this.#replica });
    this.#kept = new KeptResponses(clock, settings, (key) => this.#claims.forget(key));
  }

  /** Memory of responses that have ended and are kept for repeats, and of those that are under way. Bytes. */
  memory(): { readonly keptBytes: number; readonly underWayBytes: number } {
    const { bytes, bytesUnderWay } = this.#kept;
    return { keptBytes: bytes - bytesUnderWay, underWayBytes: bytesUnderWay };
  }

  /**
   * Makes the call, or gets the response of the one that it repeats.
   * @throws Refusal `idempotency_mismatch` same key, other call · `idempotency_conflict` its response is no longer available ·
   * `unauthenticated` the API key has ended meanwhile
   */
  async run(incoming: IncomingCall, make: MakeCall): Promise<Outcome> {
    // The key was valid when the head of the request came; its body may have taken long.
    if (!incoming.stillValid()) throw keyEnded();
    const left = incoming.key.marker === 'again' ? await this.#takeLeft(incoming) : null;
    const outcome = await this.#callFor(incoming, left, make).join(incoming);
    const { status, upstreamFields: rawFields, rateLimit } = outcome;
    if (rawFields === undefined) return outcome;
    return { ...outcome, fields: incoming.fieldsFor({ status, rawFields }, rateLimit !== null) };
  }

  /** Refuses clients that wait for the call of another one and whose own key is not valid any more. */
  recheckKeys(): void {
    for (const call of this.#held.values()) call.recheckKeys();
  }

  /** Resolves when no call goes on that nobody may be waiting for, or after `withinMs`. */
  async settled(withinMs: number): Promise<void> {
    const calls = [...this.#held.values()].filter(({ isAbandoned }) => isAbandoned);
    const ended = Promise.all(calls.map((call) => call.ended)).then(() => this.#claims.flushed());
    const isOver = new AbortController();
    await Promise.race([ended, delay(this.#parts.clock, withinMs, isOver.signal)]);
    isOver.abort();
  }

  close(): void {
    for (const call of this.#held.values()) call.cut();
    this.#claims.close();
  }

  /** The call under way that the incoming one repeats, or a new one. `left`: what a client left of an equal call without a key. */
  #callFor(incoming: IncomingCall, left: LeftCall | null, make: MakeCall): SharedCall {
    const { key } = incoming;
    const isNamed = key.marker === 'key';
    const underWay = this.#held.get(isNamed ? key.name : (left?.name ?? ''));
    if (isNamed && underWay !== undefined) assertSameCall(key, underWay.key);
    if (underWay?.isJoinable === true) {
      this.#parts.telemetry.count('sluice_repeats_joined_total', { upstream: key.upstream });
      return underWay;
    }
    if (isNamed && underWay !== undefined) throw noResponse('too large to be kept');
    if (isNamed) return this.#begin(incoming, key, null, make);
    this.#unnamedCalls += 1;
    const newName = `${this.#replica}.u${this.#unnamedCalls}`;
    const name = underWay === undefined ? (left?.name ?? newName) : newName;
    return this.#begin(incoming, { ...key, name }, left, make);
  }

  /**
   * What is left of an equal call, whose client may yet be seen to leave. `null` = nothing: a client that is still there has not
   * repeated itself.
   */
  async #takeLeft({ key, clientGone }: IncomingCall): Promise<LeftCall | null> {
    for (let looked = 0; ; looked += 1) {
      const left = await this.#claims.take(key.fingerprint);
      if (left !== null && !clientGone.aborted) return left;
      if (left !== null) this.#claims.offer(key.fingerprint, left);
      clientGone.throwIfAborted();
      if (looked === furtherLooks) return null;
      await delay(this.#parts.clock, lookEveryMs, clientGone);
      clientGone.throwIfAborted();
    }
  }

  /** Makes the call, or gets the response of the one that it repeats. `left`: what it has taken over, without a key. */
  #begin(incoming: IncomingCall, key: RepeatKey, left: LeftCall | null, make: MakeCall): SharedCall {
    const { clock, settings } = this.#parts;
    const release = incoming.retain();
    /** Clocks of replicas may differ: nobody gets a later position than its own. */
    const positionAt = (sinceEpoch: number): number =>
      Math.min(incoming.arrivedAt, clock.monotonic() - (clock.now() - sinceEpoch));
    let position = left === null ? incoming.arrivedAt : positionAt(left.arrivedAt);
    let isMade = false;
    const arrivedAt = (): number => clock.now() - (clock.monotonic() - position);
    const call: SharedCall = new SharedCall({
      clock,
      key,
      kept: new KeptBody(key, this.#kept, settings().maxBytes),
      onLeft: () => {
        this.#forget(call);
        if (key.marker === 'key') return this.#claims.left(key, arrivedAt());
        const name = isMade ? null : (left?.name ?? null);
        this.#claims.offer(key.fingerprint, { name, arrivedAt: arrivedAt() });
      },
      onAbandoned: () => {
        this.#claims.abandoned(key);
        this.#claims.offer(key.fingerprint, { name: key.name, arrivedAt: arrivedAt() });
      },
      withdraw: () => this.#claims.withdraw(key),
      onEnded: (ended) => {
        release();
        this.#ended(call, ended, isMade);
      },
    });
    this.#held.set(key.name, call);
    call.begin(async (audience) => {
      const kept = this.#kept.find(key.name);
      if (kept !== null) {
        assertSameCall(key, kept.key);
        if (kept.response !== 'too_large') return this.#given(key, kept.response, true);
        if (key.marker === 'key') throw noResponse('too large to be kept');
      }
      if (key.marker === 'key' || typeof left?.name === 'string') {
        const found = await this.#claims.find(key, audience.signal);
        if (found.kind === 'response') return this.#given(key, found.response, found.isReplayed);
        if (found.arrivedAt !== null) position = positionAt(found.arrivedAt);
      }
      isMade = true;
      return make(audience, position);
    });
    return call;
  }

  #given(key: RepeatKey, response: KeptResponse, isReplayed: boolean): Outcome {
    const counter = isReplayed ? 'sluice_idempotent_replays_total' : 'sluice_repeats_joined_total';
    this.#parts.telemetry.count(counter, { upstream: key.upstream });
    const { rawFields } = response;
    return {
      ...response,
      fields: rawFields,
      upstreamFields: rawFields,
      throttled: false,
      isReplayed,
      record: { waitedMs: 0, attempts: 0, absorbed: 0, held: [] },
      rateLimit: null,
      onEnd: () => {},
    };
  }

  #ended(call: SharedCall, ended: CallResult, isMade: boolean): void {
    const { key } = call;
    this.#forget(call);
    const isNamed = key.marker === 'key';
    const lifeMs = isNamed ? this.#parts.settings().keepSeconds * 1000 : leftKeptMs;
    let result = ended;
    // What another replica has made for a key is kept there.
    if (ended.kind === 'answered' && ended.isKept && lifeMs > 0 && (isMade || !isNamed)) {
      if (!this.#kept.put(key, ended.response, lifeMs)) result = { ...ended, response: 'too_large' };
    } else if (!isNamed) this.#kept.delete(key.name);
    this.#claims.ended(key, result, lifeMs);
  }

  #forget(call: SharedCall): void {
    // A repeat may have begun the call anew meanwhile.
    if (this.#held.get(call.key.name) === call) this.#held.delete(call.key.name);
  }
}
