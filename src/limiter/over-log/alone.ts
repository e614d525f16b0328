/**
 * A replica goes on alone while the log is away: over a log of its own in memory, from a copy of the state that it last had, with
 * its share of every limit.
 *
 * Owns: the share, what was used. Does not own: when this time begins and ends (`shard.ts`).
 * Keeps: a capped lane or bucket waits one lease first, because calls that other replicas were granted may be under way. Beyond that nothing
 * keeps replicas that are alone from overlapping in one lane.
 */
import type { MeterName } from '../../call.ts';
import type { Clock } from '../../clock.ts';
import type { BucketKey, ReplicaId } from '../../ids.ts';
import { MemoryLog } from '../../log/memory-log.ts';
import { quotaShare } from '../when-down.policy.ts';
import type { BucketSetting, MeterSetting } from '../limiter.ts';
import { maxInFlightOf } from '../policy/in-flight.policy.ts';
import { costEntries, levelAt } from '../policy/meter.policy.ts';
import { Copy, type CopyUser } from './copy.ts';
import { restore, snapshot } from './snapshot.ts';
import type { LogEvent, UsedUnits } from './state.ts';

export interface AloneParts {
  readonly clock: Clock;
  readonly replica: ReplicaId;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  /** Replicas that share every limit, this one among them. */
  readonly replicas: number;
  readonly user: CopyUser;
}

export class Alone {
  readonly copy: Copy;
  readonly #replicas: number;
  /** What holds for buckets that were known when this time began, or were reconfigured since. */
  readonly #settings = new Map<BucketKey, BucketSetting>();
  /** What ended calls did to each bucket. `closedUntil`: on the time of this log, milliseconds; 0 = they did not close it. */
  readonly #used = new Map<
    BucketKey,
    Pick<UsedUnits, 'setting' | 'costs' | 'closesCredential'> & { readonly closedUntil: number }
  >();

  constructor(shared: Copy, { clock, replica, leaseMs, replicas, user }: AloneParts) {
    const { term } = shared.state;
    // A log that was never seen has the time of a server's clock.
    const at = term === null ? clock.now() : shared.log.now();
    const state = { ...restore(snapshot(shared.state)), aloneSince: at };
    const after = { sequence: shared.last?.sequence ?? 0, term: term?.number ?? 1, at };
    const log = new MemoryLog<LogEvent>({ clock, replica, after });
    this.#replicas = replicas;
    this.copy = new Copy({ clock, replica, leaseMs, log, user, state });
    for (const [key, bucket] of state.buckets) {
      const inForce: MeterSetting[] = [];
      for (const { name: meter, limit, windowMs, log: counted } of bucket.meters.values()) {
        if (limit === null) continue;
        const setting = { meter, limit, windowMs };
        inForce.push(counted === null ? setting : { ...setting, counts: counted.counts });
      }
      const maxInFlight = maxInFlightOf(bucket, at);
      const cap = maxInFlight === null ? {} : { maxInFlightTotal: maxInFlight };
      this.#settings.set(key, this.#shareOf({ meters: inForce, probe: 0, ...cap }));
    }
  }

  /** Puts this replica's share of every limit in force. */
  begin(): void {
    this.copy.begin();
    for (const [bucket, setting] of this.#settings) {
      this.copy.say({ kind: 'in', bucket, event: { kind: 'reconfigure', setting, lanes: [] } });
    }
  }

  /** This replica's share of the limits of a bucket. Responses speak of all replicas together, so they raise none. */
  settingOf(bucket: BucketKey, setting: BucketSetting): BucketSetting {
    return this.#settings.get(bucket) ?? this.#shareOf(setting);
  }

  /** The operator has stated these limits now. */
  reconfigure(bucket: BucketKey, stated: BucketSetting): BucketSetting {
    const setting = this.#shareOf(stated);
    this.#settings.set(bucket, setting);
    return setting;
  }

  /** A call that was granted in this time has ended. */
  noteUsed({ bucket, setting, costs, closedMs, closesCredential }: UsedUnits): void {
    const known = this.#used.get(bucket);
    const sum: Partial<Record<MeterName, number>> = { ...known?.costs };
    for (const [name, units] of costEntries(costs)) sum[name] = (sum[name] ?? 0) + units;
    const closedUntil = closedMs > 0 ? this.copy.log.now() + closedMs : 0;
    this.#used.set(bucket, {
      setting,
      costs: sum,
      closedUntil: Math.max(known?.closedUntil ?? 0, closedUntil),
      ...((closesCredential ?? known?.closesCredential) === true ? { closesCredential: true } : {}),
    });
  }

  /** What other replicas have to know of that: no more than has not drained by now. */
  used(): UsedUnits[] {
    const now = this.copy.log.now();
    const all: UsedUnits[] = [];
    for (const [bucket, { setting, costs: sum, closedUntil, ...scope }] of this.#used) {
      const meters = this.copy.state.buckets.get(bucket)?.meters;
      const costs: Partial<Record<MeterName, number>> = {};
      for (const [name, units] of costEntries(sum)) {
        const meter = meters?.get(name);
        const left = meter === undefined ? 0 : Math.min(units, levelAt(meter, now));
        if (left > 0) costs[name] = left;
      }
      const closedMs = Math.max(0, closedUntil - now);
      if (Object.keys(costs).length > 0 || closedMs > 0)
        all.push({ bucket, setting, costs, closedMs, ...scope });
    }
    return all;
  }

  #shareOf({ meters, probe, maxInFlightTotal }: Omit<BucketSetting, 'learn'>): BucketSetting {
    const share = (limit: number): number => quotaShare(limit, this.#replicas);
    return {
      meters: meters.map((meter) => ({ ...meter, limit: share(meter.limit) })),
      learn: false,
      probe,
      ...(maxInFlightTotal === undefined ? {} : { maxInFlightTotal: share(maxInFlightTotal) }),
    };
  }
}
