/**
 * Repeats over all replicas: who makes a call, and how the others get its answer.
 *
 * A replica that makes a call claims its key in Redis and renews the claim while the call is under way; a repeat at another replica
 * waits for what comes of it. A claim that is not renewed belonged to a replica that is gone: one of those who wait makes the
 * call again, and that is counted.
 *
 * Owns: that protocol. Refuses to own: clients of this replica (`repeats.ts`), commands (`redis-repeats.ts`).
 * Keeps: without Redis each replica answers for itself; Redis sees digests and ciphertext only.
 */
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { openAnswer, resultOf, sealAnswer, type Result } from './answer-seal.ts';
import { conflict, demandSame, tooLarge } from './conflicts.ts';
import type { KeptEntry } from './kept-answers.ts';
import { positionKeptMs } from './left-positions.ts';
import {
  claimMs,
  handOverMs,
  type Claim,
  type Claimed,
  type ClaimState,
  type RedisRepeats,
} from './redis-repeats.ts';
import { LostAnswers } from './lost-answers.ts';
import { pause } from './pause.ts';
import type { Ended, KeptAnswer, RepeatKey } from './repeat.ts';

/** Claims are renewed this often, so that all are put back within a second after a loss. Milliseconds. */
const renewEveryMs = 500;
/** A waiting repeat checks this often, milliseconds: at first, and in the end. */
const checkMs = { min: 25, max: 250 };
/** An answer that is announced is there within this, or never. Milliseconds. */
const announcedMs = 5_000;

/** What there is for a call: make it (at the position of the one that it repeats), or an answer. */
export type Found =
  | { readonly kind: 'make'; readonly arrivedAt: number | null }
  | { readonly kind: 'answer'; readonly answer: KeptAnswer; readonly isReplayed: boolean };

export interface SharedRepeatsParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly redis: RedisRepeats;
  /** Opaque name of this replica, new with every start. */
  readonly replica: string;
  readonly settings: () => IdempotencySettings;
  /** A call is made again because the replica that held it is gone. */
  readonly onHolderLost: (upstream: string) => void;
  /** What this replica keeps, the oldest first. */
  readonly kept: () => Iterable<KeptEntry>;
}

type Waited = Found | { readonly kind: 'again' | 'lost' };

export class SharedRepeats {
  readonly #parts: SharedRepeatsParts;
  /** Claims of this replica, by name. */
  readonly #held = new Map<string, Claim>();
  readonly #lost: LostAnswers;
  readonly #pending = new Set<Promise<unknown>>();
  #runs = 0;
  #cancelRenewal: (() => void) | null = null;

  constructor(parts: SharedRepeatsParts) {
    this.#parts = parts;
    this.#lost = new LostAnswers(parts);
  }

  /**
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call that this one repeats was refused with;
   * the signal's reason when nobody waits any more
   */
  async find(key: RepeatKey, signal: CallSignal): Promise<Found> {
    if (key.marker === 'first' || key.marker === 'silent') return { kind: 'make', arrivedAt: null };
    const { clock, redis, onHolderLost } = this.#parts;
    const mine: Claim = { fingerprint: key.fingerprint, holder: this.#newHolder(), state: 'held' };
    let isLost = false;
    for (;;) {
      const askedAt = clock.monotonic();
      const claimed = await redis.claim(key, mine.holder, key.marker === 'key');
      if (claimed?.kind === 'taken' && key.marker === 'key') this.#hold(key.name, mine);
      // Nobody waits any more: whoever called ends the claim with the call.
      signal.throwIfAborted();
      if (claimed === null || claimed.kind === 'none' || claimed.kind === 'taken') {
        if (isLost) onHolderLost(key.upstream);
        return { kind: 'make', arrivedAt: arrivalOf(claimed, askedAt) };
      }
      if (claimed.kind !== 'known') await pause(clock, checkMs.min, signal);
      else {
        const waited = await this.#waitFor(key, claimed.claim, signal);
        if (waited.kind === 'answer' || waited.kind === 'make') return waited;
        isLost = waited.kind === 'lost';
      }
    }
  }

  /** The answer goes out as a stream: no repeat can join any more. */
  streaming({ name }: RepeatKey): void {
    const claim = this.#held.get(name);
    if (claim === undefined) return;
    this.#hold(name, { ...claim, state: 'streaming' });
    this.#track(this.#change(name, 'streaming', claimMs));
  }

  /** Its client left the call while it waited. `arrivedAt`: its position, monotonic milliseconds. */
  left(key: RepeatKey, arrivedAt: number): void {
    if (key.marker === 'silent' || (key.marker === 'key' && !this.#held.has(key.name))) return;
    const { clock, redis } = this.#parts;
    const claim = this.#held.get(key.name) ?? this.#claimOf(key);
    this.#held.delete(key.name);
    const options = { forMs: positionKeptMs, arrivedAgoMs: clock.monotonic() - arrivedAt };
    this.#track(redis.change(key.name, { ...claim, state: 'left' }, options));
  }

  /** Its client left the call after it had been sent: a repeat may come anywhere. */
  abandoned(key: RepeatKey): void {
    if (key.marker === 'key' || key.marker === 'silent') return;
    this.#hold(key.name, this.#claimOf(key));
    this.#track(this.#change(key.name, 'held', claimMs));
  }

  /** The call is over. */
  ended(key: RepeatKey, ended: Ended, keepMs: number): void {
    if (this.#held.has(key.name)) this.#track(this.#end(key, ended, keepMs));
  }

  /** Resolves when everything is stored that is to be. */
  async flushed(): Promise<void> {
    while (this.#pending.size > 0) await Promise.all(this.#pending);
  }

  close(): void {
    this.#cancelRenewal?.();
    this.#parts.redis.close();
  }

  async #end(key: RepeatKey, ended: Ended, keepMs: number): Promise<void> {
    const { redis, settings, labelKey } = this.#parts;
    const { name } = key;
    const claim = this.#held.get(name);
    if (claim === undefined) return;
    const isKept = ended.kind === 'answered' && ended.isKept && keepMs > 0;
    if (isKept && ended.answer !== 'too_large') {
      const result: Result = { kind: 'answer', answer: ended.answer };
      const bytes = sealAnswer(labelKey, key, { run: null, result });
      const isStored = await redis.store(name, bytes, keepMs);
      await this.#change(name, isStored ? 'kept' : 'too_large', keepMs);
      this.#held.delete(name);
      if (isStored) await redis.keep(key, bytes.length, settings());
      return;
    }
    const isWanted = await this.#change(name, isKept ? 'too_large' : 'free', isKept ? keepMs : handOverMs);
    this.#held.delete(name);
    const result = isKept || isWanted !== true ? null : resultOf(ended);
    if (result === null) return;
    await redis.store(name, sealAnswer(labelKey, key, { run: claim.holder, result }), handOverMs);
  }

  /** Waits for what another replica makes of the call. */
  async #waitFor(key: RepeatKey, first: Claim, signal: CallSignal): Promise<Waited> {
    const { clock, redis, labelKey } = this.#parts;
    demandSame(key, first);
    if (first.state === 'streaming')
      throw conflict('A call with this key is being answered. Repeat it after its end.');
    const startedAt = clock.monotonic();
    let announcedAt: number | null = null;
    let answeredAt = startedAt;
    for (;;) {
      const read = await redis.read(key.name);
      signal.throwIfAborted();
      answeredAt = read === null ? answeredAt : clock.monotonic();
      if (read === null && clock.monotonic() - answeredAt < claimMs) {
        await pause(clock, checkMs.max, signal);
        continue;
      }
      if (read === null || read.claim === null) return { kind: 'lost' };
      const { claim, sealed } = read;
      demandSame(key, claim);
      if (claim.state === 'left') return { kind: 'again' };
      if (claim.state === 'too_large') throw tooLarge();
      if (claim.state === 'kept' || claim.state === 'free') {
        const run = claim.state === 'kept' ? null : claim.holder;
        const result = sealed === null ? null : openAnswer(labelKey, key, { run, sealed });
        if (result?.kind === 'refusal') throw result.refusal;
        if (result?.kind === 'answer') return this.#give(key, result.answer, first.state === 'kept');
        announcedAt ??= clock.monotonic();
        if (clock.monotonic() - announcedAt > announcedMs) {
          if (claim.state === 'free') return { kind: 'again' };
          throw conflict('The call with this key has been answered, and its answer cannot be had any more.');
        }
      }
      const lookedMs = (clock.monotonic() - startedAt) / 8;
      await pause(clock, Math.min(checkMs.max, Math.max(checkMs.min, lookedMs)), signal);
    }
  }

  #give(key: RepeatKey, answer: KeptAnswer, isReplayed: boolean): Found {
    // Only a key says for sure that the next call is the same, too.
    if (key.marker !== 'key') this.#track(this.#parts.redis.forget(key.name));
    return { kind: 'answer', answer, isReplayed };
  }

  #change(name: string, state: ClaimState, forMs: number): Promise<boolean | null> {
    const claim = this.#held.get(name);
    if (claim === undefined) return Promise.resolve(null);
    const changed: Claim = { ...claim, state };
    this.#held.set(name, changed);
    return this.#parts.redis.change(name, changed, { forMs });
  }

  #newHolder(): string {
    this.#runs += 1;
    return `${this.#parts.replica}.${this.#runs}`;
  }

  #claimOf({ fingerprint }: RepeatKey): Claim {
    return { fingerprint, holder: this.#newHolder(), state: 'held' };
  }

  #hold(name: string, claim: Claim): void {
    this.#held.set(name, claim);
    this.#cancelRenewal ??= this.#renewLater();
  }

  #renewLater(): () => void {
    return this.#parts.clock.after(renewEveryMs, () => {
      const renewed = this.#renew().then(() => {
        if (this.#cancelRenewal !== null) this.#cancelRenewal = this.#renewLater();
      });
      this.#track(renewed);
    });
  }

  async #renew(): Promise<void> {
    const { redis, kept } = this.#parts;
    const held = [...this.#held].filter(([, { state }]) => state === 'held' || state === 'streaming');
    const claims = held.map(([name, claim]) => ({ name, ...claim }));
    const renewed = await redis.renew([...claims, ...this.#lost.claims()]);
    if (renewed === null) return;
    if (renewed.isLost) {
      this.#lost.add(kept(), () => this.#newHolder());
      await redis.renew(this.#lost.claims());
    }
    await this.#lost.store(renewed.wanted);
  }

  #track(work: Promise<unknown>): void {
    this.#pending.add(work);
    void work.finally(() => this.#pending.delete(work));
  }
}

/** Counted from the asking: the way of the question makes up for that of the answer to who left. */
function arrivalOf(claimed: Claimed | null, askedAt: number): number | null {
  return claimed?.kind === 'taken' && claimed.arrivedAgoMs !== null ? askedAt - claimed.arrivedAgoMs : null;
}
