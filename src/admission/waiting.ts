/**
 * The calls of this replica that are in a line or on their way: who waits, until when, and how each ends.
 *
 * Owns: callers' promises and deadlines, how many wait under each ceiling, taking tickets out of the limiter's lines.
 * Refuses to own: who is refused early (`hopeless.ts`), who may go (`charging.ts`).
 * Keeps: a waiting caller is told exactly once; whoever leaves gives back its place, its timer and its listener (9, 10).
 */
import { Refusal } from '../errors.ts';
import { ShortLived } from '../short-lived.ts';
import type { DeskParts } from './desk-parts.ts';
import { fullFor, keyOf, type Gates } from './gates.ts';
import { createHolder, reasonToStop, type Holder } from './holder.ts';
import { expired, tooLong, type Failure } from './refusals.ts';
import type { Entry, Lease } from './ticket.ts';

export class Waiting {
  readonly #parts: DeskParts;
  readonly #gates: Gates;
  readonly #holders = new ShortLived<string, Holder>();
  readonly #queued = new Map<string, number>();
  /** By ceiling, calls that wait in each lane. */
  readonly #lanes = new Map<string, Map<string, number>>();

  constructor(parts: DeskParts, gates: Gates) {
    this.#parts = parts;
    this.#gates = gates;
  }

  /** A call comes; it does not wait before it asks to. */
  enter(entry: Entry): Holder {
    const holder = createHolder(entry, this.#parts.clock.monotonic(), this.#onGone);
    this.#holders.set(entry.admission.ticket, holder);
    entry.clientGone.addEventListener('abort', holder.onClientGone, { once: true });
    return holder;
  }

  get(ticket: string): Holder | undefined {
    return this.#holders.get(ticket);
  }

  /** All calls in the order of their coming, also those that do not wait now. */
  all(): Generator<Holder, void> {
    return this.#holders.values();
  }

  /** How many `all()` goes over. */
  get size(): number {
    return this.#holders.size;
  }

  /** Calls that wait now under one ceiling. */
  under(ceilingKey: string): number {
    return this.#queued.get(ceilingKey) ?? 0;
  }

  /** Calls that wait now in the lane of this one, and under its ceiling. */
  inLane({ ceiling, admission }: Entry): number {
    return this.lanesUnder(ceiling.key).get(keyOf(admission)) ?? 0;
  }

  /** By lane (`keyOf`), the calls that wait now under one ceiling. */
  lanesUnder(ceilingKey: string): ReadonlyMap<string, number> {
    return this.#lanes.get(ceilingKey) ?? none;
  }

  /** The caller waits for its lease, at most until its deadline. */
  wait(holder: Holder): Promise<Lease> {
    return new Promise<Lease>((resolve, reject) => {
      const now = this.#parts.clock.monotonic();
      holder.waiter = { resolve, reject, since: now };
      this.#count(holder, 1);
      holder.cancelDeadline = this.#parts.clock.after(holder.deadline - now, () => this.#expire(holder));
      const stop = holder.refused ?? reasonToStop(holder, now);
      // A call that left while it was on its way upstream may have come back into the line with its answer.
      if (holder.left) this.#takeOut(holder);
      if (stop !== null) this.refuse(holder, stop);
      else if (holder.hadLease) this.#refuseIfGateSleeps(holder, now);
      holder.onTurn?.();
      holder.onTurn = null;
    });
  }

  /** The waiting ends: its caller is to be told by whoever asked; `null` = it did not wait. */
  stop(holder: Holder): Holder['waiter'] {
    const { waiter } = holder;
    if (waiter === null) return null;
    holder.waiter = null;
    holder.waitedMs += this.#parts.clock.monotonic() - waiter.since;
    holder.cancelDeadline?.();
    holder.cancelDeadline = null;
    this.#count(holder, -1);
    return waiter;
  }

  /** Ends the call's waiting with a refusal and takes it out of the line. */
  refuse(holder: Holder, failure: Failure): void {
    const waiter = this.stop(holder);
    if (waiter === null) holder.refused ??= failure;
    else waiter.reject(failure);
    this.leave(holder);
  }

  /** The call is over here. Repeating it does nothing. */
  leave(holder: Holder): void {
    if (holder.left) return;
    holder.left = true;
    const { admission, clientGone } = holder.entry;
    this.#holders.delete(admission.ticket);
    holder.cancelDeadline?.();
    clientGone.removeEventListener('abort', holder.onClientGone);
    holder.onTurn?.();
    if (!holder.done) this.#takeOut(holder);
  }

  readonly #onGone = (holder: Holder): void => {
    const stop = reasonToStop(holder, this.#parts.clock.monotonic());
    this.refuse(holder, stop ?? new Refusal('request_invalid'));
  };

  #takeOut({ entry: { admission } }: Holder): void {
    this.#parts.background(this.#parts.limiter().cancel(admission.bucket, admission.ticket));
  }

  /** Its wait is over; it is told what it would have had to wait yet. */
  #expire(holder: Holder): void {
    const { bucket, ticket } = holder.entry.admission;
    const asked = this.#parts.limiter().forecast(bucket, ticket);
    this.#parts.background(
      asked.then((wait) => {
        if (holder.waiter === null) return;
        const full = this.#fullFor(holder);
        const known = wait ?? { waitMs: 0, heldBy: 'queue' };
        const isCeiling = full !== null && full.ms > known.waitMs;
        this.refuse(holder, isCeiling ? expired(full.ms, full.because) : expired(known.waitMs, known.heldBy));
      }),
    );
  }

  /** The ceiling may have refused the next grant of a call before it came to wait for it. */
  #refuseIfGateSleeps(holder: Holder, now: number): void {
    const full = this.#fullFor(holder);
    if (full === null || now + full.ms <= holder.deadline) return;
    this.refuse(holder, tooLong({ waitMs: full.ms, heldBy: full.because }, holder.entry));
  }

  /** How long its ceiling has no slot yet, as far as its gate knows. */
  #fullFor({ entry: { admission } }: Holder): ReturnType<typeof fullFor> {
    const gate = this.#gates.find(admission);
    if (gate === undefined || gate.ceiling !== admission.ceiling) return null;
    return fullFor(gate, this.#parts.clock.monotonic());
  }

  #count({ entry: { ceiling, admission } }: Holder, by: 1 | -1): void {
    count(this.#queued, ceiling.key, by);
    let lanes = this.#lanes.get(ceiling.key);
    if (lanes === undefined) this.#lanes.set(ceiling.key, (lanes = new Map()));
    count(lanes, keyOf(admission), by);
    if (lanes.size === 0) this.#lanes.delete(ceiling.key);
  }
}

const none: ReadonlyMap<string, number> = new Map();

function count(counts: Map<string, number>, key: string, by: 1 | -1): void {
  const left = (counts.get(key) ?? 0) + by;
  if (left <= 0) counts.delete(key);
  else counts.set(key, left);
}
