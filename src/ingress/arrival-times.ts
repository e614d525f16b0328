/**
 * When a request arrived, also if this process was kept from reading it: by a long turn of its own, or because the system
 * stopped it. What is read first after such a gap arrived at some time within it; the middle is wrong by half of it at most.
 * A call's position in its lane is its arrival, so that a replica that was slow for a moment keeps its calls' positions.
 *
 * Owns: noticing gaps, by a timer that runs while requests come. Does not own: the order of what arrived in one gap (the
 * order of reading, which admission keeps).
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** How often the process proves that it runs, milliseconds: an arrival is wrong by half of that where nothing shows a gap. */
const beatMs = 10;
/** A beat that is later than this shows that the process was kept from running. Milliseconds. */
const slackMs = 5;
/** After a gap what had piled up is read before the next beat. Milliseconds. */
const afterGapMs = 1;
/** Without a request for so long the timer rests. Milliseconds. */
const restAfterMs = 1_000;

/** A time in which the process did not run: what is read now may have arrived at any moment of it. */
interface Gap {
  /** Monotonic milliseconds. */
  readonly middleAt: number;
  /** No beat has followed it yet. */
  readonly isNew: boolean;
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

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A request was read: the monotonic milliseconds at which it arrived, as far as is known. Never before the one before. */
  arrived(): number {
    const now = this.#clock.monotonic();
    if (this.#pulse.kind === 'resting') this.#beatIn(beatMs, now);
    else if (this.#pulse.kind === 'beating') this.#noticeGap(this.#pulse, now);
    this.#newestAt = now;
    return this.#gap?.middleAt ?? now;
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
    this.#gap = { middleAt: (ranAt + now) / 2, isNew: true };
  }

  #beatIn(ms: number, now: number): void {
    const cancel = this.#clock.after(ms, () => this.#beat());
    this.#pulse = { kind: 'beating', lastAt: now, dueAt: now + ms, cancel };
  }

  #beat(): void {
    if (this.#pulse.kind !== 'beating') return;
    const now = this.#clock.monotonic();
    this.#noticeGap(this.#pulse, now);
    // What had piled up in the gap is read before the next beat.
    this.#gap = this.#gap?.isNew === true ? { ...this.#gap, isNew: false } : null;
    if (this.#gap !== null) return this.#beatIn(afterGapMs, now);
    const isQuiet = this.#newestAt === null || now - this.#newestAt > restAfterMs;
    if (isQuiet) this.#pulse = { kind: 'resting' };
    else this.#beatIn(beatMs, now);
  }
}
