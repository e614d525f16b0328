/**
 * The admission desk: takes calls into their lanes, waits with them, and hands them a lease when both the bucket and
 * the ceiling agree.
 *
 * Owns: the waiting callers of this replica, their deadlines, and the order in which grants are charged to the
 * ceiling. Refuses to own: whose turn it is (the limiter), resending (the gateway), sockets.
 * Keeps: nobody is sent after its client left, its key was revoked or its wait has passed (9); a call that cannot make
 * it is refused at once with the true time; within a lane nobody overtakes at the edge of the ceiling (4).
 */
import type { Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { CeilingRef, Ceilings, CeilingState, TakeReply } from '../limiter/ceilings.ts';
import type { Costs } from '../call.ts';
import type {
  BucketKey,
  Grant,
  LaneKey,
  Lesson,
  Limiter,
  LimiterListener,
  Settlement,
} from '../limiter/limiter.ts';
import { ShortLived } from '../short-lived.ts';
import { edgeOf, passageMs } from './shed.policy.ts';
import type { Entry, Lease, Ticket } from './ticket.ts';

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

/** Something went wrong that is not a refusal (a store failed): the waiting call is told, never lost. */
type Failure = Refusal | Error;

interface Holder {
  readonly entry: Entry;
  readonly enteredAt: number;
  deadline: number;
  /** Set while the caller waits for a lease. */
  waiter: { resolve: (lease: Lease) => void; reject: (failure: Failure) => void; since: number } | null;
  /** Set while a grant that came early waits for its caller: told when the caller waits, or has left. */
  onTurn: (() => void) | null;
  /** What its next grant will have taken from the meters. */
  costs: Costs;
  /** Its grant went back because of what calls cost; calls of its lane behind it must not go first. */
  sentBack: boolean;
  /** It goes ahead to find out what calls like it cost, and is not sent yet. */
  finding: boolean;
  waitedMs: number;
  cancelDeadline: (() => void) | null;
  left: boolean;
  /** Its call succeeded: the limiter has forgotten the ticket, there is nothing to take out. */
  done: boolean;
  /** It was sent before, and is in the line again. */
  hadLease: boolean;
  readonly onClientGone: () => void;
}

/** Gates unused for this long are forgotten when there are very many. Milliseconds. */
const gateMemoryMs = 120_000;

/** Calls wait this long at most for the answer that tells what they cost; then they go with the guess. Milliseconds. */
const longestInquiryMs = 5_000;

/** Charging of one lane's grants: in order, and none behind a refused one. */
interface Gate {
  tail: Promise<boolean>;
  asleepUntil: number;
  /** It is the ceiling of the day that it sleeps for. */
  byDay: boolean;
  /** The ceiling has no place before that; the scheduler knows. */
  fullUntil: number;
  /** The scheduler has been told that the ceiling is nearly used, and not yet that it is not any more. */
  atEdge: boolean;
  usedAt: number;
  /** Grants whose costs are being looked into; nothing behind them is charged meanwhile. */
  undecided: number;
  /** Holders of the lane that were sent back and are not granted again. */
  sentBack: number;
}

export function createDesk(dependencies: {
  readonly clock: Clock;
  readonly limiter: () => Limiter;
  readonly ceilings: Ceilings;
  /** Told of failures of the store's background operations. */
  readonly onFailure: (failure: unknown) => void;
}): Desk {
  const { clock, ceilings } = dependencies;
  const holders = new ShortLived<string, Holder>();
  const gates = new Map<string, Gate>();
  const queued = new Map<string, number>();

  const background = (work: Promise<unknown>): void => {
    work.catch((failure: unknown) => dependencies.onFailure(failure));
  };

  const laneOf = (grant: { bucket: string; lane: string }): string => `${grant.bucket}/${grant.lane}`;

  const gateOf = (grant: Grant): Gate => {
    const key = laneOf(grant);
    let gate = gates.get(key);
    if (gate === undefined) {
      gate = {
        tail: Promise.resolve(true),
        asleepUntil: 0,
        byDay: false,
        fullUntil: 0,
        atEdge: false,
        usedAt: 0,
        undecided: 0,
        sentBack: 0,
      };
      gates.set(key, gate);
      if (gates.size > 10_000) forgetOldGates();
    }
    gate.usedAt = clock.monotonic();
    return gate;
  };

  const forgetOldGates = (): void => {
    const now = clock.monotonic();
    for (const [key, gate] of gates) {
      if (gate.undecided > 0 || gate.sentBack > 0) continue;
      if (Math.max(gate.asleepUntil, gate.usedAt + gateMemoryMs) < now) gates.delete(key);
    }
  };

  const count = (holder: Holder, by: 1 | -1): void => {
    const { key } = holder.entry.ceiling;
    const left = (queued.get(key) ?? 0) + by;
    if (left <= 0) queued.delete(key);
    else queued.set(key, left);
  };

  const stopWaiting = (holder: Holder): Holder['waiter'] => {
    const { waiter } = holder;
    if (waiter === null) return null;
    holder.waiter = null;
    holder.waitedMs += clock.monotonic() - waiter.since;
    holder.cancelDeadline?.();
    holder.cancelDeadline = null;
    count(holder, -1);
    return waiter;
  };

  /** Ends the call's waiting with a refusal and takes it out of the line. */
  const refuse = (holder: Holder, failure: Failure): void => {
    stopWaiting(holder)?.reject(failure);
    leave(holder);
  };

  const leave = (holder: Holder): void => {
    if (holder.left) return;
    holder.left = true;
    const { admission, clientGone } = holder.entry;
    holders.delete(admission.ticket);
    isBack(holder, gates.get(laneOf(admission)));
    holder.cancelDeadline?.();
    clientGone.removeEventListener('abort', holder.onClientGone);
    holder.onTurn?.();
    if (!holder.done) takeOut(holder);
  };

  const takeOut = ({ entry: { admission } }: Holder): void =>
    background(dependencies.limiter().cancel(admission.bucket, admission.ticket));

  /** A grant nobody can use any more goes back whole. */
  const giveUp = (grant: Grant): void =>
    background(dependencies.limiter().settle(grant, { kind: 'dropped' }, null));

  const reasonToStop = (holder: Holder): Failure | null => {
    if (holder.entry.clientGone.aborted)
      return new Refusal('request_invalid', { detail: 'The client left.' });
    if (!holder.entry.stillValid()) return new Refusal('unauthenticated');
    if (clock.monotonic() > holder.deadline) return new Refusal('wait_expired', { retryInMs: 1_000 });
    return null;
  };

  /**
   * A grant arrived: charge the ceiling, in the lane's order, and wake the caller. One that comes before its caller
   * waits takes its turn all the same, so that nobody behind it goes first.
   */
  const onGrant = (grant: Grant): void => {
    const holder = holders.get(grant.ticket);
    if (holder === undefined) return giveUp(grant);
    const gate = gateOf(grant);
    const before = gate.tail;
    const charged =
      gate.undecided > 0 || gate.sentBack > 0 || isCostOpen(holder)
        ? chargeWhenCostIsKnown(holder, grant, gate, before)
        : charge(holder, grant, gate, before, placeFor(holder, gate));
    gate.tail = charged.catch((failure: unknown) => {
      giveUp(grant);
      refuse(holder, failure instanceof Error ? failure : new Error('the ceiling failed'));
      return true;
    });
  };

  const placeFor = (holder: Holder, gate: Gate): Promise<TakeReply> | null =>
    clock.monotonic() < gate.asleepUntil ? null : ceilings.take(holder.entry.ceiling);

  /** The grant was made for less than the call may turn out to cost. */
  const isCostOpen = ({ entry: { sharedCost }, costs }: Holder): boolean => {
    if (sharedCost === undefined || sharedCost === null) return false;
    const { points, isUnasked, inquiry } = sharedCost;
    return points === null ? isUnasked || inquiry !== null : points > (costs.cost ?? 0);
  };

  const isDearer = ({ entry, costs }: Holder): boolean => (entry.sharedCost?.points ?? 0) > (costs.cost ?? 0);

  /** As `charge`, after the calls before it and the call that finds out what this one costs. */
  const chargeWhenCostIsKnown = async (
    holder: Holder,
    grant: Grant,
    gate: Gate,
    before: Promise<boolean>,
  ): Promise<boolean> => {
    const wasBack = isBack(holder, gate);
    gate.undecided += 1;
    try {
      await before;
      if (!wasBack && gate.sentBack > 0) return await sendBack(holder, grant, gate);
      await costTold(holder);
      if (holder.left) {
        giveUp(grant);
        return true;
      }
      if (isDearer(holder)) return await sendBack(holder, grant, gate);
      return await charge(holder, grant, gate, before, placeFor(holder, gate));
    } finally {
      gate.undecided -= 1;
      if (holder.finding) stopFinding(holder, false);
    }
  };

  /** Resolves when it is known what the call costs, or that it goes ahead to find out. */
  const costTold = async (holder: Holder): Promise<void> => {
    const { sharedCost } = holder.entry;
    if (sharedCost === undefined || sharedCost === null) return;
    while (sharedCost.points === null && sharedCost.inquiry !== null && !holder.left) {
      await Promise.race([sharedCost.inquiry, turnOf(holder)]);
    }
    if (sharedCost.points !== null || !sharedCost.isUnasked || holder.left) return;
    sharedCost.ask();
    holder.finding = true;
    const cancel = clock.after(longestInquiryMs, () => sharedCost.over(true));
    void sharedCost.inquiry?.then(cancel);
  };

  const stopFinding = (holder: Holder, asked: boolean): void => {
    holder.finding = false;
    holder.entry.sharedCost?.over(asked);
  };

  /**
   * The grant goes back with what the call costs now, or because a call before it went back. It comes again in the
   * lane's order; whoever is granted before that was granted too early, and goes back too.
   */
  const sendBack = async (holder: Holder, grant: Grant, gate: Gate): Promise<boolean> => {
    if (holder.left) {
      giveUp(grant);
      return false;
    }
    const dearer = isDearer(holder);
    if (dearer) holder.costs = { ...holder.costs, cost: holder.entry.sharedCost?.points ?? 0 };
    holder.sentBack = true;
    gate.sentBack += 1;
    gate.atEdge = true;
    const { costs } = holder;
    await dependencies.limiter().settle(grant, { kind: 'returned', sleepMs: 0, costs }, null);
    if (dearer) background(refuseIfBucketCannot(holder));
    return false;
  };

  /** True when the call had been sent back; it is not any more. */
  const isBack = (holder: Holder, gate: Gate | undefined): boolean => {
    if (!holder.sentBack) return false;
    holder.sentBack = false;
    if (gate !== undefined) gate.sentBack -= 1;
    return true;
  };

  /** A dearer call may have to wait longer than it can. */
  const refuseIfBucketCannot = async (holder: Holder): Promise<void> => {
    const { bucket, ticket } = holder.entry.admission;
    const wait = await dependencies.limiter().forecast(bucket, ticket);
    if (wait === null || holder.waiter === null) return;
    if (clock.monotonic() + wait.waitMs > holder.deadline) refuse(holder, tooLong(wait.waitMs, false));
  };

  /** True when the lane may go on behind this grant. */
  const charge = async (
    holder: Holder,
    grant: Grant,
    gate: Gate,
    before: Promise<boolean>,
    asked: Promise<TakeReply> | null,
  ): Promise<boolean> => {
    const reply = asked === null ? null : await asked;
    const inOrder = await before;
    if (reply === null || (!inOrder && clock.monotonic() < gate.asleepUntil)) {
      await handBack(holder, grant, gate, reply);
      return false;
    }
    if (reply.kind === 'refused') {
      gate.asleepUntil = clock.monotonic() + reply.waitMs;
      gate.byDay = reply.day;
      await handBack(holder, grant, gate, null);
      lookForHopeless(holder.entry.ceiling, reply);
      return false;
    }
    await callerTurned(holder);
    const stop = reasonToStop(holder);
    if (stop !== null || holder.waiter === null) {
      await ceilings.giveBack(holder.entry.ceiling, reply.place);
      giveUp(grant);
      if (stop !== null) refuse(holder, stop);
      return true;
    }
    tellEdge(gate, grant, reply.state);
    stopWaiting(holder)?.resolve(leaseOf(holder, grant, reply));
    return true;
  };

  /** At the edge of the ceiling the scheduler counts places; away from it again, it must stop counting. */
  const tellEdge = (gate: Gate, grant: Grant, state: CeilingState | null): void => {
    const atEdge = state !== null && state.remaining <= edgeOf(state.limit);
    if (!atEdge && !gate.atEdge) return;
    gate.atEdge = atEdge;
    const places = atEdge ? state.remaining : Infinity;
    if (atEdge && places <= 0) gate.fullUntil = clock.monotonic() + state.nextPlaceMs;
    background(dependencies.limiter().charged(grant, places, state?.nextPlaceMs ?? 0));
  };

  const callerTurned = (holder: Holder): Promise<void> =>
    holder.waiter !== null || holder.left ? Promise.resolve() : turnOf(holder);

  const turnOf = (holder: Holder): Promise<void> =>
    new Promise((resolve) => {
      holder.onTurn = resolve;
    });

  const handBack = async (
    holder: Holder,
    grant: Grant,
    gate: Gate,
    reply: TakeReply | null,
  ): Promise<void> => {
    if (reply?.kind === 'taken') await ceilings.giveBack(holder.entry.ceiling, reply.place);
    // Nobody would take a ticket out again whose caller has already left.
    if (holder.left) return giveUp(grant);
    gate.atEdge = true;
    const sleepMs = Math.max(0, gate.asleepUntil - clock.monotonic());
    await dependencies.limiter().settle(grant, { kind: 'returned', sleepMs }, null);
  };

  /** Ceilings found full in this turn; one look at the line serves all their refusals. */
  const full = new Map<
    string,
    { readonly ceiling: CeilingRef; readonly day: boolean; readonly waitMs: number }
  >();

  const lookForHopeless = (ceiling: CeilingRef, reply: Extract<TakeReply, { kind: 'refused' }>): void => {
    if (full.has(ceiling.key)) return;
    full.set(ceiling.key, { ceiling, day: reply.day, waitMs: reply.waitMs });
    background(
      Promise.resolve().then(async () => {
        full.delete(ceiling.key);
        await refuseHopeless(ceiling, reply.day, reply.waitMs);
      }),
    );
  };

  /** The ceiling is full: everybody of this workspace and upstream who cannot make it any more is told now. */
  const refuseHopeless = async (ceiling: CeilingRef, day: boolean, waitMs: number): Promise<void> => {
    const line = [...holders.values()].filter(
      (holder) => holder.waiter !== null && holder.entry.ceiling.key === ceiling.key,
    );
    const waits = await ceilings.forecast(
      ceiling,
      line.map((_, index) => index + 1),
    );
    const now = clock.monotonic();
    let ahead = 0;
    for (const holder of line) {
      const holderWaitMs = Math.max(day ? waitMs : 0, waits[ahead] ?? waitMs);
      if (now + holderWaitMs > holder.deadline) refuse(holder, tooLong(holderWaitMs, day));
      else ahead += 1;
    }
  };

  /** A bucket, or one lane of it, stands still: who cannot make it any more is told now. */
  const refuseLate = (bucket: BucketKey, lane: LaneKey | null, stillMs: number): void => {
    const now = clock.monotonic();
    for (const holder of holders.values()) {
      const { admission } = holder.entry;
      if (holder.waiter === null || admission.bucket !== bucket) continue;
      if (lane !== null && admission.lane !== lane) continue;
      if (now + stillMs > holder.deadline) refuse(holder, tooLong(stillMs, false));
    }
  };

  const onClosed = (bucket: BucketKey, closedMs: number): void => refuseLate(bucket, null, closedMs);

  const leaseOf = (holder: Holder, grant: Grant, taken: Extract<TakeReply, { kind: 'taken' }>): Lease => {
    let settled = false;
    const { finding } = holder;
    holder.finding = false;
    holder.hadLease = true;
    return {
      grant,
      ceiling: taken.state,
      grantedAt: clock.monotonic(),
      holds: () => clock.monotonic() < grant.expiresAt,
      learn: (lesson: Lesson) => {
        if (!settled) background(dependencies.limiter().learn(grant, lesson));
      },
      settle: (settlement: Settlement, lesson: Lesson | null) => {
        if (settled) return;
        settled = true;
        holder.done = settlement.kind === 'succeeded';
        if (finding) stopFinding(holder, settlement.kind !== 'dropped');
        if (settlement.kind === 'dropped') background(ceilings.giveBack(holder.entry.ceiling, taken.place));
        background(dependencies.limiter().settle(grant, settlement, lesson));
        const stillMs = standstillMs(settlement, holder.entry);
        if (stillMs > 0) refuseLate(grant.bucket, grant.lane, stillMs);
      },
    };
  };

  const expire = (holder: Holder): void => {
    background(
      dependencies
        .limiter()
        .forecast(holder.entry.admission.bucket, holder.entry.admission.ticket)
        .then((wait) => {
          if (holder.waiter === null) return;
          const retryInMs = Math.max(leastRetryMs, wait?.waitMs ?? 0);
          refuse(holder, new Refusal('wait_expired', { retryInMs }));
        }),
    );
  };

  /** The ceiling may have refused the next grant of a call before it came to wait for it. */
  const refuseIfGateSleeps = (holder: Holder): void => {
    const gate = gates.get(laneOf(holder.entry.admission));
    const until = gate === undefined ? 0 : Math.max(gate.asleepUntil, gate.fullUntil);
    if (until <= holder.deadline) return;
    refuse(holder, tooLong(until - clock.monotonic(), gate?.byDay === true && until === gate.asleepUntil));
  };

  const wait = (holder: Holder): Promise<Lease> =>
    new Promise<Lease>((resolve, reject) => {
      const now = clock.monotonic();
      holder.waiter = { resolve, reject, since: now };
      count(holder, 1);
      holder.cancelDeadline = clock.after(holder.deadline - now, () => expire(holder));
      const stop = reasonToStop(holder);
      // A call that left while it was on its way upstream may have come back into the line with its answer.
      if (holder.left) takeOut(holder);
      if (stop !== null) refuse(holder, stop);
      else if (holder.hadLease) refuseIfGateSleeps(holder);
      holder.onTurn?.();
      holder.onTurn = null;
    });

  return {
    listener: { onGrant, onClosed },

    async enter(entry: Entry): Promise<Ticket> {
      const now = clock.monotonic();
      const holder: Holder = {
        entry,
        enteredAt: now,
        deadline: now + Math.max(entry.maxWaitMs, passageMs),
        waiter: null,
        onTurn: null,
        costs: entry.admission.costs,
        sentBack: false,
        finding: false,
        waitedMs: 0,
        cancelDeadline: null,
        left: false,
        done: false,
        hadLease: false,
        onClientGone: () => refuse(holder, reasonToStop(holder) ?? new Refusal('request_invalid')),
      };
      holders.set(entry.admission.ticket, holder);
      entry.clientGone.addEventListener('abort', holder.onClientGone, { once: true });
      try {
        const elsewhere = queued.get(entry.ceiling.key) ?? 0;
        const reply = await dependencies.limiter().admit({
          ...entry.admission,
          maxQueued: elsewhere >= entry.admission.maxQueued ? 0 : entry.admission.maxQueued,
          maxWaitMs: entry.maxWaitMs,
          order: null,
        });
        if (reply.kind === 'refused') {
          // The later of what bucket and ceiling expect is the truth.
          const ceilingMs = reply.reason === 'wait_too_long' ? await ceilingWaitMs(entry.ceiling) : 0;
          throw refusalOf(reply.reason, Math.max(reply.retryInMs, ceilingMs));
        }
        if (reply.kind === 'granted') onGrant(reply.grant);
        else await refuseIfCeilingCannot(holder);
      } catch (failure) {
        leave(holder);
        throw failure;
      }
      return {
        granted: () => wait(holder),
        remainingMs: () => holder.deadline - clock.monotonic(),
        lengthen: (ms) => {
          holder.deadline = Math.max(holder.deadline, clock.monotonic() + ms);
        },
        waitedMs: () => holder.waitedMs,
        leave: () => leave(holder),
      };
    },

    recheckKeys() {
      for (const holder of holders.values()) {
        if (holder.waiter !== null && !holder.entry.stillValid())
          refuse(holder, new Refusal('unauthenticated'));
      }
    },

    drain(budgetMs) {
      for (const holder of holders.values()) {
        const { bucket, ticket } = holder.entry.admission;
        if (holder.waiter === null) continue;
        background(
          dependencies
            .limiter()
            .forecast(bucket, ticket)
            .then((wait) => {
              if (wait === null || wait.waitMs <= budgetMs || holder.waiter === null) return;
              refuse(holder, new Refusal('draining', { retryInMs: 1_000 }));
            }),
        );
      }
    },

    waitingUnder: (ceilingKey) => queued.get(ceilingKey) ?? 0,
  };

  /** A newcomer that must wait is told at once when the ceiling has no place for it in time. */
  async function refuseIfCeilingCannot(holder: Holder): Promise<void> {
    const waitMs = await ceilingWaitMs(holder.entry.ceiling);
    if (waitMs > holder.entry.maxWaitMs) throw tooLong(waitMs, false);
  }

  /** Milliseconds until the ceiling has a place for one more behind those that wait here. */
  async function ceilingWaitMs(ceiling: CeilingRef): Promise<number> {
    if (ceiling.perMinute === null) return 0;
    const [waitMs = 0] = await ceilings.forecast(ceiling, [(queued.get(ceiling.key) ?? 0) + 1]);
    return waitMs;
  }
}

/**
 * Where the time to try again is only expected (a line that does not move is expected to move at once), clients are not
 * invited sooner than this: `retry-after-ms: 1` would make SDKs ask a thousand times a second. Milliseconds.
 */
const leastRetryMs = 1_000;

/** How long the lane of a call that ended like this sends nothing, milliseconds. */
function standstillMs(settlement: Settlement, { admission }: Entry): number {
  if (settlement.kind === 'throttled') return settlement.sleepMs;
  return settlement.kind === 'unknown' && admission.maxInFlight === 1 ? admission.leaseMs : 0;
}

const tooLong = (waitMs: number, day: boolean): Refusal =>
  new Refusal(day ? 'day_quota_exhausted' : 'wait_too_long', { retryInMs: waitMs });

function refusalOf(
  reason: 'queue_full' | 'wait_too_long' | 'day_quota_exhausted' | 'limiter_unavailable',
  retryInMs: number,
): Refusal {
  const known = reason !== 'queue_full' && reason !== 'limiter_unavailable';
  return new Refusal(reason, { retryInMs: known ? retryInMs : Math.max(leastRetryMs, retryInMs) });
}
