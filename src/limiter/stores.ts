/**
 * Chooses where limiter state lives and builds that store: in this process, or in Redis for all replicas (`shared-stores.ts`).
 */
import { connectRedis } from '../redis/connection.ts';
import { MemoryMap } from '../replicated/shared-map.ts';
import { CeilingStore } from './ceiling-store.ts';
import { createEmbeddedLimiter } from './over-log/limiter.ts';
import { embeddedEstimates } from './estimate-store.ts';
import { createSharedStores, type Connect } from './shared-stores.ts';
import type { StoreParts, Stores } from './store-set.ts';

export { tryRedis } from './redis/trial.ts';
export type { Connect, StoreParts, Stores };

export const createStores = (parts: StoreParts, connect: Connect = connectRedis): Stores =>
  parts.settings.redis === null ? embedded(parts) : createSharedStores(parts, parts.settings.redis, connect);

function embedded({ clock, telemetry, listener, leaseMs }: StoreParts): Stores {
  const limiter = createEmbeddedLimiter(clock, listener, {
    leaseMs,
    onLeaseLost: (reason) => telemetry.leaseLost(reason),
    onFailure: (failure) => telemetry.log.bug('the scheduler failed in a bucket, which was emptied', failure),
  });
  const ceilings = new CeilingStore(clock);
  telemetry.limiterMode('memory');
  return {
    limiter,
    ceilings,
    estimates: embeddedEstimates,
    createMap: () => new MemoryMap(clock),
    async ready() {},
    trouble: () => null,
    contact: () => ({ kind: 'reached' }),
    close: () => limiter.close(),
  };
}
