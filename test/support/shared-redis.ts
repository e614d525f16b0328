/** A real Redis for a file's tests, empty before each, a client that looks into it, and the product's connections to it. */
import { afterAll, afterEach, beforeAll, beforeEach } from '@jest/globals';
import { Redis } from 'ioredis';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { createSharedRedis } from '../../src/replicated/shared-redis.ts';
import { plainRedis } from './plain-redis.ts';
import { startRedis, type RedisServer } from './redis.ts';

export function onRedis() {
  let server: RedisServer;
  let probe: Redis;
  const open: { close(): void }[] = [];
  beforeAll(async () => {
    server = await startRedis();
    probe = new Redis(server.port);
  });
  beforeEach(() => probe.flushall());
  afterEach(() => open.splice(0).forEach((each) => each.close()));
  afterAll(async () => {
    probe.disconnect();
    await server.stop();
  });
  return {
    get probe(): Redis {
      return probe;
    },
    get port(): number {
      return server.port;
    },
    get url(): string {
      return server.url;
    },
    /** Closed after the test. */
    closes: (...each: readonly { close(): void }[]): void => void open.push(...each),
    /** `port`: of another one, which is not there. */
    connect({ port = server.port, database = 0 } = {}): ReturnType<typeof createSharedRedis> {
      const settings = plainRedis({ nodes: [{ host: '127.0.0.1', port }], database });
      const redis = createSharedRedis(settings, { clock: systemClock, random: systemRandom }, () => {});
      open.push(redis);
      return redis;
    },
  };
}
