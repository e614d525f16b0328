/**
 * Refusing those who cannot make it any more, as soon as that is known: a full ceiling, a closed bucket, a lane that
 * stands still, a call that turned out dearer. Refuses to own: newcomers (the desk asks before they enter the line).
 * Keeps: who waits behind somebody refused is not counted behind it.
 */
import type { CeilingRef, TakeReply } from '../limiter/ceilings.ts';
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import type { Holder } from './holder.ts';
import { draining, tooLong } from './refusals.ts';
import type { Waiting } from './waiting.ts';

export class Hopeless {
  readonly #parts: DeskParts;
  readonly #waiting: Waiting;
  /** Ceilings found full in this turn; one look at the line serves all their refusals. */
  readonly #full = new Set<string>();

  constructor(parts: DeskParts, waiting: Waiting) {
    this.#parts = parts;
    this.#waiting = waiting;
  }

  /** A ceiling had no place. */
  onFull(ceiling: CeilingRef, { day, waitMs }: Extract<TakeReply, { kind: 'refused' }>): void {
    if (this.#full.has(ceiling.key)) return;
    this.#full.add(ceiling.key);
    this.#parts.background(
      Promise.resolve().then(async () => {
        this.#full.delete(ceiling.key);
        await this.#lookUnder(ceiling, day, waitMs);
      }),
    );
  }

  /** A bucket, or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const now = this.#parts.clock.monotonic();
    for (const holder of this.#waiting.all()) {
      const { admission } = holder.entry;
      if (holder.waiter === null || admission.bucket !== bucket) continue;
      if (lane !== null && admission.lane !== lane) continue;
      if (now + stillMs > holder.deadline) this.#waiting.refuse(holder, tooLong(stillMs, false));
    }
  }

  /** The call turned out dearer than it was when it entered its lane. */
  onDearer(holder: Holder): void {
    this.#ifItWaits(holder, (waitMs) => {
      const late = this.#parts.clock.monotonic() + waitMs > holder.deadline;
      if (late) this.#waiting.refuse(holder, tooLong(waitMs, false));
    });
  }

  /** The process will send nothing after `budgetMs`. */
  onDrain(budgetMs: number): void {
    for (const holder of this.#waiting.all()) {
      if (holder.waiter === null) continue;
      this.#ifItWaits(holder, (waitMs) => {
        if (waitMs > budgetMs) this.#waiting.refuse(holder, draining());
      });
    }
  }

  #ifItWaits(holder: Holder, then: (waitMs: number) => void): void {
    const { bucket, ticket } = holder.entry.admission;
    const asked = this.#parts.limiter().forecast(bucket, ticket);
    this.#parts.background(
      asked.then((wait) => {
        if (wait !== null && holder.waiter !== null) then(wait.waitMs);
      }),
    );
  }

  /** Everybody of this workspace and upstream, in the order of their coming. */
  async #lookUnder(ceiling: CeilingRef, day: boolean, waitMs: number): Promise<void> {
    const line = [...this.#waiting.all()].filter(
      (holder) => holder.waiter !== null && holder.entry.ceiling.key === ceiling.key,
    );
    const waits = await this.#parts.ceilings.forecast(
      ceiling,
      line.map((_, index) => index + 1),
    );
    const now = this.#parts.clock.monotonic();
    let ahead = 0;
    for (const holder of line) {
      const holderWaitMs = Math.max(day ? waitMs : 0, waits[ahead] ?? waitMs);
      if (now + holderWaitMs > holder.deadline) this.#waiting.refuse(holder, tooLong(holderWaitMs, day));
      else ahead += 1;
    }
  }
}
