/**
 * What lies between the admission queue and the store: nothing (the embedded store replies in the same tick), or a wire on which
 * requests and replies are delivered in order, each with its delay, as on one connection to a shared store. The ledger hears
 * what really reached the store.
 */
import type { CeilingRef } from '../../src/limiter/policy/ceiling.policy.ts';
import type { Ceilings, Slot } from '../../src/limiter/ceiling-store.ts';
import type { Grant, MeterSnapshot } from '../../src/limiter/limiter.ts';
import type { Limiter } from '../../src/limiter/over-log/limiter.ts';
import type { FakeClock } from '../support/fake-clock.ts';
import type { Ledger } from './ledger.ts';
import type { Chance } from './chance.ts';
import { entrySettingsOf, highest, perDayOf } from './rules.ts';

export class Wire {
  readonly #clock: FakeClock;
  readonly #chance: Chance;
  readonly #meanMs: number;
  #requestAt = 0;
  #replyAt = 0;

  constructor(clock: FakeClock, chance: Chance, meanMs: number) {
    this.#clock = clock;
    this.#chance = chance;
    this.#meanMs = meanMs;
  }

  /** Runs at the store and gives its response to the process. */
  ask<T>(run: () => Promise<T>): Promise<T> {
    if (this.#meanMs === 0) return run();
    return new Promise((resolve, reject) => {
      this.#requestAt = this.#later(this.#requestAt);
      this.#clock.outside(this.#requestAt, () => {
        run().then(
          (value) => this.report(() => resolve(value)),
          (failure: Error) => this.report(() => reject(failure)),
        );
      });
    });
  }

  /** The store sends the process a message. */
  report(run: () => void): void {
    if (this.#meanMs === 0) return run();
    this.#replyAt = this.#later(this.#replyAt);
    this.#clock.arrives(this.#replyAt, run);
  }

  #later(last: number): number {
    const delay = this.#meanMs * this.#chance.between(0.5, 1.5);
    return Math.max(last, this.#clock.monotonic() + delay);
  }
}

/** What the store believes of a bucket's meters. */
export const ratesOf = (limiter: Limiter, key: string): readonly MeterSnapshot[] =>
  limiter.snapshot().find(({ bucket }) => bucket === key)?.meters ?? [];

const levelsOf = (limiter: Limiter, key: string): string =>
  limiter
    .snapshot()
    .filter(({ bucket }) => bucket === key)
    .flatMap(({ meters }) => meters.map(({ meter, level, limit }) => `${meter} ${level.toFixed(2)}/${limit}`))
    .join(', ');

/** The store, as one process sees it. */
export function wiredLimiter(
  wire: Wire,
  limiter: () => Limiter,
  {
    ledger,
    clock,
    process,
  }: { readonly ledger: Ledger; readonly clock: FakeClock; readonly process: string },
): Limiter {
  const now = (): number => clock.monotonic();
  return {
    admit: (admission) =>
      wire.ask(() => {
        ledger.admitted(admission.ticket, ratesOf(limiter(), admission.bucket), now());
        return limiter()
          .admit(admission)
          .then((reply) => {
            if (reply.kind === 'refused') ledger.refusedAtEntry(admission.ticket);
            else if (reply.kind === 'queued') ledger.accepted(admission.ticket, now());
            if (reply.kind === 'granted') {
              const rates = ratesOf(limiter(), admission.bucket);
              ledger.issued(admission.ticket, reply.grant.lease, rates, now());
            }
            return reply;
          });
      }),
    reserve: (admission, reserving) => wire.ask(() => limiter().reserve(admission, reserving)),
    callers: (bucket, lane) => limiter().callers(bucket, lane),
    reserved: (ceiling) => limiter().reserved(ceiling),
    keptSlots: (...asked) => limiter().keptSlots(...asked),
    settle: (grant, settlement, lesson) =>
      wire.ask(() => {
        ledger.settled(grant.lease, settlement, lesson !== null, now());
        const done = limiter().settle(grant, settlement, lesson);
        ledger.note(now(), () => `levels ${levelsOf(limiter(), grant.bucket)}`);
        return done;
      }),
    learn: (grant, lesson) =>
      wire.ask(() => {
        ledger.bucket(grant.bucket).opened = true;
        ledger.bucket(grant.bucket).lastLessonAt = now();
        return limiter().learn(grant, lesson);
      }),
    slotTaken: (grant: Grant, edge) =>
      wire.ask(() => {
        if (edge === null) ledger.reach('left the edge of the ceiling');
        else if (edge.slots <= 0) {
          ledger.reach('last place under the ceiling taken');
          const { ceilingTag } = entrySettingsOf(ledger.rules.of(process), grant.lane);
          ledger.isFull(ledger.lane(grant.lane), now() + edge.nextSlotMs, ceilingTag);
        }
        return limiter().slotTaken(grant, edge);
      }),
    // No history joins buckets: what comes here is a mistake of the history.
    move: () => Promise.reject(new Error('the histories join no buckets')),
    reconfigure: (change) => wire.ask(() => limiter().reconfigure(change)),
    wake: (bucket, lane) => wire.ask(() => limiter().wake(bucket, lane)),
    open: (bucket, agoMs) => wire.ask(() => limiter().open(bucket, agoMs)),
    cancel: (bucket, ticket) =>
      wire.ask(() => {
        ledger.outOfLine(ledger.call(ticket));
        return limiter().cancel(bucket, ticket);
      }),
    forecast: (bucket, ticket) => wire.ask(() => limiter().forecast(bucket, ticket)),
    laneCeiling: (...asked) => limiter().laneCeiling(...asked),
    statesLimit: (bucket) => limiter().statesLimit(bucket),
    // Asked of what the process knows.
    forecastFirst: (bucket, lane) => limiter().forecastFirst(bucket, lane),
    snapshot: () => limiter().snapshot(),
    close: async () => {},
  };
}

export function wiredCeilings(
  wire: Wire,
  ceilings: Ceilings,
  ledger: Ledger,
  clock: FakeClock,
): Omit<Ceilings, 'listen'> {
  const noteGivenBack = (ceiling: CeilingRef, slot: Slot): void => {
    const record = ledger.ceiling(ceiling.key);
    record.givenBack += 1;
    if (slot.local.day !== null) record.daily -= 1;
    const at = record.taken.findLastIndex((taken) => taken.slot === slot.local.minute);
    if (at >= 0) record.taken.splice(at, 1);
  };
  return {
    take: (ceiling: CeilingRef, again?: Slot, lateMs?: number) =>
      wire.ask(async () => {
        const record = ledger.ceiling(ceiling.key);
        if (again !== undefined) noteGivenBack(ceiling, again);
        const reply = await ceilings.take(ceiling, again, lateMs);
        if (reply.kind === 'taken') {
          record.takes += 1;
          const slot = reply.slot.local;
          if (slot.day !== null) record.daily += 1;
          const perDay = highest(ledger.regimes(clock.monotonic()), perDayOf(ceiling.key));
          if (slot.day !== null && perDay !== null && record.daily > perDay)
            ledger.broken(clock.monotonic(), '1', `${ceiling.key} takes ${record.daily} of ${perDay} a day`);
          if (slot.minute !== null)
            record.taken.push({ slot: slot.minute, at: clock.monotonic() + (lateMs ?? 0) });
          return reply;
        }
        ledger.reach(reply.isDaily ? 'daily ceiling refused' : 'ceiling refused');
        ledger.note(clock.monotonic(), `ceiling ${ceiling.key} refused ${reply.waitMs.toFixed(1)}`);
        return reply;
      }),
    giveSlotBack: (ceiling: CeilingRef, slot: Slot) =>
      wire.ask(() => {
        noteGivenBack(ceiling, slot);
        ledger.reach('place given back');
        return ceilings.giveSlotBack(ceiling, slot);
      }),
    forecast: (ceiling, positions, agoMs) => wire.ask(() => ceilings.forecast(ceiling, positions, agoMs)),
    state: (ceiling) => wire.ask(() => ceilings.state(ceiling)),
    dayState: (ceiling) => wire.ask(() => ceilings.dayState(ceiling)),
  };
}
