/**
 * The calls that this replica serves by itself while Redis is unavailable. Each absence of Redis has an embedded limiter of its
 * own, which starts from the last known state of Redis and enforces this replica's share.
 *
 * Owns: tickets and grants of the embedded limiter, quarantine, usage that Redis has not seen. Does not own: when an absence
 * begins and ends, which store a call asks (`failover/limiter.ts`).
 * Invariant: a capped lane waits one lease length after the absence began, because calls that Redis granted may be under way.
 */
import type { Clock } from '../../clock.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import type { Background } from '../redis/background.ts';
import {
  queuedWithoutForecast,
  type AdmissionReply,
  type BucketKey,
  type BucketSnapshot,
  type CeilingEdge,
  type Grant,
  type LaneKey,
  type Lesson,
  type Limiter,
  type LimiterListener,
  type Reconfiguration,
  type Settlement,
  type WaitForecast,
  type TicketId,
} from '../limiter.ts';
import { createEmbeddedLimiter } from '../embedded/limiter.ts';
import type { Positioned } from '../redis/replica-calls.ts';
import { isRequeued, withoutRequeue } from '../policy/settlement.policy.ts';
import { longerHold, quarantineMs } from './quarantine.policy.ts';
import type { UnreportedUsage } from './unreported-usage.ts';

type LocalState =
  | { readonly kind: 'waiting' }
  /** The grant is withheld from its call until the leases that Redis granted have ended. */
  | { readonly kind: 'quarantined'; readonly grant: Grant; readonly cancel: () => void }
  | { readonly kind: 'granted' };

/** Of a withheld grant: its ticket is granted anew by what holds then. A reload may have lowered the lane's cap meanwhile. */
const putBack: Settlement = { kind: 'returned', sleepMs: 0, because: 'backoff' };

interface LocalTicket {
  admission: Positioned;
  state: LocalState;
}

export interface LocalCallsParts {
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly listener: LimiterListener;
  readonly replicas: () => number;
  readonly usage: UnreportedUsage;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  readonly background: Background;
}

export class LocalCalls {
  readonly #parts: LocalCallsParts;
  readonly #tickets = new Map<TicketId, LocalTicket>();
  /** Each grant with the embedded limiter (the absence) that it belongs to. */
  readonly #grants = new Map<Grant, Limiter>();
  #store: Limiter;
  /** Monotonic milliseconds at which calls began to be served here. */
  #since: number;

  constructor(parts: LocalCallsParts) {
    this.#parts = parts;
    this.#since = parts.clock.monotonic();
    this.#store = this.#createStore();
  }

  get isEmpty(): boolean {
    return this.#tickets.size === 0;
  }

  hasTicket(ticket: TicketId): boolean {
    return this.#tickets.has(ticket);
  }

  positionOf(ticket: TicketId): Positioned['position'] | null {
    return this.#tickets.get(ticket)?.admission.position ?? null;
  }

  hasGranted(grant: Grant): boolean {
    return this.#grants.has(grant);
  }

  /** Redis became unavailable. `isNew`: calls were handed back to Redis since the last absence; false = that absence goes on. */
  begin(isNew: boolean): void {
    this.#since = this.#parts.clock.monotonic();
    if (!isNew) return;
    this.#parts.background.run(this.#store.close());
    this.#store = this.#createStore();
  }

  async enter(admission: Positioned): Promise<AdmissionReply> {
    const { usage } = this.#parts;
    const ticket: LocalTicket = { admission, state: { kind: 'waiting' } };
    const isHere = (): boolean => this.#tickets.get(admission.ticket) === ticket;
    this.#tickets.set(admission.ticket, ticket);
    await usage.seed(this.#store, admission, this.#since);
    // While the bucket was seeded, the client may have left, Redis may have taken the ticket, or configuration may have changed.
    if (!isHere()) return queuedWithoutForecast;
    const [store, current] = [this.#store, ticket.admission];
    const reply = await store.admit({ ...current, setting: usage.shared(current) });
    if (reply.kind === 'refused') this.#tickets.delete(admission.ticket);
    if (reply.kind === 'granted') {
      if (isHere()) this.#onGrant(reply.grant, store);
      else await store.settle(reply.grant, { kind: 'dropped' }, null);
    }
    if (reply.kind === 'refused') return reply;
    const { ahead, forecastMs, heldBy: cause } = reply.kind === 'queued' ? reply : queuedWithoutForecast;
    const { waitMs, heldBy } = longerHold(this.#keptMs(admission), { waitMs: forecastMs, heldBy: cause });
    return { kind: 'queued', forecastMs: waitMs, heldBy, ahead };
  }

  /** Ends a grant. Resolves with the ticket if it goes back to its lane elsewhere: in Redis (`isUp`), or in a later absence. */
  async settle(
    grant: Grant,
    { settlement, lesson }: { readonly settlement: Settlement; readonly lesson: Lesson | null },
    isUp: boolean,
  ): Promise<Positioned | null> {
    const store = this.#grants.get(grant) ?? this.#store;
    this.#grants.delete(grant);
    const known = this.#tickets.get(grant.ticket);
    // A call that has moved waits in its other bucket under the same name.
    const ticket = known?.admission.bucket === grant.bucket ? known : undefined;
    // A response states the quota of all replicas together, not this replica's share: only a refusal is learned from.
    const learned = lesson === null ? null : { ...lesson, feedback: { ...lesson.feedback, meters: [] } };
    if (ticket === undefined || !isRequeued(settlement)) {
      if (ticket !== undefined) this.#tickets.delete(grant.ticket);
      await store.settle(grant, ticket === undefined ? withoutRequeue(settlement) : settlement, learned);
      return null;
    }
    if (!isUp && store === this.#store) {
      ticket.state = { kind: 'waiting' };
      await store.settle(grant, settlement, learned);
      return null;
    }
    this.#tickets.delete(grant.ticket);
    await store.settle(grant, withoutRequeue(settlement), learned);
    return ticket.admission;
  }

  async charged(grant: Grant, edge: CeilingEdge | null): Promise<void> {
    await this.#grants.get(grant)?.charged(grant, edge);
  }

  /** Applies new settings to waiting calls: this replica's share of the new limits. */
  async reconfigure(change: Reconfiguration): Promise<void> {
    const { usage, background } = this.#parts;
    const lanes = new Map(change.lanes.map((lane) => [lane.lane, lane]));
    for (const ticket of this.#tickets.values()) {
      const { bucket, lane } = ticket.admission;
      if (bucket !== change.bucket) continue;
      ticket.admission = { ...ticket.admission, ...lanes.get(lane), setting: change.setting };
      // Nothing keeps its call any more. Before the event, which lets those behind it go.
      if (ticket.admission.maxInFlight === null) background.run(this.#takeBack(ticket, putBack));
    }
    usage.reconfigure(change);
    await this.#store.reconfigure({ ...change, setting: usage.shared(change) });
  }

  readonly wake = (bucket: BucketKey, lane: LaneKey): Promise<void> => this.#store.wake(bucket, lane);
  readonly open = (bucket: BucketKey): Promise<void> => this.#store.open(bucket, null);

  async cancel(bucket: BucketKey, id: TicketId): Promise<void> {
    const ticket = this.#tickets.get(id);
    this.#tickets.delete(id);
    if (ticket?.state.kind === 'waiting') await this.#store.cancel(bucket, id);
    else if (ticket !== undefined) await this.#takeBack(ticket, { kind: 'dropped' });
  }

  forecast(bucket: BucketKey, ticket: TicketId): Promise<WaitForecast | null> {
    return this.#store.forecast(bucket, ticket);
  }

  snapshot(): readonly BucketSnapshot[] {
    return this.#store.snapshot();
  }

  /** Reports to Redis what was sent without it. */
  reportUsage(): readonly Promise<void>[] {
    return this.#parts.usage.report(this.#store);
  }

  /** Hands over every call that has no grant yet, in the order of their positions. */
  takeWaiting(): Positioned[] {
    const { background } = this.#parts;
    const waiting = [...this.#tickets.values()]
      .filter(({ state }) => state.kind !== 'granted')
      .sort((a, b) => a.admission.position.order - b.admission.position.order);
    for (const { admission } of waiting) background.run(this.cancel(admission.bucket, admission.ticket));
    return waiting.map(({ admission }) => admission);
  }

  async close(): Promise<void> {
    for (const { state } of this.#tickets.values()) if (state.kind === 'quarantined') state.cancel();
    await this.#store.close();
  }

  #createStore(): Limiter {
    const { clock, listener, leaseMs } = this.#parts;
    const own: LimiterListener = {
      onGrant: (grant) => this.#onGrant(grant, store),
      onClosed: (bucket, closedMs) => listener.onClosed(bucket, closedMs),
    };
    const store: Limiter = createEmbeddedLimiter(clock, own, { leaseMs });
    return store;
  }

  #onGrant(grant: Grant, store: Limiter): void {
    const { clock, listener, background } = this.#parts;
    const ticket = this.#tickets.get(grant.ticket);
    if (ticket === undefined) return background.run(store.settle(grant, { kind: 'dropped' }, null));
    this.#grants.set(grant, store);
    ticket.state = { kind: 'granted' };
    if (ticket.admission.maxInFlight === null) return listener.onGrant(grant);
    const waitMs = this.#keptMs(ticket.admission);
    if (waitMs <= 0) return this.#handOver(grant);
    const cancel = clock.after(Math.ceil(waitMs), () => background.run(this.#takeBack(ticket, putBack)));
    ticket.state = { kind: 'quarantined', grant, cancel };
  }

  #keptMs({ maxInFlight }: Positioned): number {
    const { clock, leaseMs } = this.#parts;
    return quarantineMs({ maxInFlight, leaseMs }, clock.monotonic() - this.#since);
  }

  /** Hands over a grant of a capped lane. Other replicas may serve the lane, too: then it counts as a lost lease. */
  #handOver(grant: Grant): void {
    const { replicas, telemetry, listener } = this.#parts;
    if (replicas() > 1) telemetry.leaseLost('unavailable');
    listener.onGrant(grant);
  }

  /** Ends the ticket's withheld grant. */
  async #takeBack(ticket: LocalTicket, settlement: Settlement): Promise<void> {
    if (ticket.state.kind !== 'quarantined') return;
    const { grant, cancel } = ticket.state;
    cancel();
    const store = this.#grants.get(grant) ?? this.#store;
    this.#grants.delete(grant);
    ticket.state = { kind: 'waiting' };
    await store.settle(grant, settlement, null);
  }
}
