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
import { ResponseOfAnother, type ResponseOfAnotherParts } from './response-of-another.ts';
import { resultOf, sealResponse, type SealedResult } from './response-seal.ts';
import type { Claim } from './claim.ts';
import { HeldClaims, type HeldClaimsParts } from './held-claims.ts';
import { positionKeptMs } from './kept-positions.ts';
import { delay } from './delay.ts';
import { PendingWork } from './pending-work.ts';
import { handOverMs, type ClaimReply } from './redis-repeats.ts';
import type { CallResult, KeptResponse, RepeatKey } from './repeat.ts';

/** While replicas put back what Redis has lost, claims are asked for this often. Milliseconds. */
const askEveryMs = 25;

/** What a call does: it is made (at the position of the call that it repeats), or gets the response of that call. */
export type RepeatDecision =
  | { readonly kind: 'make'; readonly arrivedAt: number | null }
  | { readonly kind: 'response'; readonly response: KeptResponse; readonly isReplayed: boolean };

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
    if (key.marker === 'first' || key.marker === 'silent') return { kind: 'make', arrivedAt: null };
    const { clock, redis } = this.#parts;
    const own = this.#claims.newClaim(key);
    for (;;) {
      const askedAt = clock.monotonic();
      const claimed = await redis.claim(key, own.holder, key.marker === 'key');
      this.#note(key, own, claimed);
      // No client waits any more: the failed call ends its claim in `ended`.
      signal.throwIfAborted();
      if (claimed === null || claimed.kind === 'none' || claimed.kind === 'taken') {
        return { kind: 'make', arrivedAt: arrivalOf(claimed, askedAt) };
      }
      if (claimed.kind === 'known') {
        const awaited = await this.#others.wait(key, claimed.claim, signal);
        if (awaited.kind === 'response') return this.#give(key, awaited);
      } else await delay(clock, askEveryMs, signal);
    }
  }

  /** The response goes out as a stream: no repeat can join any more. */
  streaming({ name }: RepeatKey): void {
    this.#work.add(this.#claims.change(name, 'streaming'));
  }

  /** The client left while its call waited. `arrivedAt`: the call's position, monotonic milliseconds. */
  left(key: RepeatKey, arrivedAt: number): void {
    const held = this.#claims.of(key.name);
    if (key.marker === 'silent' || (key.marker === 'key' && held === null)) return;
    const { clock, redis } = this.#parts;
    const claim: Claim = { ...(held ?? this.#claims.newClaim(key)), state: 'left' };
    this.#claims.letGo(key.name, claim);
    const options = { forMs: positionKeptMs, arrivedAgoMs: clock.monotonic() - arrivedAt };
    this.#work.add(redis.change(key.name, claim, options));
  }

  /** The client left after its call had been sent: a repeat may come to any replica. */
  abandoned(key: RepeatKey): void {
    if (key.marker === 'key' || key.marker === 'silent') return;
    this.#claims.hold(key, this.#claims.newClaim(key));
    this.#work.add(this.#claims.change(key.name, 'held'));
  }

  /** The call has ended with this result. */
  ended(key: RepeatKey, ended: CallResult, keepMs: number): void {
    if (this.#claims.of(key.name) !== null) this.#work.add(this.#end(key, ended, keepMs));
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
    if (key.marker === 'key' && (isTaken || claimed === null)) {
      this.#claims.hold(key, own, isTaken ? 'confirmed' : 'unconfirmed');
    }
  }

  async #end(key: RepeatKey, ended: CallResult, keepMs: number): Promise<void> {
    const { redis, settings, labelKey } = this.#parts;
    const { name } = key;
    const claim = this.#claims.of(name);
    if (claim === null) return;
    const isKept = ended.kind === 'answered' && ended.isKept && keepMs > 0;
    if (isKept && ended.response !== 'too_large') {
      const result: SealedResult = { kind: 'response', response: ended.response };
      const bytes = sealResponse(labelKey, key, { run: null, result });
      const isStored = await redis.store(name, bytes, keepMs);
      await this.#claims.change(name, isStored ? 'kept' : 'too_large', keepMs);
      this.#claims.letGo(name, claim);
      if (isStored) await redis.keep(key, bytes.length, settings());
      return;
    }
    const isWanted = await this.#claims.change(
      name,
      isKept ? 'too_large' : 'free',
      isKept ? keepMs : handOverMs,
    );
    this.#claims.letGo(name, claim);
    const result = isKept || !isWanted ? null : resultOf(ended);
    if (result === null) return;
    await redis.store(name, sealResponse(labelKey, key, { run: claim.holder, result }), handOverMs);
  }

  #give(
    key: RepeatKey,
    { response, isReplayed }: Omit<Extract<RepeatDecision, { kind: 'response' }>, 'kind'>,
  ): RepeatDecision {
    // Only a key says for sure that the next call is the same, too.
    if (key.marker !== 'key') this.#work.add(this.#parts.redis.forget(key.name));
    return { kind: 'response', response, isReplayed };
  }
}

/**
 * The arrival of the call that was left, on this replica's clock. The age that Redis stated is counted back from when it was asked,
 * not from its reply: the time that this request took stands for the time that the report of the leaving took.
 */
function arrivalOf(claimed: ClaimReply | null, askedAt: number): number | null {
  return claimed?.kind === 'taken' && claimed.arrivedAgoMs !== null ? askedAt - claimed.arrivedAgoMs : null;
}
