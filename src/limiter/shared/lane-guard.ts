/**
 * The guard of serialized lanes: asked before a call is sent for which the log has made a grant.
 *
 * The copies of a log may be of two versions of the fold, or of two histories after a failover, and each may grant a call of one
 * lane. Keeps: only one call of a lane passes at a time, whatever the copies say, until it is freed or its time is over. Knows
 * nothing of order.
 */
import type { Clock } from '../../clock.ts';
import type { LaneKey, LeaseToken } from '../../ids.ts';
import { amountOf } from '../../redis/malformed-reply.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { runOwn } from '../redis/protocol/commands.ts';

export type LaneReply =
  | { readonly kind: 'taken' }
  /** Another call has the lane, for `waitMs` more milliseconds unless it is freed before. */
  | { readonly kind: 'taken by another'; readonly waitMs: number }
  /** The guard did not answer. The call may have the lane. */
  | { readonly kind: 'unavailable' };

export interface LaneGuard {
  /** Takes the lane for the call of this lease, for `keepMs` milliseconds from now; whoever has it keeps it for so long. */
  take(lane: LaneKey, lease: LeaseToken, keepMs: number): Promise<LaneReply>;
  /** Frees the lane, if the call of this lease has it. */
  free(lane: LaneKey, lease: LeaseToken): Promise<void>;
}

const taken: LaneReply = { kind: 'taken' };

/** For one process. Before `opensAt` (monotonic milliseconds) no lane is free: calls that nobody here knows may be under way. */
export class MemoryLaneGuard implements LaneGuard {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #opensAt: number | null;
  readonly #owners = new Map<LaneKey, { readonly lease: LeaseToken; readonly until: number }>();

  constructor(clock: Pick<Clock, 'monotonic'>, opensAt: number | null = null) {
    this.#clock = clock;
    this.#opensAt = opensAt;
  }

  async take(lane: LaneKey, lease: LeaseToken, keepMs: number): Promise<LaneReply> {
    const now = this.#clock.monotonic();
    if (this.#opensAt !== null && now < this.#opensAt) {
      return { kind: 'taken by another', waitMs: this.#opensAt - now };
    }
    const owner = this.#owners.get(lane);
    if (owner !== undefined && owner.lease !== lease && owner.until > now) {
      return { kind: 'taken by another', waitMs: owner.until - now };
    }
    this.#owners.set(lane, { lease, until: now + keepMs });
    return taken;
  }

  async free(lane: LaneKey, lease: LeaseToken): Promise<void> {
    if (this.#owners.get(lane)?.lease === lease) this.#owners.delete(lane);
  }
}

/** For all replicas: a key per lane, whose value is the lease of the call that has it. */
export class RedisLaneGuard implements LaneGuard {
  readonly #redis: RedisHealth;

  constructor(redis: RedisHealth) {
    this.#redis = redis;
  }

  async take(lane: LaneKey, lease: LeaseToken, keepMs: number): Promise<LaneReply> {
    const words = { keys: [keyOf(lane)], argv: [lease, String(Math.ceil(keepMs))] };
    const reply = await this.#redis.run('other', async (client): Promise<LaneReply> => {
      const waitMs = await runOwn(client, 'takelane', words);
      return waitMs === null ? taken : { kind: 'taken by another', waitMs: amountOf(waitMs) };
    });
    return reply.kind === 'reply' ? reply.value : reply;
  }

  async free(lane: LaneKey, lease: LeaseToken): Promise<void> {
    const words = { keys: [keyOf(lane)], argv: [lease] };
    await this.#redis.run('other', (client) => runOwn(client, 'freelane', words));
  }
}

/** Carries no version: versions of the limiter that run side by side keep out of each other's way by it. */
const keyOf = (lane: LaneKey): string => `sluice:lane:{${lane}}`;
