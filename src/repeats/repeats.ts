/**
 * Repeats of a call get the response of the call that they repeat: while it is held or in flight they join it, afterwards they get
 * what was kept of its response.
 *
 * Owns: which call a repeat belongs to, and what is remembered of calls. Does not own: what makes a repeat
 * (`journey/repeat-key.ts`), how clients share a response (`shared-call.ts`).
 * A call that is no repeat and cannot be repeated does not come here (`parts.ts`).
 * Keeps: without a key, the response of a call is given to another one only when all clients of the first have left it, and once.
 */
import type { Audience, Outcome, ResponseHead } from '../call.ts';
import { delay, type Clock, type Random } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { keyEnded } from '../errors.ts';
import { MemoryMap, type CreateMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { claimCodec, leftKeptMs, type Claim } from './claim.ts';
import { Claims } from './claims.ts';
import { KeptBody, KeptResponses } from './kept-responses.ts';
import { LeftCalls, type LeftCall, type Offers } from './left-calls.ts';
import { assertSameCall, type CallResult, type KeptResponse, type RepeatKey, tooLarge } from './repeat.ts';
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
  readonly telemetry: Pick<Telemetry, 'replayed' | 'joined' | 'madeAgain' | 'log'>;
  /** As configured now. */
  readonly settings: () => IdempotencySettings;
  /** Shares what is known of calls with the other replicas; `null` = there are none. */
  readonly createMap: CreateMap | null;
}

/** Makes the call. `arrivedAt`: its position, which is that of the call that it repeats if it does; monotonic milliseconds. */
export type MakeCall = (audience: Audience, arrivedAt: number) => Promise<Outcome>;

/** A client's call that may be a repeat, or may be repeated. */
export interface IncomingCall extends Client {
  readonly key: RepeatKey;
  /** Position of this call where it repeats none, monotonic milliseconds. */
  readonly arrivedAt: number;
  /** The fields of an upstream's response in the form of this client's call: links lead back the way it came. */
  readonly fieldsFor: (head: ResponseHead, addsRateLimit: boolean) => readonly string[];
  /** What is held of the call stays counted, also when its client leaves, until the returned function is called. */
  readonly retain: () => () => void;
}

/** What a call begins as: made anew, or waiting for the response of one that a client left. */
interface Beginning {
  readonly key: RepeatKey;
  readonly arrivedAt: number;
  /** The left call that this one has taken over; `null` = it is made anew. */
  readonly taken: Extract<LeftCall, { kind: 'call' }> | null;
}

export class Repeats {
  readonly #parts: RepeatsParts;
  /** Opaque name of this replica, new with every start. */
  readonly #replica: string;
  /** Who makes a call, over all replicas. */
  readonly #claims: Claims;
  readonly #left: LeftCalls;
  readonly #kept: KeptResponses;
  /** Calls under way by name. */
  readonly #held = new Map<string, SharedCall>();
  /** How many calls without a key are under way, by their digest. */
  readonly #unnamed = new Map<string, number>();
  #unnamedCalls = 0;
  /** Resolves when all that clients left has been offered. */
  #written: Promise<unknown> = Promise.resolve();

  constructor(parts: RepeatsParts) {
    const { clock, createMap, random, telemetry } = parts;
    const replica = random.hex(8);
    const meanwhile = new MemoryMap<Offers>(clock);
    this.#parts = parts;
    this.#replica = replica;
    this.#claims = new Claims({
      clock,
      replica,
      map: createMap?.<Claim>({ name: 'repeat.4', codec: claimCodec }) ?? new MemoryMap<Claim>(clock),
      telemetry,
    });
    this.#left = new LeftCalls({
      clock,
      replica,
      map: createMap?.<Offers>({ name: 'left.4' }) ?? meanwhile,
      meanwhile,
    });
    this.#kept = new KeptResponses(clock, parts.settings, (key) => this.#claims.forget(key));
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
    const { marker } = incoming.key;
    const outcome = await (marker === 'key'
      ? this.#named(incoming, make)
      : this.#unnamedCall(incoming, make));
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
    const { clock, createMap } = this.#parts;
    const calls = [...this.#held.values()].filter(({ isAbandoned }) => isAbandoned);
    if (calls.length === 0 && createMap === null) return;
    let cancel = (): void => {};
    const tooLate = new Promise<void>((resolve) => {
      cancel = clock.after(withinMs, resolve);
    });
    const ended = Promise.all(calls.map((call) => call.ended)).then(() =>
      Promise.all([this.#written, this.#claims.flushed()]),
    );
    await Promise.race([ended, tooLate]);
    cancel();
  }

  close(): void {
    for (const call of this.#held.values()) call.abort();
    this.#kept.close();
    this.#claims.close();
  }

  /** A call with a key: joins the one under way, gets what was kept, or is made. */
  async #named(incoming: IncomingCall, make: MakeCall): Promise<Outcome> {
    const { key } = incoming;
    const known = this.#held.get(key.name);
    if (known !== undefined) {
      assertSameCall(key, known.key);
      if (!known.isJoinable) throw tooLarge();
      this.#parts.telemetry.joined(key.upstream);
      return known.join(incoming);
    }
    const remembered = this.#kept.find(key.name);
    if (remembered !== null) {
      assertSameCall(key, remembered);
      if (remembered.response === 'too_large') throw tooLarge();
      return this.#given(key, remembered.response, true);
    }
    return this.#begin(incoming, { key, arrivedAt: incoming.arrivedAt, taken: null }, make).join(incoming);
  }

  /** A call without a key: has the response of an equal call that was left, if it is a repeat and there is one, or is made. */
  async #unnamedCall(incoming: IncomingCall, make: MakeCall): Promise<Outcome> {
    const { key } = incoming;
    const left = key.marker === 'again' ? await this.#takeLeft(incoming) : null;
    if (left === null || left.kind === 'place') {
      const own = { ...key, name: this.#newName() };
      const arrivedAt = left?.arrivedAt ?? incoming.arrivedAt;
      return this.#begin(incoming, { key: own, arrivedAt, taken: null }, make).join(incoming);
    }
    const underWay = this.#held.get(left.name);
    if (underWay?.isJoinable === true) {
      this.#parts.telemetry.joined(key.upstream);
      return underWay.join(incoming);
    }
    const isFree = underWay === undefined;
    const own = { ...key, name: isFree ? left.name : this.#newName() };
    const taken = { key: own, arrivedAt: incoming.arrivedAt, taken: isFree ? left : null };
    return this.#begin(incoming, taken, make).join(incoming);
  }

  /** The name of one making of a call without a key. */
  #newName(): string {
    this.#unnamedCalls += 1;
    return `${this.#replica}.u${this.#unnamedCalls}`;
  }

  /**
   * What is left of an equal call, whose client may yet be seen to leave. `null` = nothing: a client that is still there has not
   * repeated itself.
   */
  async #takeLeft({ key, clientGone }: IncomingCall): Promise<LeftCall | null> {
    const { clock, createMap } = this.#parts;
    for (let looked = 0; ; looked += 1) {
      const left = await this.#left.take(key.fingerprint);
      if (left !== null) {
        if (!clientGone.aborted) return left;
        this.#offer(key, left);
      }
      clientGone.throwIfAborted();
      const mayBeLeft = createMap !== null || this.#unnamed.has(key.fingerprint);
      if (!mayBeLeft || looked === furtherLooks) return null;
      await delay(clock, lookEveryMs, clientGone);
      clientGone.throwIfAborted();
    }
  }

  #begin(incoming: IncomingCall, { key, arrivedAt, taken }: Beginning, make: MakeCall): SharedCall {
    const { clock, settings } = this.#parts;
    const { maxBytes } = settings();
    const release = incoming.retain();
    let isMade = false;
    const call: SharedCall = new SharedCall({
      clock,
      key,
      kept: new KeptBody(maxBytes, this.#kept.roomFor(key)),
      maxKeptBytes: maxBytes,
      onLeft: () => {
        this.#forget(call);
        this.#leftWaiting(key, isMade ? null : taken, arrivedAt);
      },
      onAbandoned: () => {
        if (isMade) this.#claims.abandoned(key);
        this.#offer(key, { kind: 'call', name: key.name });
      },
      withdraw: () => this.#left.withdraw(key.fingerprint, key.name),
      onEnded: (ended) => {
        release();
        this.#ended(call, ended, isMade);
      },
    });
    this.#held.set(key.name, call);
    if (key.marker !== 'key') this.#countUnnamed(key.fingerprint, 1);
    call.begin((audience) =>
      this.#make({ key, arrivedAt, taken }, audience, (position) => {
        isMade = true;
        return make(audience, position);
      }),
    );
    return call;
  }

  /** Makes the call, or gets the response of the one, here or at another replica, that it repeats. */
  async #make(
    { key, arrivedAt, taken }: Beginning,
    audience: Audience,
    make: (arrivedAt: number) => Promise<Outcome>,
  ): Promise<Outcome> {
    if (taken !== null) {
      const kept = this.#kept.find(key.name);
      if (kept !== null && kept.response !== 'too_large') return this.#given(key, kept.response, true);
      const response = await this.#claims.ofAnother(key, audience);
      return response === null ? make(arrivedAt) : this.#given(key, response.response, response.isReplayed);
    }
    if (key.marker !== 'key') return make(arrivedAt);
    const found = await this.#claims.find(key, audience);
    if (found.kind === 'make') return make(found.arrivedAt ?? arrivedAt);
    return this.#given(key, found.response, found.isReplayed);
  }

  #given(key: RepeatKey, response: KeptResponse, isReplayed: boolean): Outcome {
    const { telemetry } = this.#parts;
    if (isReplayed) telemetry.replayed(key.upstream);
    else telemetry.joined(key.upstream);
    const { status, rawFields, body, shouldRetry } = response;
    return {
      status,
      fields: rawFields,
      upstreamFields: rawFields,
      body,
      shouldRetry,
      throttled: false,
      isReplayed,
      record: { waitedMs: 0, attempts: 0, absorbed: 0, held: [] },
      rateLimit: null,
      onEnd: () => {},
    };
  }

  /** The last client has left a call that waited: its repeat has its position, or what the call itself had taken over. */
  #leftWaiting(key: RepeatKey, taken: LeftCall | null, arrivedAt: number): void {
    const place: LeftCall = { kind: 'place', arrivedAt };
    if (key.marker === 'key') this.#claims.left(key, arrivedAt);
    else this.#offer(key, taken ?? place);
  }

  /** Whoever repeats the call next may have this, at whichever replica. */
  #offer(key: RepeatKey, left: LeftCall): void {
    this.#writing(this.#left.offer(key.fingerprint, left));
  }

  #writing(work: Promise<unknown>): void {
    this.#written = Promise.all([this.#written, work]);
  }

  #ended(call: SharedCall, ended: CallResult, isMade: boolean): void {
    const { key } = call;
    this.#forget(call);
    const isKept = ended.kind === 'answered' && ended.isKept;
    const lifeMs = key.marker === 'key' ? this.#parts.settings().keepSeconds * 1000 : leftKeptMs;
    // What another replica has made is kept there; what was given once without a key is given again only when it was left again.
    const isOwn = isMade || (key.marker !== 'key' && this.#parts.createMap === null);
    let result = ended;
    if (isOwn && isKept && lifeMs > 0) {
      const remembered = { fingerprint: key.fingerprint, response: ended.response };
      if (!this.#kept.put(key, remembered, lifeMs)) result = { ...ended, response: 'too_large' };
    } else if (key.marker !== 'key') this.#kept.delete(key.name);
    const wasClaimed = this.#claims.ended(key, result, lifeMs);
    if (wasClaimed && !isKept && key.marker !== 'key')
      this.#writing(this.#left.withdraw(key.fingerprint, key.name));
  }

  #forget(call: SharedCall): void {
    const { key } = call;
    // A repeat may have begun the call anew meanwhile.
    if (this.#held.get(key.name) !== call) return;
    this.#held.delete(key.name);
    if (key.marker !== 'key') this.#countUnnamed(key.fingerprint, -1);
  }

  #countUnnamed(fingerprint: string, by: 1 | -1): void {
    const count = (this.#unnamed.get(fingerprint) ?? 0) + by;
    if (count > 0) this.#unnamed.set(fingerprint, count);
    else this.#unnamed.delete(fingerprint);
  }
}
