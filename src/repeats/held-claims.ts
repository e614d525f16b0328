/**
 * Claims of this replica: of calls that it makes, and of answers that only it has since Redis lost its data.
 *
 * Owns: renewing them, putting them back after a loss, and noticing that another replica has taken one. Does not own: what a claim
 * means for a call (`shared-repeats.ts`), commands (`redis-repeats.ts`).
 * Keeps: a call that is made twice although both of its replicas live is counted once.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { statesOfHolder, type Claim, type ClaimState } from './claim.ts';
import type { KeptEntry } from './kept-answers.ts';
import { LostAnswers } from './lost-answers.ts';
import type { PendingWork } from './pending-work.ts';
import { heldMs, type RedisRepeats } from './redis-repeats.ts';
import type { RepeatKey } from './repeat.ts';

/** How often claims are renewed, milliseconds: often enough that all are back within a second after Redis lost its data. */
const renewEveryMs = 500;

export interface HeldClaimsParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly redis: RedisRepeats;
  /** Opaque name of this replica, new with every start. */
  readonly replica: string;
  readonly settings: () => IdempotencySettings;
  /** A call has been made by another replica, too. */
  readonly onMadeAgain: (upstream: string) => void;
  /** What this replica keeps, the oldest first. */
  readonly kept: () => Iterable<KeptEntry>;
  readonly work: PendingWork;
}

/** `asked`: Redis did not answer, so that another replica may have the claim. */
interface Held extends Claim {
  readonly upstream: string;
  readonly known: 'asked' | 'ours';
}

export class HeldClaims {
  readonly #parts: HeldClaimsParts;
  /** Of calls under way, by name. */
  readonly #held = new Map<string, Held>();
  readonly #lost: LostAnswers;
  #runs = 0;
  #cancelRenewal: (() => void) | null = null;

  constructor(parts: HeldClaimsParts) {
    this.#parts = parts;
    this.#lost = new LostAnswers(parts);
  }

  /** A claim under a name of its own. */
  newClaim({ fingerprint }: RepeatKey): Claim {
    return { fingerprint, holder: this.#newHolder(), state: 'held' };
  }

  of(name: string): Claim | null {
    return this.#held.get(name) ?? null;
  }

  /** From now on the claim is renewed. */
  hold({ name, upstream }: RepeatKey, claim: Claim, known: Held['known'] = 'ours'): void {
    this.#held.set(name, { ...claim, upstream, known });
    this.#cancelRenewal ??= this.#renewLater();
  }

  /** The claim is over. One that this replica has made under the same name since is held on to. */
  letGo(name: string, { holder }: Claim): void {
    if (this.#held.get(name)?.holder === holder) this.#held.delete(name);
  }

  /** Reports what became of a call. Resolves with true when somebody waits for its answer. */
  async change(name: string, state: ClaimState, forMs: number = heldMs): Promise<boolean> {
    const held = this.#held.get(name);
    if (held === undefined) return false;
    const changed: Held = { ...held, state };
    this.#held.set(name, changed);
    const reply = await this.#parts.redis.change(name, changed, { forMs });
    if (reply?.isTaken === true) this.#taken(name, changed.holder, reply.isLost);
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
   * Another replica makes the same call as well. That replica has counted the repetition, unless Redis had lost this replica's claim
   * or never had it: then it is counted here.
   */
  #taken(name: string, holder: string, isForgotten: boolean): void {
    const held = this.#held.get(name);
    if (held?.holder !== holder) return;
    this.#held.delete(name);
    if (isForgotten || held.known === 'asked') this.#parts.onMadeAgain(held.upstream);
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
    const held = [...this.#held].filter(([, { state }]) => statesOfHolder.includes(state));
    const claims = held.map(([name, claim]) => ({ name, ...claim }));
    const renewed = await redis.renew([...claims, ...this.#lost.claims()]);
    if (renewed === null) return;
    for (const { name, holder } of renewed.taken) {
      this.#lost.drop(name);
      this.#taken(name, holder, renewed.isLost);
    }
    for (const { name, holder } of claims) this.#confirm(name, holder);
    if (renewed.isLost) await this.#putBackKept();
    // A renewal does not wait for it: an answer may be large, and the next renewal is soon.
    work.add(this.#lost.store(renewed.wanted));
  }

  async #putBackKept(): Promise<void> {
    const { redis, kept, onMadeAgain } = this.#parts;
    this.#lost.add(kept(), () => this.#newHolder());
    const putBack = await redis.renew(this.#lost.claims());
    for (const { name } of putBack?.taken ?? []) {
      const upstream = this.#lost.drop(name);
      if (upstream !== null) onMadeAgain(upstream);
    }
  }

  #confirm(name: string, holder: string): void {
    const held = this.#held.get(name);
    if (held?.holder === holder && held.known === 'asked') this.#held.set(name, { ...held, known: 'ours' });
  }
}
