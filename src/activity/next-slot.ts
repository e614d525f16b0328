/**
 * When the next call of a workspace could leave, from its ceiling and the bucket that it used last on an upstream. Owns how often lanes and
 * buckets are read; does not own either. A workspace that uses several (models, shops) is answered for the last one.
 */
import type { Clock } from '../clock.ts';
import type { BucketSnapshot } from '../bucket.ts';
import type { BucketKey, CeilingKey } from '../ids.ts';

/** A lane of a bucket, under a ceiling. */
interface UsedLane {
  readonly bucket: BucketKey;
  readonly ceiling: CeilingKey;
  /** Monotonic milliseconds. */
  readonly usedAt: number;
}

export interface LastBucketsParts {
  readonly clock: Clock;
  readonly snapshot: () => readonly BucketSnapshot[];
  readonly lanes: () => Iterable<UsedLane>;
}

/** All lanes and buckets are read at once, and at most this often: a view of all workspaces asks for each. Milliseconds. */
const readGoodMs = 250;

interface Reading {
  readonly at: number;
  readonly byCeiling: ReadonlyMap<string, BucketSnapshot>;
}

export class LastBuckets {
  readonly #parts: LastBucketsParts;
  #reading: Reading | null = null;

  constructor(parts: LastBucketsParts) {
    this.#parts = parts;
  }

  /** State of the bucket used last under this ceiling, or `null`. */
  of(ceiling: CeilingKey): BucketSnapshot | null {
    const now = this.#parts.clock.monotonic();
    if (this.#reading === null || now - this.#reading.at >= readGoodMs) this.#reading = this.#read(now);
    return this.#reading.byCeiling.get(ceiling) ?? null;
  }

  #read(at: number): Reading {
    const { snapshot, lanes } = this.#parts;
    const last = new Map<CeilingKey, UsedLane>();
    for (const lane of lanes()) {
      const known = last.get(lane.ceiling);
      if (known === undefined || lane.usedAt >= known.usedAt) last.set(lane.ceiling, lane);
    }
    const buckets = new Map(snapshot().map((each) => [each.bucket, each]));
    const byCeiling = new Map<CeilingKey, BucketSnapshot>();
    for (const [ceiling, { bucket }] of last) {
      const known = buckets.get(bucket);
      if (known !== undefined) byCeiling.set(ceiling, known);
    }
    return { at, byCeiling };
  }
}

/**
 * Expected wait of a call that arrived now, milliseconds. `ceilingMs`: of the workspace's own ceiling. The bucket adds the
 * time until it opens, and until its meters of requests have room behind the calls that wait already and those that come back. Tokens and cost are
 * left out: they depend on the call. `null` when nothing is known. An
 * expectation, never a promise: others may come first, and the upstream may say something new.
 */
export function nextSlotMs(ceilingMs: number | null, bucket: BucketSnapshot | null): number | null {
  if (bucket === null) return ceilingMs;
  let waitMs = Math.max(ceilingMs ?? 0, bucket.closedMs);
  for (const { meter, level, limit, windowMs } of bucket.meters) {
    if (!meter.startsWith('requests') || limit <= 0) continue;
    waitMs = Math.max(waitMs, ((level + bucket.waiting + bucket.reserved + 1 - limit) * windowMs) / limit);
  }
  return waitMs;
}
