/** The guard of serialized lanes, for several replicas in one process. */
import type { Clock } from '../../src/clock.ts';
import type { LeaseToken } from '../../src/ids.ts';
import type { Guarded, LaneGuard, LaneReply } from '../../src/limiter/over-log/lane-guard.ts';

/** A lane is asked for again after this time at most, milliseconds. */
const maxRetryMs = 50;

export class MemoryLaneGuard implements LaneGuard {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #owners = new Map<string, { readonly lease: LeaseToken; readonly until: number }>();

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  async take(call: Guarded, keepMs: number): Promise<LaneReply> {
    const now = this.#clock.monotonic();
    const key = keyOf(call);
    const owner = this.#owners.get(key);
    if (owner !== undefined && owner.lease !== call.lease && owner.until > now)
      return { kind: 'taken by another', retryInMs: Math.min(owner.until - now, maxRetryMs) };
    this.#owners.set(key, { lease: call.lease, until: now + keepMs });
    return { kind: 'taken' };
  }

  async free(call: Guarded): Promise<void> {
    if (this.#owners.get(keyOf(call))?.lease === call.lease) this.#owners.delete(keyOf(call));
  }
}

const keyOf = ({ bucket, lane }: Guarded): string => `${bucket} ${lane}`;
