/**
 * What a workspace does within its turns (4, 5), watched at the server: each caller's calls leave in their order, callers take turns, and
 * background calls go behind all others of the bucket, but for one a minute. Begins anew whenever data was lost.
 */
import { laneKey } from '../../../src/ids.ts';
import type { Ticket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { Granted } from '../../../src/limiter/policy/scheduler.policy.ts';
import { ratesOf, serviceMsOf, Turns } from './fairness.ts';
import { freeLanes, isBackground, keepsTurns } from '../rules.ts';
import type { Plan } from '../plan.ts';
import type { ReplicaLedger } from './ledger.ts';
import type { StoredBucket } from './log-copies.ts';

/** While background calls wait, one of them is granted so often at least. Milliseconds. */
const minuteMs = 60_000;
/** Times that were added up are not exact. Milliseconds. */
const roundingMs = 1;

interface Callers {
  readonly since: Map<string, number>;
  readonly turns: Turns;
}

/** What one entry of the log did to a bucket before its grants are judged. */
interface Changes {
  readonly admitted: Set<string>;
  /** Granted calls that came back into their lines. */
  readonly back: Set<string>;
  readonly notSent: Set<string>;
}

/** A grant, and the tickets that waited beside it, but for those that came with the same entry: what had room went before them. */
interface Beside {
  readonly granted: Granted;
  readonly others: readonly Ticket[];
  readonly clock: number;
}

export class Levels {
  readonly #ledger: ReplicaLedger;
  readonly #comparable: ReadonlySet<string>;
  /** Buckets in which a turn stays what it was. */
  readonly #keepTurns: ReadonlySet<string>;
  readonly #callers = new Map<string, Callers>();
  /**
   * When a background call of the bucket was last granted; or since when such calls wait, if that is later. Absent: nobody knows; -Infinity:
   * what was granted was not sent.
   */
  readonly #minutes = new Map<string, number>();
  /** Of background calls that were granted: since when their bucket had granted none before, by lease. */
  readonly #before = new Map<string, number>();
  readonly #changes = new Map<string, Changes>();

  constructor(plan: Plan, ledger: ReplicaLedger) {
    this.#ledger = ledger;
    this.#comparable = freeLanes(plan);
    this.#keepTurns = new Set(plan.buckets.filter(keepsTurns).map(({ key }) => key));
  }

  admitted(bucket: string, ticket: string): void {
    this.#changesOf(bucket).admitted.add(ticket);
  }

  notSent(bucket: string, lease: string): void {
    this.#changesOf(bucket).notSent.add(lease);
  }

  /** A granted call is back in its line: its turn did not take place. */
  back(bucket: string, ticket: string): void {
    this.#changesOf(bucket).back.add(ticket);
    this.#callers.get(this.#ledger.call(ticket).plan.lane.key)?.turns.forget();
  }

  /** @param isSure all replicas go by one configuration, and have for a while */
  judge(model: StoredBucket, clock: number, isSure: boolean): void {
    const changes = this.#changesOf(model.key);
    this.#changes.delete(model.key);
    this.#noteMinute(model, changes, clock);
    const tickets = [...(model.bucket?.tickets.values() ?? [])];
    const { grants } = model.effects;
    if (!isSure) this.forgetTurns();
    for (const [at, granted] of grants.entries()) {
      const later = new Set(grants.slice(at + 1).map(({ ticket }) => ticket));
      const others = tickets.filter(
        ({ id, lease }) =>
          (lease === null || later.has(id)) && !changes.admitted.has(id) && !changes.back.has(id),
      );
      const beside = { granted, others, clock };
      this.#inOrder(model, beside);
      this.#fairToCallers(model, beside, isSure);
      this.#behindOthers(model, beside, isSure);
    }
    this.#noteCallers(tickets, clock);
  }

  forgetTurns(): void {
    for (const { turns } of this.#callers.values()) turns.forget();
  }

  forgetAll(): void {
    this.#callers.clear();
    this.#minutes.clear();
    this.#changes.clear();
  }

  #changesOf(bucket: string): Changes {
    let changes = this.#changes.get(bucket);
    if (changes === undefined) {
      changes = { admitted: new Set(), back: new Set(), notSent: new Set() };
      this.#changes.set(bucket, changes);
    }
    return changes;
  }

  #callerOf(ticket: string): string {
    return this.#ledger.call(ticket).plan.caller ?? '';
  }

  #noteMinute(model: StoredBucket, { admitted, notSent }: Changes, clock: number): void {
    const { grants } = model.effects;
    const granted = new Set(grants.map(({ ticket }) => ticket));
    const before = [...notSent].flatMap((lease) => this.#before.get(lease) ?? []);
    const minute = this.#minutes.get(model.key);
    // Whether the one or the other came first an entry does not show.
    if (before.length > 0 && grants.some(isOfBackground)) this.#minutes.delete(model.key);
    else if (minute !== undefined) this.#minutes.set(model.key, Math.min(minute, ...before));
    const here = [...(model.bucket?.tickets.values() ?? [])].filter(
      (ticket) => isOfBackground(ticket) && (ticket.lease === null || granted.has(ticket.id)),
    );
    if (here.length === 0 || !here.every(({ id }) => admitted.has(id))) return;
    this.#minutes.set(model.key, clock);
  }

  #noteCallers(tickets: readonly Ticket[], clock: number): void {
    const waiting = new Map<string, Set<string>>();
    for (const { id, lane, lease } of tickets) {
      if (lease !== null) continue;
      const callers = waiting.get(lane) ?? new Set();
      waiting.set(lane, callers.add(this.#callerOf(id)));
    }
    for (const lane of new Set([...waiting.keys(), ...this.#callers.keys()])) {
      const here = waiting.get(lane) ?? new Set<string>();
      const known = this.#callers.get(lane) ?? { since: new Map(), turns: new Turns(1) };
      this.#callers.set(lane, known);
      for (const caller of known.since.keys()) if (!here.has(caller)) known.since.delete(caller);
      for (const caller of here) if (!known.since.has(caller)) known.since.set(caller, clock);
    }
  }

  #inOrder(model: StoredBucket, { granted, others }: Beside): void {
    const order = model.bucket?.tickets.get(granted.ticket)?.order;
    if (order === undefined) return;
    const own = others.filter(
      ({ id, lane }) => lane === granted.lane && this.#callerOf(id) === this.#callerOf(granted.ticket),
    );
    const first = own.find((other) => other.order < order);
    if (first !== undefined) this.#ledger.broken('4', `${granted.ticket} granted before ${first.id}`);
  }

  #fairToCallers(model: StoredBucket, { granted, others, clock }: Beside, isSure: boolean): void {
    const known = this.#callers.get(granted.lane);
    if (known === undefined || !isSure || !this.#keepTurns.has(model.key)) return;
    const here = new Set(
      others.filter(({ lane }) => lane === granted.lane).map(({ id }) => this.#callerOf(id)),
    );
    const caller = this.#callerOf(granted.ticket);
    const waiting = new Map([...known.since].filter(([name]) => here.has(name) || name === caller));
    if (waiting.size < 2) return known.turns.forget();
    const serviceMs = serviceMsOf(this.#ledger.call(granted.ticket).plan.costs, ratesOf(model));
    const unfair = known.turns.granted({ who: caller, serviceMs }, waiting, clock);
    this.#ledger.reach('callers take turns');
    if (unfair !== null) this.#ledger.broken('5', `${granted.lane}: caller ${unfair}`);
  }

  #behindOthers(model: StoredBucket, { granted, others, clock }: Beside, isSure: boolean): void {
    const minute = this.#minutes.get(model.key);
    const isLast = isOfBackground(granted);
    if (!isLast && others.some(isOfBackground))
      this.#ledger.reach('a background call waits while another goes');
    const sinceMs = minute === undefined ? null : clock - minute;
    // Within the minute its calls go behind all others, and after it one of them goes before these.
    const isBehind = sinceMs !== null && sinceMs < minuteMs - roundingMs;
    const isDue = sinceMs !== null && sinceMs >= minuteMs + roundingMs;
    if (isLast) {
      if (sinceMs !== null && !isBehind) this.#ledger.reach('a background call is due');
      this.#before.set(granted.lease, minute ?? -Infinity);
      this.#minutes.set(model.key, clock);
    }
    const mayGo = isLast ? !isBehind : !isDue;
    if (mayGo || !isSure || !this.#keepTurns.has(model.key)) return;
    const first = others.find((other) => {
      const lane = model.bucket?.lanes.get(laneKey(other.lane));
      const isAwake = lane !== undefined && lane.asleep.size === 0 && lane.slots === null;
      return isOfBackground(other) !== isLast && this.#comparable.has(other.lane) && isAwake;
    });
    if (first !== undefined)
      this.#ledger.broken('5', `${granted.ticket} granted before ${first.id} of ${first.lane}`);
  }
}

const isOfBackground = ({ lane }: { readonly lane: string }): boolean => isBackground({ key: lane });
