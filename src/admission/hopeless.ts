/**
 * Refusing those who cannot make it any more, as soon as that is known: a full ceiling, a closed bucket, a lane that
 * stands still, a call that turned out dearer. Refuses to own: newcomers (the desk asks before they enter the line).
 * Keeps: who waits behind somebody refused is not counted behind it.
 */
import type { CeilingRef, TakeReply } from '../limiter/ceilings.ts';
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import { keyOf } from './gates.ts';
import type { Holder } from './holder.ts';
import { draining, tooLong } from './refusals.ts';
import type { Turns } from './turns.ts';
import type { Waiting } from './waiting.ts';

/** The times of so many next places are known without asking for them (`places-read.policy.ts`). */
const knownPlaces = 64;
/** Looks that newcomers bring about, at one ceiling. Milliseconds. */
const lookEveryMs = 1_000;
const veryMany = 10_000;

/** A look at those who wait for places of one ceiling. */
interface Look {
  /** The day refused: nobody gets a place before that, milliseconds. 0 = it did not. */
  readonly dayMs: number;
  /** Places to ask for; who stands further back is taken to get the last of them. */
  readonly upTo: number;
  /** Calls that are in the line already though their callers do not wait yet. */
  readonly entered: readonly Holder[];
}

export class Hopeless {
  readonly #parts: DeskParts;
  readonly #waiting: Waiting;
  readonly #turns: Turns;
  /** Ceilings to be looked at in this turn; one look serves everything that brought it about. */
  readonly #looks = new Map<string, Look>();
  /** When newcomers last brought a look about, by ceiling. */
  readonly #lookedAt = new Map<string, number>();

  constructor(parts: DeskParts, waiting: Waiting, turns: Turns) {
    this.#parts = parts;
    this.#waiting = waiting;
    this.#turns = turns;
  }

  /** A ceiling had no place. */
  onFull(ceiling: CeilingRef, { day, waitMs }: Extract<TakeReply, { kind: 'refused' }>): void {
    this.#lookSoon(ceiling, { dayMs: day ? waitMs : 0, upTo: Infinity, entered: [] });
  }

  /** A more urgent call went before others that wait for a place of its ceiling. */
  onOvertaken(by: Holder): void {
    this.#lookSoon(by.entry.ceiling, { dayMs: 0, upTo: Infinity, entered: [by] });
  }

  /** The places of a ceiling were read for a newcomer: the next ones concern those who wait already. */
  onRead(ceiling: CeilingRef): void {
    const now = this.#parts.clock.monotonic();
    if (now - (this.#lookedAt.get(ceiling.key) ?? -Infinity) < lookEveryMs) return;
    if (this.#lookedAt.size > veryMany) this.#lookedAt.clear();
    this.#lookedAt.set(ceiling.key, now);
    this.#lookSoon(ceiling, { dayMs: 0, upTo: knownPlaces, entered: [] });
  }

  #lookSoon(ceiling: CeilingRef, look: Look): void {
    const planned = this.#looks.get(ceiling.key);
    if (planned !== undefined) {
      this.#looks.set(ceiling.key, {
        dayMs: Math.max(planned.dayMs, look.dayMs),
        upTo: Math.max(planned.upTo, look.upTo),
        entered: [...planned.entered, ...look.entered],
      });
      return;
    }
    this.#looks.set(ceiling.key, look);
    this.#parts.background(
      Promise.resolve().then(async () => {
        const all = this.#looks.get(ceiling.key) ?? look;
        this.#looks.delete(ceiling.key);
        if (this.#waiting.under(ceiling.key) > 0) await this.#lookUnder(ceiling, all);
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

  /** Everybody of this workspace and upstream, each lane in its order. */
  async #lookUnder(ceiling: CeilingRef, { dayMs, upTo, entered }: Look): Promise<void> {
    const line = [...this.#waiting.all()]
      .filter((holder) => holder.entry.ceiling.key === ceiling.key)
      .filter((holder) => holder.waiter !== null || entered.includes(holder))
      .toSorted((one, other) => one.entry.admission.urgency - other.entry.admission.urgency);
    const positions = Array.from({ length: Math.min(upTo, line.length) }, (_, index) => index + 1);
    const waits = await this.#parts.ceilings.forecast(ceiling, positions);
    const now = this.#parts.clock.monotonic();
    const ahead = new Map<string, number>();
    for (const holder of line) {
      if (holder.left || (holder.waiter === null && !entered.includes(holder))) continue;
      const lane = keyOf(holder.entry.admission);
      const before = ahead.get(lane) ?? 0;
      const position = Math.min(this.#turns.positionOf(holder.entry, before), waits.length);
      const waitMs = Math.max(dayMs, waits[position - 1] ?? 0);
      const isLate = now + waitMs > holder.deadline;
      if (isLate && holder.waiter !== null) this.#waiting.refuse(holder, tooLong(waitMs, dayMs > 0));
      else ahead.set(lane, before + 1);
    }
  }
}
