/**
 * Repeats of a call get the response of the call that they repeat: while it is held or in flight they join it, afterwards they get
 * what was kept of its response.
 *
 * Owns: which call a repeat belongs to, and what is remembered of calls. Does not own: what makes a repeat
 * (`journey/repeat-key.ts`), how clients share a response (`shared-call.ts`).
 * A call that is no repeat and cannot be repeated does not come here (`gateway.ts`).
 */
import type { Outcome } from '../call.ts';
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { assertSameCall, beingAnswered, tooLarge } from './conflicts.ts';
import { KeptResponses, type KeptEntry } from './kept-responses.ts';
import { KeptPositions, positionKeptMs } from './kept-positions.ts';
import type { Audience, CallResult, KeptResponse, RepeatKey } from './repeat.ts';
import { SharedCall } from './shared-call.ts';
import type { SharedRepeats } from './shared-repeats.ts';

export interface RepeatsParts {
  readonly clock: Clock;
  /** As configured now. */
  readonly settings: () => IdempotencySettings;
  /** Over all replicas; `null` = there is this one only. `keptResponses`: what this replica keeps, the oldest first. */
  readonly shared: ((keptResponses: () => Iterable<KeptEntry>) => SharedRepeats) | null;
  /** A repeat got a kept response. */
  readonly onReplayed: (upstream: string) => void;
  /** A call waits for the response of an equal one that is under way here, or has got it from another replica. */
  readonly onJoined: (upstream: string) => void;
}

/** Makes the call. `arrivedAt`: its position, which is that of the call that it repeats if it does; monotonic milliseconds. */
export type MakeCall = (audience: Audience, arrivedAt: number) => Promise<Outcome>;

/** A client's call that may be a repeat, or may be repeated. */
export interface IncomingCall {
  readonly key: RepeatKey;
  readonly clientGone: CallSignal;
  /** Position of this call where it repeats none, monotonic milliseconds. */
  readonly arrivedAt: number;
}

export class Repeats {
  readonly #parts: RepeatsParts;
  readonly #kept: KeptResponses;
  readonly #left: KeptPositions;
  readonly #held = new Map<string, SharedCall>();
  readonly #shared: SharedRepeats | null;

  constructor(parts: RepeatsParts) {
    this.#parts = parts;
    this.#kept = new KeptResponses(parts.clock, parts.settings);
    this.#left = new KeptPositions(parts.clock);
    this.#shared = parts.shared?.(() => this.#kept.entries()) ?? null;
  }

  /** Opens the connection to Redis where there is one, so that the first call does not wait for it. */
  connect(): void {
    this.#shared?.connect();
  }

  /**
   * Makes the call, or gets the response of the one that it repeats.
   * @throws Refusal `idempotency_mismatch` same key, other call · `idempotency_conflict` its response is not available now, or no longer
   */
  async run(incoming: IncomingCall, make: MakeCall): Promise<Outcome> {
    const { key, clientGone } = incoming;
    const known = this.#held.get(key.name);
    if (known !== undefined && joins(key, known)) {
      assertSameCall(key, known.key);
      if (!known.isAnswering) {
        this.#parts.onJoined(key.upstream);
        return known.join(clientGone);
      }
      if (known.isStreaming) throw beingAnswered();
      await endOf(known, clientGone);
    }
    const replayed = this.#replay(key);
    return replayed ?? this.#begin(incoming, make).join(clientGone);
  }

  /** Resolves when no call goes on that nobody may be waiting for, or after `withinMs`. */
  async settled(withinMs: number): Promise<void> {
    const { clock } = this.#parts;
    const calls = [...this.#held.values()].filter(({ isAbandoned }) => isAbandoned);
    if (calls.length === 0 && this.#shared === null) return;
    let cancel = (): void => {};
    const tooLate = new Promise<void>((resolve) => {
      cancel = clock.after(withinMs, resolve);
    });
    const ended = Promise.all(calls.map((call) => call.ended)).then(() => this.#shared?.flushed());
    await Promise.race([ended, tooLate]);
    cancel();
  }

  close(): void {
    for (const call of this.#held.values()) call.abort();
    this.#kept.close();
    this.#shared?.close();
  }

  /** The kept response of the call that this one repeats; `null` = none is kept. */
  #replay(key: RepeatKey): Outcome | null {
    if (key.marker === 'first') return null;
    const remembered = this.#kept.find(key.name);
    if (remembered === null) return null;
    assertSameCall(key, remembered);
    // Only a key says for sure that the next call is the same, too.
    if (key.marker !== 'key') this.#kept.delete(key.name);
    if (remembered.response === 'too_large') throw tooLarge();
    return this.#given(key, remembered.response, true);
  }

  #begin({ key, arrivedAt }: IncomingCall, make: MakeCall): SharedCall {
    const { clock, settings } = this.#parts;
    const position = this.#left.take(key.name) ?? arrivedAt;
    let wasMade = false;
    const call = new SharedCall({
      clock,
      key,
      maxKeptBytes: settings().maxBytes,
      onLeft: () => {
        this.#left.leave(key.name, position);
        this.#shared?.left(key, position);
      },
      onAbandoned: () => this.#shared?.abandoned(key),
      onStreaming: () => this.#shared?.streaming(key),
      onEnded: (ended) => this.#ended(call, ended, wasMade),
    });
    this.#held.set(key.name, call);
    call.begin((audience) =>
      this.#make(key, audience, (sharedPosition) => {
        wasMade = true;
        return make(audience, sharedPosition ?? position);
      }),
    );
    return call;
  }

  /** Makes the call, or gets the response of the one at another replica that it repeats. */
  async #make(
    key: RepeatKey,
    audience: Audience,
    make: (arrivedAt: number | null) => Promise<Outcome>,
  ): Promise<Outcome> {
    if (this.#shared === null) return make(null);
    const found = await this.#shared.find(key, audience);
    if (found.kind === 'make') return make(found.arrivedAt);
    return this.#given(key, found.response, found.isReplayed);
  }

  #given(key: RepeatKey, response: KeptResponse, isReplayed: boolean): Outcome {
    const { onReplayed, onJoined } = this.#parts;
    if (isReplayed) onReplayed(key.upstream);
    else onJoined(key.upstream);
    return {
      ...response,
      throttled: false,
      isReplayed,
      record: { waitedMs: 0, attempts: 0, absorbed: 0 },
      rateLimit: null,
      onEnd: () => {},
    };
  }

  /** `wasMade`: by this replica; what another one has made is kept there. */
  #ended(call: SharedCall, ended: CallResult, wasMade: boolean): void {
    const { key } = call;
    if (this.#held.get(key.name) === call) this.#held.delete(key.name);
    const { keepSeconds } = this.#parts.settings();
    const lifeMs = key.marker === 'key' ? keepSeconds * 1000 : positionKeptMs;
    if (wasMade && lifeMs > 0 && ended.kind === 'answered' && ended.isKept) {
      this.#kept.put(key, { fingerprint: key.fingerprint, response: ended.response }, lifeMs);
    }
    this.#shared?.ended(key, ended, lifeMs);
  }
}

/** True when a call with this key may join a call that is under way. */
function joins(key: RepeatKey, known: SharedCall): boolean {
  if (key.marker === 'first') return false;
  return key.marker === 'silent' ? known.isAbandoned : true;
}

/** Resolves when the call has ended; rejects with the signal's reason when the client leaves before. */
function endOf(call: SharedCall, clientGone: CallSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = (): void => reject(clientGone.reason as unknown);
    if (clientGone.aborted) return leave();
    clientGone.addEventListener('abort', leave, { once: true });
    void call.ended.then(() => {
      clientGone.removeEventListener('abort', leave);
      resolve();
    });
  });
}
