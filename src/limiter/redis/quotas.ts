/**
 * Shared quotas in Redis: one key for each quota, which names its bucket, and one record of joined buckets. Both expire. One
 * script decides, so that all replicas join the same buckets in the same direction.
 *
 * Owns: the words between replica and script. Does not own: which responses show that a quota is shared (`src/quotas/`).
 */
import { bucketKey, type BucketKey } from '../../ids.ts';
import { maxQuotas, type Joined, type QuotaStore } from '../quota-store.ts';
import { wordOf } from '../../redis/malformed-reply.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { replicasKey, type Presence } from './presence.ts';
import { runOwn } from './scripts.ts';

/** How long Redis remembers a quota of which no replica says anything any more. Milliseconds. */
const memoryMs = 86_400_000;

/** In the slot of the replicas' record, which the script reads, too. */
const joinedKey = 'sluice:{presence}:1:joined';
const quotaKey = (quota: string): string => `sluice:{presence}:1:quota:${quota}`;

export class RedisQuotas implements QuotaStore {
  readonly #redis: RedisHealth;
  readonly #replica: Pick<Presence, 'id'>;
  #hear: (joined: Joined) => void = () => {};

  constructor(redis: RedisHealth, replica: Pick<Presence, 'id'>) {
    this.#redis = redis;
    this.#replica = replica;
  }

  async claim(quota: string, bucket: BucketKey): Promise<BucketKey | 'unavailable'> {
    const keys = [quotaKey(quota), joinedKey, replicasKey];
    const argv = [this.#replica.id, bucket, String(memoryMs), String(maxQuotas)];
    const reply = await this.#redis.run('other', async (client) =>
      bucketKey(wordOf(await runOwn(client, 'quotas', { keys, argv }))),
    );
    return reply.kind === 'reply' ? reply.value : 'unavailable';
  }

  listen(hear: (joined: Joined) => void): void {
    this.#hear = hear;
  }

  /** A message on this replica's channel; false: it is about something else. */
  hears(text: string): boolean {
    if (!text.startsWith('q ')) return false;
    const [, bucket, into] = text.split(' ');
    this.#hear({ bucket: bucketKey(wordOf(bucket)), into: bucketKey(wordOf(into)) });
    return true;
  }
}
