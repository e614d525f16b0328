/**
 * Who moved last in a lane: what the waits of traced calls link to. Owns the order of such moves, in steps, which need no
 * clock; refuses to own spans.
 */
import type { SpanContext } from '@opentelemetry/api';
import { LRUCache } from 'lru-cache';

/** The attempt of a lane that moved last, and when. */
export interface Mover {
  readonly context: SpanContext;
  step: number;
}

/**
 * What calls of a lane wait for: the traced attempt that was sent, answered or ended last while they waited. One that did
 * not move meanwhile is nobody's reason (where few calls are traced it may be an hour old).
 */
export class Movers {
  readonly #lanes = new LRUCache<string, Mover>({ max: 2_000 });
  #step = 0;

  /** The step that was last. */
  now(): number {
    return this.#step;
  }

  /** An attempt of the lane is on its way: its mover from now on. */
  sent(lane: string, context: SpanContext): Mover {
    const mover = { context, step: ++this.#step };
    this.#lanes.set(lane, mover);
    return mover;
  }

  moved(mover: Mover): void {
    mover.step = ++this.#step;
  }

  /** The mover of a lane, if it moved after `step`. */
  since(lane: string, step: number): SpanContext | null {
    const mover = this.#lanes.get(lane);
    return mover !== undefined && mover.step > step ? mover.context : null;
  }
}
