/**
 * The claims that this replica holds: for calls that it is making, and for responses that only it still has after Redis lost its
 * data.
 *
 * Owns: renewing claims, restoring them after Redis lost its data, noticing that another replica has taken one. Does not own:
 * what a claim means for a call (`shared-repeats.ts`), commands (`redis-repeats.ts`).
 * Keeps: if two live replicas both make a call, the repetition is counted once.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { renewedStates, type Claim, type ClaimState } from './claim.ts';
import type { KeptEntry } from './kept-responses.ts';
import { LostResponses } from './lost-responses.ts';
import type { PendingWork } from './pending-work.ts';
import { heldMs, type RedisRepeats } from './redis-repeats.ts';
import type { RepeatKey } from './repeat.ts';

/** Time between two renewals, milliseconds: short enough that all claims are back within a second after Redis lost its data. */
const renewEveryMs = 500;

export interface HeldClaimsParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly redis: RedisRepeats;
  /** Opaque name of this replica, new with every start. */
  readonly replica: string;
  readonly settings: () => IdempotencySettings;
  /** A call was made again for its repeat: the replica that made it is gone, or makes it, too. */
  readonly onMadeAgain: (upstream: string) => void;
  /** The responses that this replica keeps, the oldest first. */
  readonly keptResponses: () => Iterable<KeptEntry>;
  readonly work: PendingWork;
}

/** `unconfirmed`: Redis did not reply to the claim, so that another replica may hold it. */
interface Held extends Claim {
  /** Of the call that holds the claim: a later call of the same name has a key object of its own. */
  readonly key: RepeatKey;
  readonly ownership: 'unconfirmed' | 'confirmed';
}

export class HeldClaims {
  readonly #parts: HeldClaimsParts;
  /** Claims of calls under way, by name. */
  readonly #held = new Map<string, Held>();
  readonly #notInRedis: LostResponses;
  #runs = 0;
  #cancelRenewal: (() => void) | null = null;

  constructor(parts: HeldClaimsParts) {
    this.#parts = parts;
    this.#notInRedis = new LostResponses(parts);
  }

  /** A claim with a holder's name that no other claim has. */
  newClaim({ fingerprint }: RepeatKey): Claim {
    return { fingerprint, holder: this.#newHolder(), state: 'held' };
  }

  /** The claim of this very call; `null` = it has none. */
  of(key: RepeatKey): Claim | null {
    const held = this.#held.get(key.name);
    return held?.key === key ? held : null;
  }

  /** Holds the claim: renews it from now on. */
  hold(key: RepeatKey, claim: Claim, ownership: Held['ownership'] = 'confirmed'): void {
    this.#held.set(key.name, { ...claim, key, ownership });
    this.#cancelRenewal ??= this.#renewLater();
  }

  /** Gives the claim up. A later claim of this replica for the same call stays. */
  letGo(name: string, { holder }: Claim): void {
    if (this.#held.get(name)?.holder === holder) this.#held.delete(name);
  }

  /** Reports the new state of a call to Redis, where the claim then lives for `forMs` milliseconds. Resolves with true when a repeat waits for its response. */
  async change(key: RepeatKey, state: ClaimState, forMs: number = heldMs): Promise<boolean> {
    const { name } = key;
    const held = this.#held.get(name);
    if (held?.key !== key) return false;
    const changed: Held = { ...held, state };
    this.#held.set(name, changed);
    const reply = await this.#parts.redis.change(name, changed, { forMs });
    if (reply?.isTaken === true) this.#taken(name, changed.holder, reply.isDataLost);
    return reply?.isWanted === true;
  }

  close(): void {
    this.#cancelRenewal?.();
    this.#cancelRenewal = null;
  }

  #newHolder(): string {
    this.#runs += 1;
    return `${this.#parts.replica}.${this.#runs}`;
  }

  /**
   * Another replica has taken the claim, and makes the same call. That replica has counted the repetition, unless Redis had lost
   * this replica's claim or never had it: then the repetition is counted here.
   */
  #taken(name: string, holder: string, isDataLost: boolean): void {
    const held = this.#held.get(name);
    if (held?.holder !== holder) return;
    this.#held.delete(name);
    if (isDataLost || held.ownership === 'unconfirmed') this.#parts.onMadeAgain(held.key.upstream);
  }

  #renewLater(): () => void {
    const { clock, work } = this.#parts;
    return clock.after(renewEveryMs, () => {
      const renewed = this.#renew().then(() => {
        if (this.#cancelRenewal !== null) this.#cancelRenewal = this.#renewLater();
      });
      work.add(renewed);
    });
  }

  async #renew(): Promise<void> {
    const { redis, work } = this.#parts;
    const held = [...this.#held].filter(([, { state }]) => renewedStates.includes(state));
    const claims = held.map(([name, claim]) => ({ name, ...claim }));
    const renewed = await redis.renew([...claims, ...this.#notInRedis.claims()]);
    if (renewed === null) return;
    for (const { name, holder } of renewed.taken) {
      this.#notInRedis.drop(name);
      this.#taken(name, holder, renewed.isDataLost);
    }
    for (const { name, holder } of claims) this.#confirm(name, holder);
    if (renewed.isDataLost) await this.#putBackKept();
    // Storing responses may take long, and the next renewal is soon: so nothing waits for it here.
    work.add(this.#notInRedis.store(renewed.wanted));
  }

  async #putBackKept(): Promise<void> {
    const { redis, keptResponses, onMadeAgain } = this.#parts;
    this.#notInRedis.add(keptResponses(), () => this.#newHolder());
    const putBack = await redis.renew(this.#notInRedis.claims());
    for (const { name } of putBack?.taken ?? []) {
      const upstream = this.#notInRedis.drop(name);
      if (upstream !== null) onMadeAgain(upstream);
    }
  }

  #confirm(name: string, holder: string): void {
    const held = this.#held.get(name);
    if (held?.holder === holder && held.ownership === 'unconfirmed')
      this.#held.set(name, { ...held, ownership: 'confirmed' });
  }
}
