/**
 * The ticket that the journey holds for a queued call: it passes each question on to the call or to the registry. A class, because
 * thousands of calls wait and a factory would create these functions for each.
 *
 * Does not own: the call's states (`queued-call.ts`) and what changes them (`wait-registry.ts`).
 */
import type { Clock } from '../clock.ts';
import type { QueuedCall } from './queued-call.ts';
import type { Lease, Ticket } from './ticket.ts';
import type { WaitRegistry } from './wait-registry.ts';

export class QueuedTicket implements Ticket {
  readonly #call: QueuedCall;
  readonly #registry: WaitRegistry;
  readonly #clock: Clock;

  constructor(call: QueuedCall, registry: WaitRegistry, clock: Clock) {
    this.#call = call;
    this.#registry = registry;
    this.#clock = clock;
  }

  whenGranted(): Promise<Lease> {
    return this.#registry.wait(this.#call);
  }

  remainingMs(): number {
    return Math.max(0, this.#call.waitEndsAt - this.#clock.monotonic());
  }

  ensureTimeLeft(ms: number): void {
    this.#call.deadline = Math.max(this.#call.deadline, this.#clock.monotonic() + ms);
  }

  waitedMs(): number {
    return this.#call.waitedMs;
  }

  leave(): void {
    this.#registry.end(this.#call, { kind: 'left' });
  }
}
