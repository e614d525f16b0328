/**
 * When a request arrived, also if this process was kept from reading it: by a long turn of its own, or because the system
 * stopped it. What is read first after such a gap arrived at some time within it; the middle is wrong by half of it at most.
 * A call's position in its lane is its arrival, so that a replica that was slow for a moment keeps its calls' positions.
 *
 * What arrived in one gap gets distinct times in the order of reading: a position that two calls shared would not tell, when one of
 * them was left and is repeated, which of them was first.
 *
 * Owns: noticing gaps, by a timer that runs while requests come. Does not own: the order of calls with one arrival
 * (`admission/arrival-order.ts`).
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** How often the process proves that it runs, milliseconds: an arrival is wrong by half of that where nothing shows a gap. */
const beatMs = 10;
/** A beat that is later than this shows that the process was kept from running. Milliseconds. */
const slackMs = 5;
/** Time from one beat to the next right after a gap, milliseconds. */
const afterGapMs = 1;
/**
 * What had piled up in a gap is read by the time of so many beats, each in another turn of the event loop: a new connection is accepted
 * in the first turn and read in the next one. A request that arrives meanwhile is taken for some milliseconds older than it is.
 */
const beatsAfterGap = 4;
/** More than the smallest difference between two positions (`sequencePerMs`). Milliseconds. */
const stepMs = 0.02;
/** Time without a request after which the timer stops. Milliseconds. */
const restAfterMs = 1_000;

/** A time in which the process did not run: what is read now may have arrived at any moment of it. */
interface Gap {
  /** Monotonic milliseconds. */
  readonly middleAt: number;
  /** How many beats are to follow it before requests arrive when they are read. */
  readonly beatsLeft: number;
}

interface Beating {
  readonly kind: 'beating';
  readonly lastAt: number;
  readonly dueAt: number;
  readonly cancel: CancelTimer;
}

type Pulse = { readonly kind: 'resting' | 'closed' } | Beating;

export class ArrivalTimes {
  readonly #clock: Clock;
  #pulse: Pulse = { kind: 'resting' };
  /** When a request was last read; `null` = none has been. */
  #newestAt: number | null = null;
  #gap: Gap | null = null;
  /** The latest arrival; `null` = none so far. */
  #latest: number | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A request was read: the monotonic milliseconds at which it arrived, as far as is known. Always later than the one before. */
  arrived(): number {
    const now = this.#clock.monotonic();
    if (this.#pulse.kind === 'resting') this.#beatIn(beatMs, now);
    else if (this.#pulse.kind === 'beating') this.#noticeGap(this.#pulse, now);
    this.#newestAt = now;
    const at = this.#gap?.middleAt ?? now;
    this.#latest = this.#latest === null ? at : Math.max(at, this.#latest + stepMs);
    return this.#latest;
  }

  /** No timer runs any more; requests that are still read arrive when they are read. */
  close(): void {
    if (this.#pulse.kind === 'beating') this.#pulse.cancel();
    this.#pulse = { kind: 'closed' };
    this.#gap = null;
  }

  /** The process was kept from running until now? It ran when it read a request, however late its timer is. */
  #noticeGap({ lastAt, dueAt }: Beating, now: number): void {
    const ranAt = Math.max(lastAt, this.#newestAt ?? lastAt);
    if (now - dueAt <= slackMs || now - ranAt <= slackMs) return;
    this.#gap = { middleAt: (ranAt + now) / 2, beatsLeft: beatsAfterGap };
  }

  #beatIn(ms: number, now: number): void {
    const cancel = this.#clock.after(ms, () => this.#beat());
    this.#pulse = { kind: 'beating', lastAt: now, dueAt: now + ms, cancel };
  }

  #beat(): void {
    if (this.#pulse.kind !== 'beating') return;
    const now = this.#clock.monotonic();
    this.#noticeGap(this.#pulse, now);
    const { middleAt, beatsLeft } = this.#gap ?? { middleAt: now, beatsLeft: 0 };
    this.#gap = beatsLeft > 0 ? { middleAt, beatsLeft: beatsLeft - 1 } : null;
    if (this.#gap !== null) return this.#beatIn(afterGapMs, now);
    const isQuiet = this.#newestAt === null || now - this.#newestAt > restAfterMs;
    if (isQuiet) this.#pulse = { kind: 'resting' };
    else this.#beatIn(beatMs, now);
  }
}
