/** A redis-server of a benchmark's own, with a client that asks it what it has used. */
import { Redis } from 'ioredis';
import { startRedis } from '../test/support/redis.ts';

export interface MeasuredRedis {
  readonly url: string;
  readonly client: Redis;
  /** CPU that the server has used since its start, by its own count (`INFO cpu`). Microseconds. */
  cpuUs(): Promise<number>;
  stop(): Promise<void>;
}

export async function startMeasured(): Promise<MeasuredRedis> {
  const server = await startRedis();
  const client = new Redis(server.port, '127.0.0.1');
  return {
    url: server.url,
    client,
    async cpuUs() {
      const info = await client.info('cpu');
      const of = (name: string): number => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)?.[1] ?? NaN);
      return 1e6 * (of('used_cpu_user') + of('used_cpu_sys'));
    },
    async stop() {
      client.disconnect();
      await server.stop();
    },
  };
}
