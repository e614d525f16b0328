/**
 * What a caller holds of its queued call. A class: thousands of calls wait, and its functions are not made for each.
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

  granted(): Promise<Lease> {
    return this.#registry.wait(this.#call);
  }

  remainingMs(): number {
    return Math.max(0, this.#call.waitEndsAt - this.#clock.monotonic());
  }

  lengthen(ms: number): void {
    this.#call.deadline = Math.max(this.#call.deadline, this.#clock.monotonic() + ms);
  }

  waitedMs(): number {
    return this.#call.waitedMs;
  }

  leave(): void {
    this.#registry.end(this.#call, { kind: 'left' });
  }
}
