/**
 * Responses that this replica keeps and that Redis has lost. Their claims are put back at once and renewed. The responses
 * themselves follow: first those for which a repeat waits, then the others, a few at a time, the newest first.
 */
import type { Clock } from '../clock.ts';
import type { IdempotencySettings } from '../config/settings.ts';
import { sealResponse } from './response-seal.ts';
import type { Claim } from './claim.ts';
import type { KeptEntry } from './kept-responses.ts';
import type { RedisRepeats } from './redis-repeats.ts';

/** How many responses for which no repeat waits are stored with each renewal of claims. */
const storedTogether = 5;

export interface LostResponsesParts {
  readonly clock: Clock;
  readonly labelKey: string;
  readonly redis: RedisRepeats;
  readonly settings: () => IdempotencySettings;
}

interface Lost {
  readonly entry: KeptEntry;
  readonly claim: Claim;
}

export class LostResponses {
  readonly #parts: LostResponsesParts;
  /** The oldest first. */
  readonly #lost = new Map<string, Lost>();
  /** Names of those that are on their way to Redis. */
  readonly #storing = new Set<string>();

  constructor(parts: LostResponsesParts) {
    this.#parts = parts;
  }

  /** Claims to be put back and renewed. */
  claims(): (Claim & { readonly name: string })[] {
    return [...this.#lost].map(([name, { claim }]) => ({ name, ...claim }));
  }

  add(entries: Iterable<KeptEntry>, newHolder: () => string): void {
    for (const entry of entries) {
      const { fingerprint, response, key } = entry;
      const state = response === 'too_large' ? response : 'unstored';
      this.#lost.set(key.name, { entry, claim: { fingerprint, holder: newHolder(), state } });
    }
  }

  /** Forgets a response whose claim another replica has. Returns its upstream; `null` = there was no such response. */
  drop(name: string): string | null {
    const lost = this.#lost.get(name);
    this.#lost.delete(name);
    return lost?.entry.key.upstream ?? null;
  }

  async store(wanted: readonly string[]): Promise<void> {
    const newest = [...this.#lost.keys()].slice(-storedTogether).toReversed();
    for (const name of new Set([...wanted, ...newest])) {
      const lost = this.#lost.get(name);
      if (lost === undefined || this.#storing.has(name)) continue;
      this.#storing.add(name);
      await this.#store(name, lost);
      this.#storing.delete(name);
    }
  }

  async #store(name: string, { entry, claim }: Lost): Promise<void> {
    const { clock, redis, labelKey, settings } = this.#parts;
    const { key, response, endsAt } = entry;
    const leftMs = endsAt - clock.monotonic();
    const bytes =
      response === 'too_large'
        ? null
        : sealResponse(labelKey, key, {
            run: null,
            result: { kind: 'response', response },
            until: clock.now() + leftMs,
          });
    // What could not be stored is tried again.
    if (leftMs > 1 && bytes !== null && !(await redis.store(name, bytes, leftMs))) return;
    // The claim is not renewed from here on, because a renewal would shorten its life.
    this.#lost.delete(name);
    if (leftMs <= 1) return;
    const state = bytes === null ? claim.state : 'kept';
    await redis.change(name, { ...claim, state }, { forMs: leftMs });
    await redis.keep(key, bytes?.length ?? 0, settings());
  }
}
