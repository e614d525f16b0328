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
import type { CeilingHold, Ceilings } from '../limiter/ceilings.ts';
import type { AdmissionReply, Limiter, LimiterListener } from '../limiter/limiter.ts';
import { Charging } from './charging.ts';
import type { DeskParts } from './desk-parts.ts';
import { ArrivalOrder } from './arrival-order.ts';
import { Gates } from './gates.ts';
import type { Holder } from './holder.ts';
import { Hopeless } from './hopeless.ts';
import { refusedBy, tooLong } from './refusals.ts';
import { reviser } from './revise.ts';
import type { EntrySettings } from './buckets.policy.ts';
import type { Entry, Ticket } from './ticket.ts';
import { Turns } from './turns.ts';
import { Waiting } from './waiting.ts';

export interface Desk {
  /** Enters a call into its lane, or refuses it at once. */
  enter(entry: Entry): Promise<Ticket>;
  /** Refuses waiting calls whose key is not valid any more. */
  recheckKeys(): void;
  /**
   * Configuration changed: every call that is in the desk goes on under what `settingsOf` gives for it (`null` = as before),
   * at once. What the change makes too late is refused, with the new time.
   */
  reconfigure(settingsOf: (entry: Entry) => EntrySettings | null): void;
  /** Refuses (`draining`) waiting calls that are not expected to leave within `budgetMs`. */
  drain(budgetMs: number): void;
  /** Calls that wait in this process now under one ceiling. */
  waitingUnder(ceilingKey: string): number;
  readonly listener: LimiterListener;
}

type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: CeilingHold = { waitMs: 0, heldBy: 'ceiling_minute' };

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
  const turns = new Turns(clock, gates, waiting);
  const hopeless = new Hopeless(parts, waiting, turns);
  const charging = new Charging(parts, gates, { waiting, turns, hopeless });

  const reconfigure = reviser(parts, gates, { waiting, hopeless });

  const arrivals = new ArrivalOrder();

  /** A newcomer is told at once when it cannot make it. The later of what bucket and ceiling expect is the truth. */
  const refuseIfHopeless = async (holder: Holder, reply: AdmissionReply, askedAt: number): Promise<void> => {
    const byCeiling = await ceilingHold(holder, reply, askedAt);
    if (reply.kind === 'refused') throw refusalOf(holder, reply, byCeiling);
    if (byCeiling.waitMs > withinMs(holder)) throw tooLong(byCeiling, holder.entry);
    if (reply.kind === 'queued' && waiting.inLane(holder.entry) > reply.ahead) hopeless.onOvertaken(holder);
  };

  /** What the limiter said, with the time at which the ceiling has a slot, too. */
  const refusalOf = ({ entry }: Holder, reply: Refused, byCeiling: CeilingHold): Refusal => {
    if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, entry);
    return reply.reason === 'wait_too_long'
      ? tooLong(byCeiling, entry)
      : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, entry);
  };

  /** How long the ceiling holds a newcomer that waits, or would have waited. */
  const ceilingHold = async (
    holder: Holder,
    reply: AdmissionReply,
    askedAt: number,
  ): Promise<CeilingHold> => {
    const { entry } = holder;
    const { ceiling } = entry;
    if (reply.kind === 'granted' || !('ahead' in reply)) return notHeld;
    if (ceiling.perMinute === null && ceiling.perDay === null) return notHeld;
    if (reply.kind === 'queued') turns.told(entry, reply.ahead);
    const question = { agoMs: clock.monotonic() - askedAt, withinMs: withinMs(holder) };
    const [hold = notHeld] = await ceilings.forecast(
      ceiling,
      [turns.positionOf(entry, reply.ahead)],
      question,
    );
    hopeless.onRead(ceiling);
    return hold;
  };

  /** A call that would not wait at all has a moment to pass, and yet is refused where it would have to wait. */
  const withinMs = ({ entry, deadline }: Holder): number =>
    Math.min(entry.maxWaitMs, deadline - clock.monotonic());

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
        const askedAt = clock.monotonic();
        gates.underLimits(admission, admission.ceiling);
        const position = { kind: 'arrival', at: arrivals.next(entry.arrivedAt) } as const;
        const reply = await limiter().admit({ ...admission, maxQueued, maxWaitMs, position });
        if (reply.kind === 'granted') charging.take(reply.grant);
        else await refuseIfHopeless(holder, reply, askedAt);
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

    reconfigure,
    drain: (budgetMs) => hopeless.onDrain(budgetMs),
    waitingUnder: (ceilingKey) => waiting.under(ceilingKey),
  };
}
