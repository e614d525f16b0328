/**
 * Repeats over all replicas: who makes a call, and how the others get its response.
 *
 * A replica that makes a call claims it in a map that all replicas see, and renews the claim while the call is under way; a repeat at
 * another replica waits for its result. A claim that is not renewed belonged to a replica that is gone: one of the repeats that wait
 * for it, or that come within a minute, makes the call again, and that is counted.
 *
 * Keeps: while the map does not answer each replica answers for itself. A call with a key that has run is not made again only
 * because its response cannot be read; one without a key has nothing that forbids it, and is made again.
 */
import type { CallSignal } from '../call-abort.ts';
import { delay, type Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { PutReply, SharedMap } from '../replicated/shared-map.ts';
import { anybody } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import {
  arrivedAgoMs,
  claimMs,
  entryOf,
  heldMs,
  isFree,
  isOrphaned,
  leftKeptMs,
  passedOn,
  passedOnMs,
  type Claim,
  type ClaimState,
} from './claim.ts';
import { assertSameCall, tooLarge, unreadable } from './repeat.ts';
import type { CallResult, KeptResponse, RepeatKey } from './repeat.ts';

/** Time between two renewals, milliseconds. */
const renewEveryMs = 500;
/** A waiting repeat checks this often, milliseconds: at first, and in the end. */
const checkMs = { min: 25, max: 250 };

/** A response that another replica has got. `isReplayed`: its call had ended before it was asked for. */
export interface ResponseGiven {
  readonly response: KeptResponse;
  readonly isReplayed: boolean;
}

/** What a call with a key does: it is made (at the position of the call that it repeats), or gets the response of that call. */
export type RepeatDecision =
  | { readonly kind: 'make'; readonly arrivedAt: number | null }
  | ({ readonly kind: 'response' } & ResponseGiven);

export interface ClaimsParts {
  readonly clock: Clock;
  readonly map: SharedMap<Claim>;
  /** Opaque name of this replica, new with every start. */
  readonly replica: string;
  /** `madeAgain`: a call was made again for its repeat; the replica that made it is gone, or makes it, too. */
  readonly telemetry: Pick<Telemetry, 'madeAgain' | 'log'>;
}

/** A call that this replica makes. */
interface Held {
  /** Of the call that holds the claim: a later call of the same name has a key object of its own. */
  readonly key: RepeatKey;
  readonly owner: string;
  readonly isAgain: boolean;
}

export class Claims {
  readonly #parts: ClaimsParts;
  /** Claims of calls under way, by name. */
  readonly #held = new Map<string, Held>();
  /** Owners of kept responses that this replica has put into the map, by name. */
  readonly #kept = new Map<string, string>();
  readonly #work = new Set<Promise<unknown>>();
  #runs = 0;
  #hasWarned = false;
  #cancelRenewal: (() => void) | null = null;

  constructor(parts: ClaimsParts) {
    this.#parts = parts;
  }

  /**
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call that this one repeats was refused with;
   * the signal's reason when nobody waits any more
   */
  async find(key: RepeatKey, signal: CallSignal): Promise<RepeatDecision> {
    const { clock, telemetry } = this.#parts;
    const owner = this.#newOwner();
    let over: string | null = null;
    let isAgain = false;
    let arrivedAt: number | null = null;
    for (;;) {
      const askedAt = clock.monotonic();
      const held = { key, owner, isAgain };
      const claimed = await this.#put(held, { kind: 'held', isAgain }, heldMs, over);
      if (claimed.kind !== 'lost') {
        // Without a reply of the map the call is claimed with the first renewal that gets one.
        this.#hold(held);
        if (isAgain) telemetry.madeAgain(key.upstream);
        signal.throwIfAborted();
        return { kind: 'make', arrivedAt };
      }
      signal.throwIfAborted();
      const known = claimed.to;
      const free = known.kind === 'entry' && isFree(known, clock.now()) ? known : null;
      over = free?.owner ?? null;
      isAgain = free !== null && isOrphaned(free);
      const agoMs = free === null ? null : arrivedAgoMs(free);
      arrivedAt = agoMs === null ? null : askedAt - agoMs;
      if (free !== null) continue;
      const given = await this.ofAnother(key, signal);
      if (given !== null) return { kind: 'response', ...given };
    }
  }

  /**
   * The response of the call with this name, which another replica makes or has made; `null` = there is none to wait for.
   * @throws as {@link find}
   */
  async ofAnother(key: RepeatKey, signal: CallSignal): Promise<ResponseGiven | null> {
    const { clock, map } = this.#parts;
    const startedAt = clock.monotonic();
    let readAt = startedAt;
    let isReplayed: boolean | null = null;
    for (;;) {
      const read = await map.read(entryOf(key));
      signal.throwIfAborted();
      const now = clock.monotonic();
      if (read.kind === 'none') return null;
      if (read.kind === 'unreadable') {
        this.#warnOnce(key);
        return unavailable(key, unreadable());
      }
      if (read.kind === 'entry') {
        readAt = now;
        const { state } = read.value;
        if (state.kind !== 'passed_on' && isFree(read, clock.now())) return null;
        assertSameCall(key, read.value);
        isReplayed ??= state.kind === 'kept';
        if (state.kind === 'passed_on') {
          if (state.result instanceof Refusal) throw state.result;
          return { response: state.result, isReplayed };
        }
        if (state.kind === 'kept')
          return state.response === 'too_large'
            ? unavailable(key, tooLarge())
            : { response: state.response, isReplayed };
      } else if (now - readAt >= claimMs) return null;
      await delay(clock, Math.min(checkMs.max, Math.max(checkMs.min, (now - startedAt) / 8)), signal);
      signal.throwIfAborted();
    }
  }

  /** The client left while its call with a key waited. `arrivedAt`: the call's position, monotonic milliseconds. */
  left(key: RepeatKey, arrivedAt: number): void {
    const held = this.#letGo(key);
    const agoMs = Math.max(0, this.#parts.clock.monotonic() - arrivedAt);
    if (held !== null) this.#do(this.#put(held, { kind: 'left', arrivedAgoMs: agoMs }, leftKeptMs));
  }

  /** A call without a key goes on here without a client: it is claimed under its own name, so that a repeat elsewhere can wait for it. */
  abandoned(key: RepeatKey): void {
    const held = this.#of(key) ?? { key, owner: this.#newOwner(), isAgain: false };
    this.#hold(held);
    this.#do(this.#put(held, { kind: 'held', isAgain: false }, heldMs, anybody));
  }

  /**
   * The call has ended with this result. `keepMs`: how long a response is kept that shows that the call ran. False when it had not
   * been claimed: nobody elsewhere knows of it.
   */
  ended(key: RepeatKey, ended: CallResult, keepMs: number): boolean {
    const held = this.#letGo(key);
    if (held === null) return false;
    const result = passedOn(ended);
    if (ended.kind === 'answered' && ended.isKept && keepMs > 0) {
      const { response } = ended;
      const until = this.#parts.clock.now() + keepMs;
      this.#kept.set(key.name, held.owner);
      this.#do(this.#put(held, { kind: 'kept', response, until }, keepMs));
    } else if (result === null) this.#do(this.#parts.map.delete(entryOf(key), held.owner));
    else this.#do(this.#put(held, { kind: 'passed_on', result }, passedOnMs));
    return true;
  }

  /** A response of this replica is not kept any more. */
  forget(key: RepeatKey): void {
    const owner = this.#kept.get(key.name);
    this.#kept.delete(key.name);
    if (owner !== undefined) this.#do(this.#parts.map.delete(entryOf(key), owner));
  }

  /** Resolves when all writes that were begun have ended. */
  async flushed(): Promise<void> {
    while (this.#work.size > 0) await Promise.all(this.#work);
  }

  close(): void {
    this.#held.clear();
    this.#cancelRenewal?.();
  }

  #newOwner(): string {
    this.#runs += 1;
    return `${this.#parts.replica}.${this.#runs}`;
  }

  #of(key: RepeatKey): Held | null {
    const held = this.#held.get(key.name);
    return held?.key === key ? held : null;
  }

  /** Renews the claim from now on. */
  #hold(held: Held): void {
    this.#held.set(held.key.name, held);
    this.#cancelRenewal ??= this.#renewLater();
  }

  /** The claim of this very call, which is not renewed any more; `null` = it has none. */
  #letGo(key: RepeatKey): Held | null {
    const held = this.#of(key);
    if (held !== null) this.#held.delete(key.name);
    return held;
  }

  #put(
    { key, owner }: Held,
    state: ClaimState,
    ttlMs: number,
    over: string | null = null,
  ): Promise<PutReply<Claim>> {
    const { fingerprint } = key;
    return this.#parts.map.put(entryOf(key), { fingerprint, state }, { owner, ttlMs, over });
  }

  /** What lies under the call's name was not sealed for it with this label key, or is spoilt. */
  #warnOnce({ upstream }: RepeatKey): void {
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    this.#parts.telemetry.log.warn(
      'a kept response in Redis cannot be opened: use one privacy.labelKey for all replicas, and nothing else in their Redis',
      { upstream },
    );
  }

  #do(work: Promise<unknown>): void {
    this.#work.add(work);
    void work.finally(() => this.#work.delete(work));
  }

  #renewLater(): () => void {
    return this.#parts.clock.after(renewEveryMs, () => {
      this.#cancelRenewal = null;
      const renewals = [...this.#held.values()].map((held) => this.#renew(held));
      this.#do(
        Promise.all(renewals).then(() => {
          if (this.#held.size > 0) this.#cancelRenewal ??= this.#renewLater();
        }),
      );
    });
  }

  async #renew(held: Held): Promise<void> {
    const { clock, telemetry } = this.#parts;
    const { isAgain, key } = held;
    const state = { kind: 'held', isAgain } as const;
    let reply = await this.#put(held, state, heldMs);
    if (reply.kind === 'lost' && reply.to.kind === 'entry' && isFree(reply.to, clock.now()))
      reply = await this.#put(held, state, heldMs, reply.to.owner);
    if (reply.kind !== 'lost' || this.#letGo(key) === null) return;
    // Another replica makes the call, too. It has counted that, unless the map had lost this claim or never had it.
    const other = reply.to.kind === 'entry' ? reply.to.value.state : null;
    if (other?.kind !== 'held' || !other.isAgain) telemetry.madeAgain(key.upstream);
  }
}

/** A call that has run, and whose response cannot be had. @throws Refusal where the key forbids to make it again */
function unavailable({ marker }: RepeatKey, refusal: Refusal): null {
  if (marker === 'key') throw refusal;
  return null;
}
