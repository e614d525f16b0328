/**
 * One call among the numbers of `live.ts`: on its upstream and on its workspace's lane there, waiting or in flight.
 * Owns what it has added, so that it is taken away once, on whatever path the call ends.
 */
import type { Call } from '../call.ts';
import type { FollowedLane, Live, LiveUpstream } from './live.ts';

export class LiveCall {
  readonly #live: Live;
  readonly #call: Call;
  #upstream: LiveUpstream | null = null;
  #lane: FollowedLane | null = null;
  #inFlight = false;

  constructor(call: Call, live: Live) {
    this.#call = call;
    this.#live = live;
  }

  route(upstream: string): void {
    this.#upstream = this.#live.of(upstream);
  }

  enterLane(workspaceId: string, upstream: string): void {
    this.leaveLane();
    this.#lane = this.#live.enter(workspaceId, upstream);
  }

  leaveLane(): void {
    if (this.#lane === null) return;
    this.#live.leave(this.#lane);
    this.#lane = null;
  }

  /** Joins those who wait; once until {@link leaveLine}. */
  enterLine(): void {
    this.#upstream?.waiting.set(this.#call.id, this.#call.receivedAt);
    if (this.#lane !== null) this.#lane.waiting += 1;
  }

  /** Whoever waited waits no more. */
  leaveLine(): void {
    this.#upstream?.waiting.delete(this.#call.id);
    if (this.#lane !== null) this.#lane.waiting -= 1;
  }

  /** An attempt is in flight; once until {@link land}. */
  takeOff(): void {
    this.#inFlight = true;
    if (this.#upstream !== null) this.#upstream.inFlight += 1;
    if (this.#lane !== null) this.#lane.inFlight += 1;
  }

  /** The attempt in flight is over. False when there was none. */
  land(): boolean {
    if (!this.#inFlight) return false;
    this.#inFlight = false;
    if (this.#upstream !== null) this.#upstream.inFlight -= 1;
    if (this.#lane !== null) this.#lane.inFlight -= 1;
    return true;
  }
}
