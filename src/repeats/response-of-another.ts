/**
 * The response of a call that another replica makes, or has made.
 *
 * Owns: how long a repeat waits for the response, and what the state of the claim means for that repeat. Does not own: who makes
 * the call when the other replica is gone (`shared-repeats.ts`). Keeps: a call with a key that has run is not made again only because
 * its response cannot be read; one without a key has nothing that forbids it, and is made again.
 */
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';
import { openResponse } from './response-seal.ts';
import type { Refusal } from '../errors.ts';
import type { Claim } from './claim.ts';
import { assertSameCall, tooLarge, unreadable } from './conflicts.ts';
import { delay } from './delay.ts';
import { claimMs, type RedisRepeats } from './redis-repeats.ts';
import type { KeptResponse, RepeatKey } from './repeat.ts';

/** A waiting repeat checks this often, milliseconds: at first, and in the end. */
const checkMs = { min: 25, max: 250 };
/** How long a repeat waits for the response's bytes after the claim became `kept` or `free`. Milliseconds. */
const announcedMs = 5_000;

/** A response that another replica has got. `isReplayed`: its call had ended before it was asked for. */
export interface ResponseGiven {
  readonly response: KeptResponse;
  readonly isReplayed: boolean;
}

export interface ResponseOfAnotherParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly redis: RedisRepeats;
  /** What lies in Redis under the call's name was not sealed for it with this label key, or is spoilt. */
  readonly onUnreadable: (upstream: string) => void;
}

export class ResponseOfAnother {
  readonly #parts: ResponseOfAnotherParts;

  constructor(parts: ResponseOfAnotherParts) {
    this.#parts = parts;
  }

  /**
   * The response of the call with this name; `null` = there is none to wait for, and whoever takes the claim makes the call.
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call was refused with; the signal's reason when
   * nobody waits any more
   */
  async wait(key: RepeatKey, signal: CallSignal): Promise<ResponseGiven | null> {
    const { clock, redis } = this.#parts;
    let isReplayed: boolean | null = null;
    const startedAt = clock.monotonic();
    let readAt = startedAt;
    let announcedAt: number | null = null;
    for (;;) {
      const read = await redis.read(key.name);
      signal.throwIfAborted();
      const now = clock.monotonic();
      if (read === null) {
        if (now - readAt >= claimMs) return null;
      } else {
        readAt = now;
        const { claim, sealed } = read;
        if (claim === 'gone' || claim.state === 'left') return null;
        assertSameCall(key, claim);
        isReplayed ??= claim.state === 'kept' || claim.state === 'unstored';
        if (claim.state === 'too_large') return unavailable(key, tooLarge());
        const response = this.#responseIn(key, claim, sealed);
        if (response === 'expired') {
          await redis.release(key.name, claim);
          return null;
        }
        if (response === 'unreadable') return unavailable(key, unreadable());
        if (response !== null) return { response, isReplayed };
        const isAnnounced = claim.state === 'kept' || claim.state === 'free';
        announcedAt = isAnnounced ? (announcedAt ?? now) : null;
        if (announcedAt !== null && now - announcedAt > announcedMs) {
          return claim.state === 'free' ? null : unavailable(key, unreadable());
        }
      }
      await delay(clock, Math.min(checkMs.max, Math.max(checkMs.min, (now - startedAt) / 8)), signal);
    }
  }

  /** @throws Refusal what the call was refused with */
  #responseIn(
    key: RepeatKey,
    { state, holder }: Claim,
    sealed: Buffer | null,
  ): KeptResponse | 'expired' | 'unreadable' | null {
    if (sealed === null || (state !== 'kept' && state !== 'free')) return null;
    const run = state === 'kept' ? null : holder;
    const { labelKey, clock } = this.#parts;
    const result = openResponse(labelKey, key, { run, sealed, now: clock.now() });
    if (result === 'expired') return state === 'kept' ? result : null;
    if (result?.kind === 'refusal') throw result.refusal;
    if (result !== null) return result.response;
    // `free`: the call has ended without a kept response, so the unreadable bytes may belong to an earlier call with the same key.
    if (state === 'free') return null;
    this.#parts.onUnreadable(key.upstream);
    return 'unreadable';
  }
}

/** A call that has run, and whose response cannot be had. @throws Refusal where the key forbids to make it again */
function unavailable({ marker }: RepeatKey, refusal: Refusal): null {
  if (marker === 'key') throw refusal;
  return null;
}
