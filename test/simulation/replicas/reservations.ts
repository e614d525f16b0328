/**
 * Positions that are kept for clients of refused calls (13), watched at the server: a reservation lets one call go, however often its
 * ticket is sent; who came back for it in time goes before every call that came later; and no ceiling has more than it may.
 */
import { replicaLifeMs } from '../../../src/limiter/policy/scheduler.policy.ts';
import type { Ticket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { reserveMs } from '../driver.ts';
import { freeLanes, isBackground } from '../rules.ts';
import type { ReplicaLedger } from './ledger.ts';
import type { Plan } from '../plan.ts';
import type { StoredBucket } from './log-copies.ts';

/** Times that were added up are not exact. Milliseconds. */
const roundingMs = 2;

export class Reservations {
  readonly #ledger: ReplicaLedger;
  readonly #comparable: ReadonlySet<string>;
  /** What calls that were granted came back for. */
  readonly #cameFor = new Map<string, string>();
  /** The call that ran for a reservation, by its id. */
  readonly #usedBy = new Map<string, string>();
  /** Reservations that have begun. One whose call was granted and came back is kept again, whatever has begun meanwhile. */
  readonly #begun = new Set<string>();
  /** Calls that came back and waited already when the entry before was folded, by bucket. */
  readonly #back = new Map<string, ReadonlySet<string>>();

  constructor(plan: Plan, ledger: ReplicaLedger) {
    this.#ledger = ledger;
    this.#comparable = freeLanes(plan);
  }

  judge(model: StoredBucket, clock: number): void {
    const { bucket } = model;
    if (bucket === null) return;
    this.#isBounded(model, clock);
    const granted = model.effects.grants.flatMap(({ ticket }) => bucket.tickets.get(ticket) ?? []);
    const waiting = [...bucket.tickets.values()].filter(({ lease }) => lease === null);
    for (const [at, ticket] of granted.entries()) {
      const beside = [...waiting, ...granted.slice(at + 1)];
      if (ticket.reservation !== undefined) {
        this.#cameFor.set(ticket.id, ticket.reservation.id);
        if (beside.some(namesCaller) && beside.some(({ lane }) => isBackground({ key: lane })))
          this.#ledger.reach('went for its reservation before callers and background calls');
      }
      this.#goesFirst(model, { granted: ticket, waiting: beside, clock });
    }
    this.#back.set(model.key, new Set(waiting.filter(cameBack).map(({ id }) => id)));
  }

  ran(id: string): void {
    const reservation = this.#cameFor.get(id);
    if (reservation === undefined) return;
    this.#ledger.reach('went for its reservation');
    const before = this.#usedBy.get(reservation) ?? id;
    this.#usedBy.set(reservation, id);
    if (before !== id) this.#ledger.broken('13', `${id} went for ${reservation}, as ${before} had`);
  }

  forgetAll(): void {
    this.#cameFor.clear();
    this.#usedBy.clear();
    this.#back.clear();
    this.#begun.clear();
  }

  #isBounded({ key, bucket }: StoredBucket, clock: number): void {
    const counts = new Map<string, number>();
    for (const { ceiling, until, ticket, id } of bucket?.reservations.values() ?? []) {
      if (ticket === null && until < clock) continue;
      const count = (counts.get(ceiling) ?? 0) + 1;
      counts.set(ceiling, count);
      const { reserves } = this.#ledger.call(id).plan;
      const isNew = !this.#begun.has(id);
      this.#begun.add(id);
      if (isNew && reserves !== undefined && count > reserves.maxReserved)
        this.#ledger.broken('10', `${count} reservations of ${ceiling} in ${key}`);
    }
  }

  #goesFirst(
    { key, bucket }: StoredBucket,
    beside: { readonly granted: Ticket; readonly waiting: readonly Ticket[]; readonly clock: number },
  ): void {
    const { granted, waiting, clock } = beside;
    const before = this.#back.get(key);
    if (bucket === null || before === undefined || cameBack(granted)) return;
    for (const { id, lane: name, reservation, replica, callClass, order } of waiting) {
      const lane = bucket.lanes.get(name);
      const isDue = reservation !== undefined && reservation.from + roundingMs <= clock;
      if (!isDue || lane === undefined || !before.has(id) || callClass !== granted.callClass) continue;
      const isFree = this.#comparable.has(name) && lane.asleep.size === 0 && lane.slots === null;
      const heardAt = bucket.replicas.scoreOf(replica) ?? -Infinity;
      const isOverdue = clock > reservation.until + reserveMs;
      if (!isFree || heardAt + replicaLifeMs < clock || isBackground({ key: name }) || isOverdue) continue;
      // Of its own lane and caller those go first that came before.
      if (granted.lane === name && granted.order < order) continue;
      this.#ledger.broken('13', `${granted.id} granted before ${id}, which came back for ${reservation.id}`);
    }
  }
}

const namesCaller = ({ caller }: Ticket): boolean => caller !== undefined;

const cameBack = ({ reservation }: Ticket): boolean => reservation !== undefined;
