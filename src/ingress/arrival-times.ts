/**
 * When a request arrived, also if this process was kept from reading it: by a long turn of its own, or because the system
 * stopped it. What is read first after such a gap arrived at some time within it; the middle is wrong by half of it at most.
 * A call's position in its lane is its arrival, so that a replica that was slow for a moment keeps its calls' places.
 *
 * Owns: noticing gaps, by a timer that runs while requests come. Refuses to own: the order of what arrived in one gap (the
 * order of reading, which admission keeps).
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** How often the process proves that it runs, milliseconds: an arrival is wrong by half of that where nothing shows a gap. */
const beatMs = 20;
/** A beat that is later than this shows that the process was kept from running. Milliseconds. */
const slackMs = 5;
/** After a gap what had piled up is read before the next beat. Milliseconds. */
const afterGapMs = 1;
/** Without a request for so long the timer rests. Milliseconds. */
const restAfterMs = 1_000;

type Pulse =
  | { readonly kind: 'resting' }
  | {
      readonly kind: 'beating';
      readonly lastAt: number;
      readonly dueAt: number;
      readonly cancel: CancelTimer;
    };

export class ArrivalTimes {
  readonly #clock: Clock;
  #pulse: Pulse = { kind: 'resting' };
  #newestAt = 0;
  /** What is read now may have arrived at any time of this gap; its middle, monotonic milliseconds. */
  #middleOfGap: number | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A request was read: the monotonic milliseconds at which it arrived, as far as can be told. */
  arrived(): number {
    const now = this.#clock.monotonic();
    this.#newestAt = now;
    if (this.#pulse.kind === 'resting') this.#beatIn(beatMs, now);
    else this.#noticeGap(this.#pulse, now);
    return this.#middleOfGap ?? now;
  }

  close(): void {
    if (this.#pulse.kind === 'beating') this.#pulse.cancel();
    this.#pulse = { kind: 'resting' };
  }

  #noticeGap({ lastAt, dueAt }: Extract<Pulse, { kind: 'beating' }>, now: number): boolean {
    if (now - dueAt <= slackMs) return false;
    this.#middleOfGap ??= (lastAt + now) / 2;
    return true;
  }

  #beatIn(ms: number, now: number): void {
    const cancel = this.#clock.after(ms, () => this.#beat());
    this.#pulse = { kind: 'beating', lastAt: now, dueAt: now + ms, cancel };
  }

  #beat(): void {
    if (this.#pulse.kind === 'resting') return;
    const now = this.#clock.monotonic();
    const { dueAt } = this.#pulse;
    // The gap that ends here is over for what is read later than the requests that piled up in it.
    const isNew = this.#middleOfGap === null && this.#noticeGap(this.#pulse, now);
    if (!isNew) this.#middleOfGap = null;
    if (isNew) return this.#beatIn(afterGapMs, now);
    if (now - this.#newestAt > restAfterMs && now >= dueAt) this.#pulse = { kind: 'resting' };
    else this.#beatIn(beatMs, now);
  }
}
