/** Until when a bucket is closed, and whether Redis has forgotten a closing. Times are monotonic milliseconds. */
export const laterOf = (a: number | null, b: number): number => (a === null ? b : Math.max(a, b));

export class Closing {
  #until: number | null = null;
  /** The earliest end of the closing that Redis has stated: an earlier end in a later reply means that Redis lost a write. */
  #atLeast: number | null = null;
  /** When an operator opened the bucket last. */
  #reopenedAt: number | null = null;

  get until(): number | null {
    return this.#until;
  }

  isAt(at: number): boolean {
    return this.#until !== null && this.#until > at;
  }

  msLeft(now: number): number {
    return this.#until === null ? 0 : Math.max(0, this.#until - now);
  }

  /** A reply that is read at `now` names an earlier end than Redis did before: a failover has lost the latest writes. */
  forgets(closedMs: number, now: number): boolean {
    return this.#atLeast !== null && now + closedMs < this.#atLeast;
  }

  /** Notes the closing that a reply states, which is read at `now`. */
  note(closedMs: number, { sentAt, now }: { readonly sentAt: number; readonly now: number }): void {
    // A reply to what was sent before the opening may tell of a closing that the opening has ended.
    const isOfBefore = this.#reopenedAt !== null && sentAt <= this.#reopenedAt;
    this.#atLeast = closedMs > 0 && !isOfBefore ? sentAt + closedMs : null;
    this.#until = now + closedMs;
  }

  /** A response of the upstream closed the bucket: known here, whether or not the lesson reaches Redis. */
  extend(until: number): void {
    this.#until = laterOf(this.#until, until);
    this.#atLeast = laterOf(this.#atLeast, until);
  }

  /** An operator opens the bucket at this time: an earlier end in a later reply is no loss then. */
  reopen(now: number): void {
    this.#until = null;
    this.#atLeast = null;
    this.#reopenedAt = now;
  }

  /** Notes the closing that a message of another replica states. */
  set(until: number): void {
    this.#until = until;
  }
}
