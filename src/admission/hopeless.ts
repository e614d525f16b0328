/**
 * Refusing those who cannot make it any more, as soon as that is known: a full ceiling, a closed bucket, a lane that
 * stands still, a call that turned out dearer. Refuses to own: newcomers (the desk asks before they enter the line).
 * Keeps: who waits behind somebody refused is not counted behind it; looking at very many takes little of the others' time
 * (`paced.ts`), however many attempts end at once.
 */
import type { CeilingRef } from '../limiter/ceilings.ts';
import type { BucketKey, LaneKey, Standing } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import { keyOf } from './gates.ts';
import type { Holder } from './holder.ts';
import { Paced } from './paced.ts';
import { draining, tooLong } from './refusals.ts';
import type { Turns } from './turns.ts';
import type { Waiting } from './waiting.ts';

/** The times of so many next places are known without asking for them (`places-read.policy.ts`). */
const knownPlaces = 64;
/** Looks that newcomers bring about, at one ceiling. Milliseconds. */
const lookEveryMs = 1_000;
const veryMany = 10_000;
/** Calls of one bucket whose waits are asked for again after a change that may have made them longer. */
const maxRejudged = 64;

/** A look at those who wait for places of one ceiling. */
interface Look {
  readonly ceiling: CeilingRef;
  /** Places to ask for (`null` = one for everybody who waits); who stands further back is taken to get the last of them. */
  upTo: number | null;
  /** Calls that are in the line already though their callers do not wait yet. */
  readonly entered: Set<Holder>;
}

/** A bucket that sends nothing until then, monotonic milliseconds (`null` = it does); its lanes, which may stand longer. */
interface Standstill {
  until: number | null;
  readonly lanes: Map<LaneKey, number>;
}

export class Hopeless {
  readonly #parts: DeskParts;
  readonly #waiting: Waiting;
  readonly #turns: Turns;
  /** Ceilings to be looked at next; one look serves everything that brought it about. */
  readonly #looks = new Map<string, Look>();
  readonly #looking: Paced;
  /** Standstills whose waiting calls have not been judged yet. */
  #still = new Map<BucketKey, Standstill>();
  readonly #refusing: Paced;
  /** When newcomers last brought a look about, by ceiling. */
  readonly #lookedAt = new Map<string, number>();

  constructor(parts: DeskParts, waiting: Waiting, turns: Turns) {
    this.#parts = parts;
    this.#waiting = waiting;
    this.#turns = turns;
    this.#looking = new Paced(parts.clock, () => this.#look());
    this.#refusing = new Paced(parts.clock, () => this.#refuseLate());
  }

  /** A ceiling had no place. */
  onFull(ceiling: CeilingRef): void {
    this.#lookSoon(ceiling, null);
  }

  /** A more urgent call went before others that wait for a place of its ceiling. */
  onOvertaken(by: Holder): void {
    this.#lookSoon(by.entry.ceiling, null).entered.add(by);
  }

  /** The places of a ceiling were read for a newcomer: the next ones concern those who wait already. */
  onRead(ceiling: CeilingRef): void {
    const now = this.#parts.clock.monotonic();
    const lookedAt = this.#lookedAt.get(ceiling.key);
    if (lookedAt !== undefined && now - lookedAt < lookEveryMs) return;
    if (this.#lookedAt.size > veryMany) this.#lookedAt.clear();
    this.#lookedAt.set(ceiling.key, now);
    this.#lookSoon(ceiling, knownPlaces);
  }

  /** The look that is due at this ceiling, to be added to: it is not before the end of this turn. */
  #lookSoon(ceiling: CeilingRef, upTo: number | null): Look {
    let look = this.#looks.get(ceiling.key);
    if (look === undefined) {
      look = { ceiling, upTo, entered: new Set() };
      this.#looks.set(ceiling.key, look);
      this.#parts.background(Promise.resolve().then(() => this.#looking.soon()));
    }
    look.upTo = look.upTo === null || upTo === null ? null : Math.max(look.upTo, upTo);
    return look;
  }

  #look(): number {
    const looks = [...this.#looks.values()];
    this.#looks.clear();
    let visits = 0;
    for (const look of looks) {
      if (this.#waiting.under(look.ceiling.key) === 0) continue;
      visits += this.#waiting.size;
      this.#parts.background(this.#lookUnder(look));
    }
    return visits;
  }

  /** A bucket, or one lane of it, sends nothing for this long. */
  onStandstill(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const until = this.#parts.clock.monotonic() + stillMs;
    let still = this.#still.get(bucket);
    if (still === undefined) this.#still.set(bucket, (still = { until: null, lanes: new Map() }));
    if (lane === null) still.until = later(still.until, until);
    else still.lanes.set(lane, later(still.lanes.get(lane) ?? null, until));
    this.#refusing.soon();
  }

  #refuseLate(): number {
    const now = this.#parts.clock.monotonic();
    const standing = this.#still;
    this.#still = new Map();
    let visits = 0;
    for (const holder of this.#waiting.all()) {
      visits += 1;
      const { bucket, lane } = holder.entry.admission;
      const still = holder.waiter === null ? undefined : standing.get(bucket);
      if (still === undefined) continue;
      const ofLane = still.lanes.get(lane) ?? null;
      const until = ofLane === null ? still.until : later(still.until, ofLane);
      if (until !== null && until > holder.deadline) {
        this.#waiting.refuse(holder, tooLong({ waitMs: until - now, heldBy: 'closed' }, holder.entry));
      }
    }
    return visits;
  }

  /** An answer told what the document of this call costs; others that ask for the same may be dearer than they seemed. */
  onCostKnown({ entry: { admission } }: Holder, points: number): void {
    if (admission.document === null || points <= (admission.costs.cost ?? 0)) return;
    let left = maxRejudged;
    for (const holder of this.#waiting.all()) {
      const { bucket, document, costs } = holder.entry.admission;
      const isDearer = points > (costs.cost ?? 0) && bucket === admission.bucket;
      if (holder.waiter === null || document !== admission.document || !isDearer) continue;
      this.#refuseIfLate(holder);
      left -= 1;
      if (left <= 0) return;
    }
  }

  /** Configuration changed: calls that were expected to leave in time may be late. */
  onReconfigured(holders: readonly Holder[]): void {
    const ceilings = new Map<string, CeilingRef>();
    const judged = new Map<string, number>();
    for (const holder of holders) {
      if (holder.waiter === null) continue;
      ceilings.set(holder.entry.ceiling.key, holder.entry.ceiling);
      const { bucket } = holder.entry.admission;
      const count = judged.get(bucket) ?? 0;
      if (count >= maxRejudged) continue;
      judged.set(bucket, count + 1);
      this.#refuseIfLate(holder);
    }
    for (const ceiling of ceilings.values()) this.#lookSoon(ceiling, null);
  }

  #refuseIfLate(holder: Holder): void {
    this.#ifItWaits(holder, ({ waitMs, heldBy }) => {
      const late = this.#parts.clock.monotonic() + waitMs > holder.deadline;
      if (late) this.#waiting.refuse(holder, tooLong({ waitMs, heldBy }, holder.entry));
    });
  }

  /** The process will send nothing after `budgetMs`. */
  onDrain(budgetMs: number): void {
    for (const holder of this.#waiting.all()) {
      if (holder.waiter === null) continue;
      this.#ifItWaits(holder, ({ waitMs }) => {
        if (waitMs > budgetMs) this.#waiting.refuse(holder, draining());
      });
    }
  }

  #ifItWaits(holder: Holder, then: (standing: Standing) => void): void {
    const { bucket, ticket } = holder.entry.admission;
    const asked = this.#parts.limiter().forecast(bucket, ticket);
    this.#parts.background(
      asked.then((wait) => {
        if (wait !== null && holder.waiter !== null) then(wait);
      }),
    );
  }

  /** Everybody of this workspace and upstream, each lane in its order. */
  async #lookUnder({ ceiling, upTo, entered }: Look): Promise<void> {
    const line = [...this.#waiting.all()]
      .filter((holder) => holder.entry.ceiling.key === ceiling.key)
      .filter((holder) => holder.waiter !== null || entered.has(holder))
      .toSorted((one, other) => one.entry.admission.urgency - other.entry.admission.urgency);
    const positions = Array.from(
      { length: upTo === null ? line.length : Math.min(upTo, line.length) },
      (_, index) => index + 1,
    );
    const holds = await this.#parts.ceilings.forecast(ceiling, positions);
    const now = this.#parts.clock.monotonic();
    const ahead = new Map<string, number>();
    for (const holder of line) {
      if (holder.left || (holder.waiter === null && !entered.has(holder))) continue;
      const lane = keyOf(holder.entry.admission);
      const before = ahead.get(lane) ?? 0;
      const position = Math.min(this.#turns.positionOf(holder.entry, before), holds.length);
      const hold = holds[position - 1];
      const isLate = hold !== undefined && now + hold.waitMs > holder.deadline;
      if (isLate && holder.waiter !== null) this.#waiting.refuse(holder, tooLong(hold, holder.entry));
      else ahead.set(lane, before + 1);
    }
  }
}

/** The later of two times, where there is one already. */
const later = (known: number | null, time: number): number => (known === null ? time : Math.max(known, time));
