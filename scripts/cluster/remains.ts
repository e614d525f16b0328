/** What a load left behind in Redis. */
import { Redis } from 'ioredis';
import type { ConnectionOptions } from 'node:tls';
import { logStates } from './log-states.ts';

export interface Remains {
  readonly keys: number;
  /** Keys that would stay for ever. */
  readonly eternal: number;
  /** Time until the last of the others is gone, milliseconds. */
  readonly maxMs: number;
  readonly tickets: number;
  readonly leases: number;
  /** Serialized lanes that a call has. */
  readonly lanes: number;
}

/** How an operator gets in, where not everybody does. */
export interface Access {
  readonly password?: string;
  readonly tls?: ConnectionOptions;
}

/** Reads every key of one server. */
export async function left(port: number, options: Access = {}): Promise<Remains> {
  const redis = new Redis(port, '127.0.0.1', options);
  const remains = { keys: 0, eternal: 0, maxMs: 0, tickets: 0, leases: 0, lanes: 0 };
  try {
    const keys = await redis.keys('*');
    for (const { buckets } of await logStates(redis, keys)) {
      for (const { tickets, leases } of buckets.values()) {
        remains.tickets += tickets.size;
        remains.leases += leases.size;
      }
    }
    for (const key of keys) {
      remains.keys += 1;
      const lifeMs = await redis.pttl(key);
      if (lifeMs === -1) remains.eternal += 1;
      remains.maxMs = Math.max(remains.maxMs, lifeMs);
      if (key.startsWith('sluice:lane:')) remains.lanes += 1;
    }
  } finally {
    redis.disconnect();
  }
  return remains;
}

/** A call waits in a bucket of this server. */
export async function hasWaitingCall(port: number): Promise<boolean> {
  const redis = new Redis(port, '127.0.0.1');
  try {
    const keys = await redis.keys('*');
    const buckets = (await logStates(redis, keys)).flatMap((state) => [...state.buckets.values()]);
    return buckets.some(({ waiting }) => waiting > 0);
  } finally {
    redis.disconnect();
  }
}

/** The day's count lives for a day, nothing longer. */
const maxLifeMs = 86_400_000;

export const nothingLeft = ({ eternal, maxMs, tickets, leases, lanes }: Remains): boolean =>
  eternal + tickets + leases + lanes === 0 && maxMs <= maxLifeMs;

export const remainsInWords = ({ keys, eternal, maxMs, tickets, leases, lanes }: Remains): string =>
  `left behind: ${tickets} tickets, ${leases} leases, ${lanes} serialized lanes; ${keys} keys, ${eternal} of them without expiry, the last one gone in ${(maxMs / 3_600_000).toFixed(1)} h`;
