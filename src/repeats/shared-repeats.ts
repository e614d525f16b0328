/**
 * Repeats over all replicas: who makes a call, and how the others get its response.
 *
 * A replica that makes a call claims its key in Redis and renews the claim while the call is under way; a repeat at another replica
 * waits for its result. A claim that is not renewed belonged to a replica that is gone: one of the repeats that wait for it, or that
 * come within a minute, makes the call again, and that is counted.
 *
 * Owns: that protocol. Does not own: clients of this replica (`repeats.ts`), claims under way (`held-claims.ts`), the waiting
 * (`response-of-another.ts`), commands (`redis-repeats.ts`).
 * Keeps: without Redis each replica answers for itself; Redis sees digests and ciphertext only.
 */
import type { CallSignal } from '../call-abort.ts';
import { ResponseOfAnother, type ResponseGiven, type ResponseOfAnotherParts } from './response-of-another.ts';
import { resultOf, sealResponse, type SealedResult } from './response-seal.ts';
import type { Claim } from './claim.ts';
import { HeldClaims, type HeldClaimsParts } from './held-claims.ts';
import { leftKeptMs, type LeftCall } from './left-calls.ts';
import { delay } from './delay.ts';
import { PendingWork } from './pending-work.ts';
import { handOverMs, type ClaimReply } from './redis-repeats.ts';
import type { CallResult, RepeatKey } from './repeat.ts';

/** While replicas put back what Redis has lost, claims are asked for this often. Milliseconds. */
const askEveryMs = 25;

/** What a call with a key does: it is made (at the position of the call that it repeats), or gets the response of that call. */
export type RepeatDecision =
  | { readonly kind: 'make'; readonly arrivedAt: number | null }
  | ({ readonly kind: 'response' } & ResponseGiven);

export type SharedRepeatsParts = Omit<HeldClaimsParts, 'work'> & ResponseOfAnotherParts;

export class SharedRepeats {
  readonly #parts: SharedRepeatsParts;
  readonly #work = new PendingWork();
  readonly #claims: HeldClaims;
  readonly #others: ResponseOfAnother;

  constructor(parts: SharedRepeatsParts) {
    this.#parts = parts;
    this.#claims = new HeldClaims({ ...parts, work: this.#work });
    this.#others = new ResponseOfAnother(parts);
  }

  /** Opens the connection to Redis, so that the first call does not wait for it. */
  connect(): void {
    this.#parts.redis.connect();
  }

  /**
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call that this one repeats was refused with;
   * the signal's reason when nobody waits any more
   */
  async find(key: RepeatKey, signal: CallSignal): Promise<RepeatDecision> {
    const { clock, redis } = this.#parts;
    const own = this.#claims.newClaim(key);
    for (;;) {
      const askedAt = clock.monotonic();
      const claimed = await redis.claim(key, own.holder);
      this.#note(key, own, claimed);
      // No client waits any more: the failed call ends its claim in `ended`.
      signal.throwIfAborted();
      if (claimed === null || claimed.kind === 'taken') {
        return { kind: 'make', arrivedAt: arrivalOf(claimed, askedAt) };
      }
      if (claimed.kind === 'known') {
        const given = await this.#others.wait(key, signal);
        if (given !== null) return { kind: 'response', ...given };
      } else await delay(clock, askEveryMs, signal);
    }
  }

  /** The response of a call that was left, at whichever replica; `null` = there is none to wait for. @throws as {@link find} */
  ofLeft(key: RepeatKey, signal: CallSignal): Promise<ResponseGiven | null> {
    return this.#others.wait(key, signal);
  }

  /** The client left while its call with a key waited. `arrivedAt`: the call's position, monotonic milliseconds. */
  left(key: RepeatKey, arrivedAt: number): void {
    const held = this.#claims.of(key);
    if (held === null) return;
    const { clock, redis } = this.#parts;
    const claim: Claim = { ...held, state: 'left' };
    this.#claims.letGo(key.name, claim);
    const options = { forMs: leftKeptMs, arrivedAgoMs: clock.monotonic() - arrivedAt };
    this.#work.add(redis.change(key.name, claim, options));
  }

  /**
   * A call without a key goes on here without a client: it is claimed under its own name, so that a repeat elsewhere can wait for it.
   * Also called when a repeat that had joined it here leaves: the call keeps its claim then, which no other holder could change.
   */
  abandoned(key: RepeatKey): void {
    if (this.#claims.of(key) === null) this.#claims.hold(key, this.#claims.newClaim(key));
    this.#work.add(this.#claims.change(key, 'held'));
  }

  /** Offers what is left of a call without a key to a repeat at any replica. `onFailed`: Redis did not take it. */
  offer(key: RepeatKey, left: LeftCall, onFailed: () => void): void {
    const { redis, clock } = this.#parts;
    const text = left.kind === 'call' ? left.name : null;
    const ageMs = left.kind === 'place' ? clock.monotonic() - left.arrivedAt : 0;
    const offered = redis.offer(key.fingerprint, text, ageMs);
    this.#work.add(
      offered.then((isThere) => {
        if (!isThere) onFailed();
      }),
    );
  }

  /** What is left of an equal call, at whichever replica: nobody else gets it. `null` = nothing, as far as Redis says. */
  async takeLeft(key: RepeatKey): Promise<LeftCall | null> {
    const { redis, clock } = this.#parts;
    const askedAt = clock.monotonic();
    const taken = await redis.takeLeft(key.fingerprint);
    if (taken === null || typeof taken !== 'number')
      return taken === null ? null : { kind: 'call', name: taken };
    return { kind: 'place', arrivedAt: askedAt - taken };
  }

  /** Takes back the offer of a call. False when it was not there: somebody has taken it, or Redis does not answer. */
  withdraw(key: RepeatKey): Promise<boolean> {
    return this.#parts.redis.withdraw(key.fingerprint, key.name);
  }

  /** The call has ended with this result. */
  ended(key: RepeatKey, ended: CallResult, keepMs: number): void {
    if (this.#claims.of(key) !== null) this.#work.add(this.#end(key, ended, keepMs));
  }

  /** Resolves when all writes to Redis that were begun have ended. */
  flushed(): Promise<void> {
    return this.#work.allEnded();
  }

  close(): void {
    this.#claims.close();
    this.#parts.redis.close();
  }

  /** A call that is made without a reply of Redis is claimed as soon as Redis answers again. */
  #note(key: RepeatKey, own: Claim, claimed: ClaimReply | null): void {
    const isTaken = claimed?.kind === 'taken';
    if (isTaken && claimed.isOrphaned) this.#parts.onMadeAgain(key.upstream);
    if (isTaken || claimed === null) {
      this.#claims.hold(key, own, isTaken ? 'confirmed' : 'unconfirmed');
    }
  }

  async #end(key: RepeatKey, ended: CallResult, keepMs: number): Promise<void> {
    const { redis, settings, labelKey } = this.#parts;
    const { name } = key;
    const claim = this.#claims.of(key);
    if (claim === null) return;
    const { clock } = this.#parts;
    const isKept = ended.kind === 'answered' && ended.isKept && keepMs > 0;
    if (!isKept && key.marker !== 'key') await this.withdraw(key);
    if (isKept && ended.response !== 'too_large') {
      const result: SealedResult = { kind: 'response', response: ended.response };
      const bytes = sealResponse(labelKey, key, { run: null, result, until: clock.now() + keepMs });
      const isStored = await redis.store(name, bytes, keepMs);
      await this.#claims.change(key, isStored ? 'kept' : 'too_large', keepMs);
      this.#claims.letGo(name, claim);
      if (isStored) await redis.keep(key, bytes.length, settings());
      return;
    }
    const handedOver = isKept ? null : resultOf(ended);
    if (!isKept && handedOver === null) {
      // There is nothing to wait for: whoever repeats the call makes it at once.
      this.#claims.letGo(name, claim);
      await redis.release(name, claim);
      return;
    }
    const isWanted = await this.#claims.change(
      key,
      isKept ? 'too_large' : 'free',
      isKept ? keepMs : handOverMs,
    );
    this.#claims.letGo(name, claim);
    if (isKept) await redis.keep(key, 0, settings());
    if (handedOver === null || !isWanted) return;
    const sealing = { run: claim.holder, result: handedOver, until: clock.now() + handOverMs };
    await redis.store(name, sealResponse(labelKey, key, sealing), handOverMs);
  }
}

/**
 * The arrival of the call that was left, on this replica's clock. The age that Redis stated is counted back from when it was asked,
 * not from its reply: the time that this request took stands for the time that the report of the leaving took.
 */
function arrivalOf(claimed: ClaimReply | null, askedAt: number): number | null {
  return claimed?.kind === 'taken' && claimed.arrivedAgoMs !== null ? askedAt - claimed.arrivedAgoMs : null;
}
