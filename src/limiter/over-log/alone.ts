/**
 * A replica goes on alone while the log is away: over a log of its own in memory, from a copy of the state that it last had, with
 * its share of every limit.
 *
 * Owns: the share, what was used. Does not own: when this time begins and ends (`shard.ts`).
 * Keeps: a capped lane or bucket waits one lease first, because calls that other replicas were granted may be under way. Beyond that nothing
 * keeps replicas that are alone from overlapping in one lane.
 */
import type { Costs, MeterName } from '../../call.ts';
import type { BucketKey } from '../../ids.ts';
import { MemoryLog } from '../../log/memory-log.ts';
import { quotaShare, type BucketSetting, type MeterSetting } from '../limiter.ts';
import { type Bucket, closedMs, maxInFlightOf } from '../policy/bucket-state.policy.ts';
import { costEntries, levelAt } from '../policy/meter.policy.ts';
import { Copy, type CopyParts, type CopyUser } from './copy.ts';
import { type LogEvent, restore, snapshot, type UsedUnits } from './fold.ts';

export class Alone {
  readonly copy: Copy;
  readonly #since: number;
  /** Replicas that share every limit, this one among them. */
  readonly #replicas: number;
  /** What ended calls used of each bucket. */
  readonly #used = new Map<BucketKey, Pick<UsedUnits, 'setting' | 'costs'>>();

  constructor(shared: Copy, parts: CopyParts, user: CopyUser, replicas: number) {
    const { term } = shared.state;
    // A log that was never seen has the time of a server's clock.
    this.#since = term === null ? parts.clock.now() : shared.log.now();
    this.#replicas = replicas;
    const after = { sequence: shared.sequence, term: term?.number ?? 1, at: this.#since };
    const log = new MemoryLog<LogEvent>({ ...parts, after });
    this.copy = new Copy(parts, log, user, {
      ...restore(snapshot(shared.state)),
      aloneSince: this.#since,
    });
  }

  /** Puts this replica's share of every limit in force. */
  begin(): void {
    this.copy.begin();
    for (const [key, bucket] of this.copy.state.buckets) {
      const maxInFlight = maxInFlightOf(bucket, this.#since);
      const setting = this.shareOf({ ...settingIn({ ...bucket, maxInFlight }), probe: 0 });
      this.copy.say({ kind: 'in', bucket: key, event: { kind: 'reconfigure', setting, lanes: [] } });
    }
  }

  /** This replica's share of the limits of a bucket. Responses speak of all replicas together, so they raise none. */
  settingOf(key: BucketKey, stated: BucketSetting): BucketSetting {
    const bucket = this.copy.state.buckets.get(key);
    return bucket === undefined ? this.shareOf(stated) : settingIn(bucket);
  }

  /** This replica's share of these limits. */
  shareOf({ meters, probe, maxInFlightTotal }: BucketSetting): BucketSetting {
    const share = (limit: number): number => quotaShare(limit, this.#replicas);
    return {
      meters: meters.map((meter) => ({ ...meter, limit: share(meter.limit) })),
      learn: false,
      probe,
      ...(maxInFlightTotal === undefined ? {} : { maxInFlightTotal: share(maxInFlightTotal) }),
    };
  }

  /** A call that was granted in this time has ended. */
  noteUsed(bucket: BucketKey, setting: BucketSetting, costs: Costs): void {
    const sum: Partial<Record<MeterName, number>> = { ...this.#used.get(bucket)?.costs };
    for (const [name, units] of costEntries(costs)) sum[name] = (sum[name] ?? 0) + units;
    this.#used.set(bucket, { setting, costs: sum });
  }

  /** What other replicas have to know of that: no more than has not drained by now, and what is closed since. */
  used(): UsedUnits[] {
    const now = this.copy.log.now();
    const { buckets, closed } = this.copy.state;
    const allClosedMs = closed === null || closed.at < this.#since ? 0 : Math.max(0, closed.until - now);
    const scope = allClosedMs > 0 ? { closesCredential: true as const } : {};
    return [...this.#used].map(([key, { setting, costs: sum }]) => {
      const bucket = buckets.get(key);
      const costs: Partial<Record<MeterName, number>> = {};
      for (const [name, units] of costEntries(sum)) {
        const meter = bucket?.meters.get(name);
        if (meter !== undefined) costs[name] = Math.min(units, levelAt(meter, now));
      }
      const ownMs = (bucket?.closedAt ?? 0) < this.#since || bucket === undefined ? 0 : closedMs(bucket, now);
      return { bucket: key, setting, costs, closeMs: Math.max(allClosedMs, ownMs), ...scope };
    });
  }
}

/** The limits that a bucket has. */
function settingIn({
  meters: all,
  probe,
  maxInFlight,
}: Pick<Bucket, 'meters' | 'probe' | 'maxInFlight'>): BucketSetting {
  const meters: MeterSetting[] = [];
  for (const { name: meter, limit, windowMs, log } of all.values())
    if (limit !== null)
      meters.push({ meter, limit, windowMs, ...(log === null ? {} : { counts: log.counts }) });
  return { meters, learn: false, probe, ...(maxInFlight === null ? {} : { maxInFlightTotal: maxInFlight }) };
}
