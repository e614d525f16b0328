/**
 * What one call adds to the counts of `live.ts`: waiting or in flight, on its upstream and on its workspace's lane there.
 * Owns: what this call has added, so that it is subtracted exactly once, however the call ends.
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

  /** Counts the call as waiting. Called once, until {@link leaveLine}. */
  enterLine(): void {
    this.#upstream?.waiting.set(this.#call.id, this.#call.receivedAt);
    if (this.#lane !== null) this.#lane.waiting += 1;
  }

  /** The call does not wait any more. */
  leaveLine(): void {
    this.#upstream?.waiting.delete(this.#call.id);
    if (this.#lane !== null) this.#lane.waiting -= 1;
  }

  /** Counts an attempt of the call as in flight. Called once, until {@link attemptEnded}. */
  attemptStarted(): void {
    this.#inFlight = true;
    if (this.#upstream !== null) this.#upstream.inFlight += 1;
    if (this.#lane !== null) this.#lane.inFlight += 1;
  }

  /** The attempt in flight has ended. False when none was in flight. */
  attemptEnded(): boolean {
    if (!this.#inFlight) return false;
    this.#inFlight = false;
    if (this.#upstream !== null) this.#upstream.inFlight -= 1;
    if (this.#lane !== null) this.#lane.inFlight -= 1;
    return true;
  }
}
