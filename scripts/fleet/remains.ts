/** What a load left behind in Redis: every key, and the states of the logs as a replica that joins them would have them. */
import { Redis } from 'ioredis';
import type { ConnectionOptions } from 'node:tls';
import { defaultLeaseMs } from '../../src/limiter/limiter.ts';
import { createState, fold, restore } from '../../src/limiter/over-log/fold.ts';
import type { LogEvent, SharedState } from '../../src/limiter/over-log/fold.ts';
import { readEntry } from '../../src/log/redis-commands.ts';

/** How an operator gets in, where not everybody does. */
export interface Access {
  readonly password?: string;
  readonly tls?: ConnectionOptions;
}

export interface Remains {
  readonly isClean: boolean;
  readonly words: string;
}

/** Runs with a connection to this server, and every key of it. */
async function reading<T>(
  port: number,
  access: Access,
  read: (redis: Redis, keys: readonly string[]) => Promise<T>,
): Promise<T> {
  const redis = new Redis(port, '127.0.0.1', access);
  try {
    return await read(redis, await redis.keys('*'));
  } finally {
    redis.disconnect();
  }
}

async function bucketsOf(redis: Redis, keys: readonly string[]) {
  const stems = keys.flatMap((key) => /^(sluice:\{.+\}:[^:]+):head$/.exec(key)?.[1] ?? []);
  const states = await Promise.all(stems.map((stem) => stateOf(redis, stem)));
  return states.flatMap((state) => (state === null ? [] : [...state.buckets.values()]));
}

/** From the snapshot and what came after it; `null` = the log is gone. */
async function stateOf(redis: Redis, stem: string): Promise<SharedState | null> {
  const [saved, text] = await redis.hmget(`${stem}:head`, 'saved', 'snapshot');
  if (typeof saved !== 'string' || typeof text !== 'string') return null;
  const state = text === '' ? createState(defaultLeaseMs) : restore(text);
  for (const line of await redis.lrange(`${stem}:log`, 0, -1)) {
    const entry = readEntry<LogEvent>(line);
    if (entry !== null && entry.sequence > Number(saved)) fold(state, entry);
  }
  return state;
}

/** The day's count lives for a day, nothing longer. Milliseconds. */
const maxLifeMs = 86_400_000;

/** Of one server: no ticket, no lease, no serialized lane, and no key that stays. */
export const remainsOf = (port: number, access: Access = {}): Promise<Remains> =>
  reading(port, access, async (redis, keys) => {
    const buckets = await bucketsOf(redis, keys);
    const sum = (sizes: readonly number[]): number => sizes.reduce((all, size) => all + size, 0);
    const tickets = sum(buckets.map((bucket) => bucket.tickets.size));
    const leases = sum(buckets.map((bucket) => bucket.leases.size));
    const lanes = keys.filter((key) => key.startsWith('sluice:lane:')).length;
    const livesMs = await Promise.all(keys.map((key) => redis.pttl(key)));
    const eternal = livesMs.filter((ms) => ms === -1).length;
    const maxMs = Math.max(0, ...livesMs);
    return {
      isClean: eternal + tickets + leases + lanes === 0 && maxMs <= maxLifeMs,
      words: `left behind: ${tickets} tickets, ${leases} leases, ${lanes} serialized lanes; ${keys.length} keys, ${eternal} of them without expiry, the last one gone in ${(maxMs / 3_600_000).toFixed(1)} h`,
    };
  });

/** A call waits in a bucket of this server. */
export const hasWaitingCall = (port: number): Promise<boolean> =>
  reading(port, {}, async (redis, keys) => (await bucketsOf(redis, keys)).some(({ waiting }) => waiting > 0));
