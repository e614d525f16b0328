/**
 * Which traced attempt of a lane was sent, answered or ended last: what the waits of traced calls link to. Owns the order of
 * such events, in steps, which need no clock; does not own spans.
 */
import type { SpanContext } from '@opentelemetry/api';
import { LRUCache } from 'lru-cache';

/** An attempt, and the step at which it was last sent, answered or ended. */
export interface LatestAttempt {
  readonly context: SpanContext;
  step: number;
}

/**
 * What calls of a lane wait for: the traced attempt that was sent, answered or ended last while they waited. An attempt of
 * which nothing was seen meanwhile is not linked: where few calls are traced, it may be an hour old.
 */
export class LatestAttempts {
  readonly #lanes = new LRUCache<string, LatestAttempt>({ max: 2_000 });
  #step = 0;

  /** The step that was last. */
  now(): number {
    return this.#step;
  }

  /** An attempt of the lane is on its way: the latest from now on. */
  sent(lane: string, context: SpanContext): LatestAttempt {
    const latestAttempt = { context, step: ++this.#step };
    this.#lanes.set(lane, latestAttempt);
    return latestAttempt;
  }

  /** The attempt was answered or has ended. */
  seen(latestAttempt: LatestAttempt): void {
    latestAttempt.step = ++this.#step;
  }

  /** The latest attempt of a lane, if something was seen of it after `step`. */
  since(lane: string, step: number): SpanContext | null {
    const latestAttempt = this.#lanes.get(lane);
    return latestAttempt !== undefined && latestAttempt.step > step ? latestAttempt.context : null;
  }
}
