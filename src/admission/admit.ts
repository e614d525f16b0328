/**
 * The admission desk: takes calls into their lanes, waits with them, and hands them a lease when both the bucket and
 * the ceiling agree.
 *
 * Owns: how a call enters, and the desk's parts: the gates of the lanes (`gates.ts`), the waiting callers (`waiting.ts`),
 * the order in which grants are charged (`charging.ts`), early refusals (`hopeless.ts`). Refuses to own: whose turn it is
 * (the limiter), resending (the gateway), sockets.
 * Keeps: a newcomer that cannot make it is refused at once with the true time.
 */
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { CeilingRef, Ceilings } from '../limiter/ceilings.ts';
import type { AdmissionReply, Limiter, LimiterListener } from '../limiter/limiter.ts';
import { Charging } from './charging.ts';
import type { DeskParts } from './desk-parts.ts';
import { Gates } from './gates.ts';
import type { Holder } from './holder.ts';
import { Hopeless } from './hopeless.ts';
import { refusedBy, tooLong } from './refusals.ts';
import type { Entry, Ticket } from './ticket.ts';
import { Waiting } from './waiting.ts';

export interface Desk {
  /** Enters a call into its lane, or refuses it at once. */
  enter(entry: Entry): Promise<Ticket>;
  /** Refuses waiting calls whose key is not valid any more. */
  recheckKeys(): void;
  /** Refuses (`draining`) waiting calls that are not expected to leave within `budgetMs`. */
  drain(budgetMs: number): void;
  /** Calls that wait in this process now under one ceiling. */
  waitingUnder(ceilingKey: string): number;
  readonly listener: LimiterListener;
}

export interface DeskDependencies {
  readonly clock: Clock;
  readonly limiter: () => Limiter;
  readonly ceilings: Ceilings;
  /** Told of failures of the store's background operations. */
  readonly onFailure: (failure: unknown) => void;
}

export function createDesk({ clock, limiter, ceilings, onFailure }: DeskDependencies): Desk {
  const parts: DeskParts = { clock, limiter, ceilings, background: (work) => void work.catch(onFailure) };
  const gates = new Gates(clock);
  const waiting = new Waiting(parts, gates);
  const hopeless = new Hopeless(parts, waiting);
  const charging = new Charging(parts, gates, waiting, hopeless);

  /** A newcomer is told at once when it cannot make it. The later of what bucket and ceiling expect is the truth. */
  const refuseIfHopeless = async ({ entry }: Holder, reply: AdmissionReply): Promise<void> => {
    if (reply.kind === 'refused') {
      const ceilingMs = reply.reason === 'wait_too_long' ? await ceilingWaitMs(entry.ceiling) : 0;
      throw refusedBy(reply.reason, Math.max(reply.retryInMs, ceilingMs));
    }
    const waitMs = await ceilingWaitMs(entry.ceiling);
    if (waitMs > entry.maxWaitMs) throw tooLong(waitMs, false);
  };

  /** Milliseconds until the ceiling has a place for one more behind those that wait here. */
  const ceilingWaitMs = async (ceiling: CeilingRef): Promise<number> => {
    if (ceiling.perMinute === null) return 0;
    const [waitMs = 0] = await ceilings.forecast(ceiling, [waiting.under(ceiling.key) + 1]);
    return waitMs;
  };

  const ticketOf = (holder: Holder): Ticket => ({
    granted: () => waiting.wait(holder),
    remainingMs: () => holder.deadline - clock.monotonic(),
    lengthen: (ms) => {
      holder.deadline = Math.max(holder.deadline, clock.monotonic() + ms);
    },
    waitedMs: () => holder.waitedMs,
    leave: () => waiting.leave(holder),
  });

  return {
    listener: {
      onGrant: (grant) => charging.take(grant),
      onClosed: (bucket, closedMs) => hopeless.onStandstill(bucket, null, closedMs),
    },

    async enter(entry) {
      const holder = waiting.enter(entry);
      try {
        const { admission, ceiling, maxWaitMs } = entry;
        const isFull = waiting.under(ceiling.key) >= admission.maxQueued;
        const maxQueued = isFull ? 0 : admission.maxQueued;
        const reply = await limiter().admit({ ...admission, maxQueued, maxWaitMs, order: null });
        if (reply.kind === 'granted') charging.take(reply.grant);
        else await refuseIfHopeless(holder, reply);
      } catch (failure) {
        waiting.leave(holder);
        throw failure;
      }
      return ticketOf(holder);
    },

    recheckKeys() {
      for (const holder of waiting.all()) {
        if (holder.waiter !== null && !holder.entry.stillValid())
          waiting.refuse(holder, new Refusal('unauthenticated'));
      }
    },

    drain: (budgetMs) => hopeless.onDrain(budgetMs),
    waitingUnder: (ceilingKey) => waiting.under(ceilingKey),
  };
}
