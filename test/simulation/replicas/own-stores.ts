/** The stores of a process alone: logs in its memory, of which the judges have a copy, and its own ceilings, of which they hear each slot. */
import type { Clock } from '../../../src/clock.ts';
import { type Ceilings, CeilingStore, type Slot } from '../../../src/limiter/ceiling-store.ts';
import { SharedLimiter, type SharedLimiterParts } from '../../../src/limiter/over-log/limiter.ts';
import type { LogEvent } from '../../../src/limiter/over-log/fold.ts';
import type { Follower } from '../../../src/log/log.ts';
import { MemoryLog } from '../../../src/log/memory-log.ts';
import { withMethods } from '../../support/with-methods.ts';
import type { Chance } from '../chance.ts';
import type { ReplicaLedger } from './ledger.ts';
import type { Server } from './server.ts';

const tickMs = 1_000;

type Heard = 'clock' | 'replica' | 'listener' | 'onFailure' | 'onLeaseLost';
interface OwnStoresParts extends Pick<SharedLimiterParts, Heard> {
  readonly chance: Chance;
  readonly ledger: ReplicaLedger;
  readonly server: Server;
}

/** As `createEmbeddedLimiter` makes it, but for the log, which the server hears, too. */
export function ownStores({ replica, clock, chance, ledger, server, ...heard }: OwnStoresParts) {
  const limiterClock = losingWakes(clock, ledger, chance);
  const limiter = new SharedLimiter({
    ...heard,
    clock: limiterClock,
    leaseMs: ledger.plan.leaseMs,
    replica,
    replicas: () => 1,
    openLog: (key) => {
      server.beganInMemory(key);
      const log = new MemoryLog<LogEvent>({ clock: limiterClock, replica });
      const follow = (follower: Follower<LogEvent>): void =>
        log.follow(
          withMethods(follower, {
            onEntry: (entry) => {
              server.appendedInMemory(key, entry);
              follower.onEntry(entry);
            },
          }),
        );
      return withMethods(log, { follow });
    },
    isKeptElsewhere: false,
    guard: null,
    whenDown: () => 'deny',
    restoreSends: () => Promise.resolve(),
  });
  return {
    limiter,
    ceilings: watchedCeilings(new CeilingStore(clock), ledger, server),
    ready: async () => {},
  };
}

/** Some wake-ups are lost, ticks never. */
const losingWakes = (clock: Clock, ledger: ReplicaLedger, chance: Chance): Clock => ({
  now: () => clock.now(),
  monotonic: () => clock.monotonic(),
  after: (delayMs, ring) => {
    const { lostWakes = 0 } = ledger.plan;
    if (delayMs === tickMs || lostWakes === 0 || !chance.happens(lostWakes))
      return clock.after(delayMs, ring);
    ledger.reach('wake-up lost');
    return () => {};
  },
});

function watchedCeilings(ceilings: CeilingStore, ledger: ReplicaLedger, server: Server): Ceilings {
  let slots = 0;
  const returned = (key: string, { local }: Slot): void => {
    ledger.slotReturned(key, '');
    const taken = server.sendsOf(key);
    taken.delete([...taken.keys()].findLast((name) => name.startsWith(`${local.minute}/`)) ?? '');
  };
  return withMethods<Ceilings>(ceilings, {
    take: async (ceiling, again, lateMs) => {
      if (again !== undefined) returned(ceiling.key, again);
      const reply = await ceilings.take(ceiling, again, lateMs);
      if (reply.kind === 'taken') {
        ledger.slotTaken(ceiling.key, '');
        // Several have the same name.
        const name = `${reply.slot.local.minute}/${(slots += 1)}`;
        server.sendsOf(ceiling.key).set(name, server.now() + (lateMs ?? 0));
      } else ledger.reach(reply.isDaily ? 'daily ceiling refused' : 'ceiling refused');
      return reply;
    },
    giveSlotBack: (ceiling, slot) => {
      returned(ceiling.key, slot);
      return ceilings.giveSlotBack(ceiling, slot);
    },
  });
}
