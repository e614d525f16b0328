/**
 * How often an upstream's refusals may ask for a renewal: at once while renewing helps, else ever more rarely. An upstream
 * also refuses calls that the client has no right to, and no new token changes that.
 */
import { refusalGapMs } from './renewal.policy.ts';

export class RefusalGap {
  #gapMs = refusalGapMs.min;
  #nextAt: number | null = null;

  /** True when a refusal at this time, monotonic milliseconds, may ask; the next one may after the gap. */
  mayRenew(now: number): boolean {
    if (this.#nextAt !== null && now < this.#nextAt) return false;
    this.#nextAt = now + this.#gapMs;
    this.#gapMs = Math.min(this.#gapMs * 2, refusalGapMs.max);
    return true;
  }

  /** The upstream accepted the present value: the next refusal may ask at once. */
  onAccepted(): void {
    this.#gapMs = refusalGapMs.min;
    this.#nextAt = null;
  }
}
