/**
 * The guard of serialized lanes: asked before a call is sent for which the log has made a grant.
 *
 * The copies of a log may be of two versions of the fold, or of two histories after a failover, and each may grant a call of one
 * lane. Keeps: only one call of a lane passes at a time, whatever the copies say, until it is freed or its time is over. Knows
 * nothing of order.
 */
import { amountOf } from '../../redis/scripts.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { isBackground, twinOf } from '../../ids.ts';
import type { Grant } from '../limiter.ts';
import { runOwn } from '../redis/scripts.ts';

export type LaneReply =
  | { readonly kind: 'taken' }
  /** Another call has the lane. It may be free in `retryInMs` milliseconds. */
  | { readonly kind: 'taken by another'; readonly retryInMs: number }
  /** The guard did not answer. The call may have the lane. */
  | { readonly kind: 'unavailable' };

/** A call that was granted: its lane, and the lease that tells it from others. */
export type Guarded = Pick<Grant, 'bucket' | 'lane' | 'lease'>;

export type LaneGuard = Pick<RedisLaneGuard, 'take' | 'free'>;

const taken: LaneReply = { kind: 'taken' };

/** Whoever has a lane mostly frees it long before its time is over: it is asked for again after this time at most. Milliseconds. */
const maxRetryMs = 50;
/** The reply to a call when another one has its lane for `leftMs` milliseconds yet. */
const busy = (leftMs: number): LaneReply => ({
  kind: 'taken by another',
  retryInMs: Math.min(leftMs, maxRetryMs),
});

/** For all replicas: a key per lane, whose value is the lease of the call that has it. */
export class RedisLaneGuard {
  readonly #redis: RedisHealth;
  /** Calls that ended while Redis was away, by the key of their lane: freed when it is back. */
  readonly #toFree = new Map<string, Guarded>();

  constructor(redis: RedisHealth) {
    this.#redis = redis;
    redis.watch({ onUnavailable: () => {}, onAvailable: () => this.#freeLeft() });
  }

  /** Takes the lane for the call, for `keepMs` milliseconds from now; the call that has it keeps it for so long. */
  async take(call: Guarded, keepMs: number): Promise<LaneReply> {
    const words = { keys: [keyOf(call)], argv: [call.lease, String(Math.ceil(keepMs))] };
    const reply = await this.#redis.run('other', async (client): Promise<LaneReply> => {
      const leftMs = await runOwn(client, 'takelane', words);
      return leftMs === null ? taken : busy(amountOf(leftMs));
    });
    return reply ?? { kind: 'unavailable' };
  }

  /** Frees the lane, if the call has it. */
  async free(call: Guarded): Promise<void> {
    const words = { keys: [keyOf(call)], argv: [call.lease] };
    const reply = await this.#redis.run('other', (client) => runOwn(client, 'freelane', words));
    // Of a lane only the latest call can still have it.
    if (reply === null) this.#toFree.set(keyOf(call), call);
  }

  #freeLeft(): void {
    const calls = [...this.#toFree.values()];
    this.#toFree.clear();
    for (const call of calls) void this.free(call);
  }
}

/** Of a workspace's background and its other calls alike. Carries no version: versions of the limiter that run side by side keep out of each other's way by it. */
const keyOf = ({ bucket, lane }: Guarded): string =>
  `sluice:lane:{${bucket}}:${isBackground(lane) ? twinOf(lane) : lane}`;
